"""One cluster and one operator for the session, one namespace for each test.

A failed test prints what its namespace held and the end of the operator's log.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pykube
import pytest

from e2e import cluster as clusters
from e2e import harness
from e2e.cluster.provide import Cluster
from e2e.harness import Kubectl, Operator


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """One that is made here dies with this process, however that ends."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def progress(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\ncluster: {message}", end="", flush=True)

    with clusters.provide.find(progress=progress) as found:
        yield found


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Kubectl:
    """As an administrator."""
    return Kubectl(cluster.kubectl, cluster.kubeconfig)


@pytest.fixture(scope="session")
def api(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pykube.HTTPClient]:
    """As an administrator, without starting a process for each question."""
    client = harness.connect(cluster, tmp_path_factory.mktemp("client"))
    yield client
    client.session.close()


@pytest.fixture(scope="session")
def installed(kubectl: Kubectl, api: pykube.HTTPClient) -> None:
    """CRDs, roles and policies are there and in force."""
    harness.install(kubectl, api)


@pytest.fixture(scope="session")
def operator_process(
    installed: None, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """Not started yet; whatever it logs in the session must be free of errors."""
    directory: Path = tmp_path_factory.mktemp("operator")
    kubeconfig = harness.account_kubeconfig(kubectl, directory / "kubeconfig")
    operator = Operator(kubeconfig, directory / "operator.log")
    yield operator
    operator.stop()
    complaints = operator.complaints()
    assert not complaints, "the operator's log:\n" + "\n".join(complaints)


@pytest.fixture
def operator(operator_process: Operator) -> Operator:
    """Runs as its own ServiceAccount and is healthy when the test begins."""
    if not operator_process.running:
        operator_process.start()
    return operator_process


@pytest.fixture
def stopped_operator(operator_process: Operator) -> Operator:
    """Does not run when the test begins."""
    operator_process.stop()
    return operator_process


@pytest.fixture
def namespace(kubectl: Kubectl, api: pykube.HTTPClient) -> Iterator[str]:
    """Fresh, and deleted afterwards."""
    with harness.temporary_namespace(kubectl, api) as name:
        yield name


@pytest.fixture
def audit_log(cluster: Cluster) -> Path:
    """Of the API server; only a local cluster has one."""
    if cluster.audit_log is None:
        pytest.skip("this cluster's audit log cannot be read")
    return cluster.audit_log


def pytest_xdist_auto_num_workers() -> int:
    """Three clusters side by side where they are ours, since scenarios mostly wait: with two, half of two cores was idle.
    In somebody else's two operators would fight."""
    return 3 if clusters.provide.is_local() else 0


LONGEST = (
    "test_versions",
    "test_crashes",
    "test_hostile",
    "test_storm",
    "test_reference_rules",
    "test_custom_workloads",
    "test_protection",
    "test_truth",
    "test_steering",
    "test_version_map",
    "test_workloads",
    "test_sources",
    "test_before_leaping",
    "test_adopt",
    "test_failures",
    "test_bad_moments",
    "test_gitops",
    "test_sequences",
    "test_monitoring",
)
"""Files that take a minute or more. They go first: whoever is left with one at the end lets the other clusters wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a cluster take longer than others, and the first one waits for the cluster to be built."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(180, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the cluster's view to the report of a failed test, while its namespace is still there."""
    report = yield
    used = getattr(item, "funcargs", {})
    if report.failed and call.when == "call":
        if "kubectl" in used and "namespace" in used:
            report.sections.append(("namespace", harness.describe(used["kubectl"], used["namespace"])))
        operators = [used[name] for name in ("operator", "stopped_operator") if name in used]
        for operator in operators[:1]:
            report.sections.append(("the operator's log", operator.log_tail()))
    return report
