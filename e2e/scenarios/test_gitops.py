"""Tools that apply the logical name for ever, and an operator that moves versions: both get what they want, and no pod is
replaced for it. With the policy of manifests/components/rewrite-at-admission, on a real API server.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pykube
import pytest
import yaml

from e2e import harness
from e2e.harness import (
    Cluster,
    Kubectl,
    Manifest,
    Operator,
    Writes,
    deployment,
    fetch_all,
    plain_pod_spec,
    pod,
    reading_pod_spec,
    settle,
    versioned_config,
    wait_for_rollout,
    wait_until,
)
from e2e.stories import (
    change,
    edit,
    get,
    modes,
    names_in,
    replica_sets,
    resource,
    start_several,
    targets,
    template,
    version_of,
    wait_moved,
)

pytestmark = pytest.mark.usefixtures("rewriting")


@pytest.fixture
def rewriting(kubectl: Kubectl) -> None:
    """The cluster serves the policy."""
    if not harness.rewrites_at_admission(kubectl):
        pytest.skip("this cluster serves no MutatingAdmissionPolicy")


def wait_mapped(api: pykube.HTTPClient, namespace: str, version: str, field: str = "configMaps") -> None:
    """Until the namespace's VersionMap says that new workloads get that version."""
    kind = pykube.object_factory(api, "versionedconfig.io/v1alpha1", "VersionMap")

    def mapped() -> bool:
        found = harness.fetch(api, kind, namespace, "versionedconfig") or {}
        return bool(found.get("spec", {}).get(field, {}).get("app-cfg") == version)

    wait_until(mapped, 30, f"new workloads get {version}")


class Tools:
    """The ways in which the same manifest is applied again and again."""

    def __init__(self, kubectl: Kubectl, namespace: str, manifest: Manifest, directory: Path) -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self._manifest = manifest
        self._chart = directory / "chart"
        self._helm = shutil.which("helm", path=f"{kubectl.program.parent}{os.pathsep}{os.environ['PATH']}")
        assert self._helm is not None, "install helm to run this on a cluster of your own"

    def apply(self) -> None:
        """kubectl apply"""
        self._kubectl.apply(self._namespace, self._manifest)

    def apply_server_side(self) -> None:
        """As Flux and Argo CD do."""
        options = ("--server-side", "--field-manager=gitops", "--force-conflicts")
        self._kubectl("apply", "-n", self._namespace, *options, "-f", "-", stdin=json.dumps(self._manifest))

    def replace(self) -> None:
        """kubectl replace, which reads first, and may be overtaken by a controller."""

        def replaced() -> bool:
            command = ("replace", "-n", self._namespace, "-f", "-")
            done = self._kubectl(*command, stdin=json.dumps(self._manifest), check=False)
            assert done.returncode == 0 or "(Conflict)" in done.stderr, done.stderr
            return done.returncode == 0

        wait_until(replaced, 15, "it is replaced")

    def helm(self) -> None:
        """helm upgrade, of a chart that has nothing else in it."""
        templates = self._chart / "templates"
        templates.mkdir(parents=True, exist_ok=True)
        meta = {"apiVersion": "v2", "name": "web", "version": "0.1.0"}
        (self._chart / "Chart.yaml").write_text(yaml.safe_dump(meta))
        (templates / "web.yaml").write_text(yaml.safe_dump(self._manifest))
        command = [
            *(self._helm or "", "upgrade", "--install", "--take-ownership", "web", str(self._chart)),
            *("--namespace", self._namespace, "--kubeconfig", str(self._kubectl.kubeconfig)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def all(self) -> list[Callable[[], None]]:
        """In turn."""
        return [self.apply, self.apply_server_side, self.replace, self.helm]


def test_the_same_manifest_twenty_times(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    tmp_path: Path,
) -> None:
    """V17: before, during and after a rollout, and between two of them. As many ReplicaSets as contents."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))
    first = version_of(api, namespace)
    wait_mapped(api, namespace, first)
    tools = Tools(kubectl, namespace, deployment(replicas=2), tmp_path)
    rounds = 0

    def again(times: int) -> None:
        nonlocal rounds
        for _ in range(times):
            tools.all[rounds % len(tools.all)]()
            rounds += 1

    again(1)
    wait_moved(kubectl, api, namespace, first)
    again(4)
    assert list(replica_sets(api, namespace).values()) == [1]
    version = first
    for mode in ("two", "three"):
        before = version
        edit(kubectl, namespace, data={"MODE": mode})
        wait_until(lambda: names_in(template(api, namespace)) != {before}, 30, "web moves")  # noqa: B023
        again(5)
        version = version_of(api, namespace, besides=before)
        wait_for_rollout(kubectl, namespace)
        again(3)
    assert rounds >= 20
    settle(kubectl, api, versions=True)

    assert len(replica_sets(api, namespace)) == 3
    assert targets(api, namespace) == {"web": ("Updated", version)}
    assert names_in(template(api, namespace)) == {version}
    assert modes(cluster, api, namespace) == [{"three"}] * 2


def test_an_undo_survives_being_applied_again(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Until the content changes."""
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "a")
    wait_mapped(api, namespace, first)
    second = change(kubectl, api, namespace, "two", first)
    kubectl("rollout", "undo", "-n", namespace, "deployment/a")
    wait_until(lambda: targets(api, namespace) == {"a": ("Overridden", first)}, 30, "the undo is told")

    for _ in range(3):
        kubectl.apply(namespace, deployment("a", reading_pod_spec(), replicas=1))
    settle(kubectl, api, versions=True)
    assert targets(api, namespace) == {"a": ("Overridden", first)}
    assert names_in(template(api, namespace, "a")) == {first}
    third = change(kubectl, api, namespace, "three", second)
    assert targets(api, namespace) == {"a": ("Updated", third)}


def test_what_waits_for_its_turn_does_not_jump_the_queue(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Applied in the middle of a rollout: each target keeps the version that it is meant to have now; a new one gets the
    version that has proved itself."""
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "ab")
    wait_mapped(api, namespace, first)
    # No new pod can be made: the rollout stays where it is.
    kubectl("create", "-n", namespace, "quota", "full", "--hard=pods=2")
    edit(kubectl, namespace, data={"MODE": "two"})
    wait_until(lambda: targets(api, namespace).get("a", ("",))[0] == "Updating", 30, "a is on the move")
    second = str(resource(api, namespace)["status"]["currentVersion"])
    assert second != first
    # Not the generation: a Deployment's goes up with its annotations too, and kubectl writes one.
    before = {name: get(api, namespace, name, pykube.Deployment)["spec"] for name in "ab"}

    for name in "ab":
        kubectl.apply(namespace, deployment(name, reading_pod_spec(), replicas=1))
    kubectl.create(namespace, deployment("new", reading_pod_spec(), replicas=0))
    assert names_in(template(api, namespace, "new")) == {first}
    assert {name: get(api, namespace, name, pykube.Deployment)["spec"] for name in "ab"} == before

    kubectl("delete", "-n", namespace, "quota/full")
    assert version_of(api, namespace, besides=first) == second
    wait_until(
        lambda: targets(api, namespace) == dict.fromkeys(["a", "b", "new"], ("Updated", second)),
        60,
        "all are through",
    )
    wait_mapped(api, namespace, second)


def test_who_is_no_target_keeps_the_logical_name(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """It would be moved now and never again."""
    chosen = [
        {"kind": "Deployment", "name": "web"},
        {"kind": "Deployment", "selector": {"matchLabels": {"tier": "a"}}},
    ]
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout={"targets": chosen}))
    first = version_of(api, namespace)
    wait_mapped(api, namespace, first)
    labelled = deployment("labelled", reading_pod_spec(), replicas=0)
    labelled["metadata"]["labels"] = {"tier": "a"}
    other = deployment("other", reading_pod_spec(), replicas=0)
    kubectl.apply(namespace, deployment(replicas=0), other, labelled)
    assert names_in(template(api, namespace)) == {first}
    assert names_in(template(api, namespace, "other")) == {"app-cfg"}
    wait_until(lambda: names_in(template(api, namespace, "labelled")) == {first}, 30, "it is moved")

    second = change(kubectl, api, namespace, "two", first)
    kubectl.apply(namespace, deployment(replicas=0), other, labelled)
    settle(kubectl, api, versions=True)
    assert targets(api, namespace) == dict.fromkeys(["labelled", "web"], ("Updated", second))
    assert names_in(template(api, namespace, "other")) == {"app-cfg"}


def test_new_ones_get_the_pinned_version(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "a")
    second = change(kubectl, api, namespace, "two", first)
    wait_mapped(api, namespace, second)
    edit(kubectl, namespace, pin=first.rpartition("-")[2])
    wait_mapped(api, namespace, first)

    kubectl.create(namespace, deployment("new", reading_pod_spec(), replicas=0))
    assert names_in(template(api, namespace, "new")) == {first}


def test_jobs_and_pods_get_the_version_when_they_are_created(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V16: and keep it; they are listed as its users."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))
    first = version_of(api, namespace)
    wait_mapped(api, namespace, first)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": {"spec": {**reading_pod_spec(), "restartPolicy": "Never"}}},
    }
    kubectl.apply(namespace, job, pod("bare", reading_pod_spec()))
    assert names_in(get(api, namespace, "once", pykube.Job)["spec"]["template"]["spec"]) == {first}
    kubectl("wait", "-n", namespace, "pod/bare", "--for=condition=Ready", "--timeout=60s")

    edit(kubectl, namespace, data={"MODE": "two"}, historyLimit=0)
    second = version_of(api, namespace, besides=first)
    settle(kubectl, api, versions=True)
    assert names_in(get(api, namespace, "bare", pykube.Pod)["spec"]) >= {first}
    (told,) = [one for one in resource(api, namespace)["status"]["versions"] if one["name"] == first]
    assert told["users"]["workloads"] == ["Job/once", "Pod/bare"]
    # An apply of the Job's manifest does not stumble over what cannot change.
    kubectl.apply(namespace, job)
    kubectl("delete", "-n", namespace, "job/once", "pod/bare")
    harness.wait_gone(api, namespace, first)
    assert version_of(api, namespace) == second


def test_a_hundred_targets_cost_a_hundred_patches(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path
) -> None:
    """And not one more, whatever is applied beside it."""
    rollout = {"maxConcurrent": "100%"}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout=rollout))
    first = version_of(api, namespace)
    wait_mapped(api, namespace, first)
    names = [f"web-{number:02}" for number in range(100)]
    kubectl.create(namespace, *(deployment(name, plain_and_reading(), replicas=0) for name in names))
    wait_until(
        lambda: targets(api, namespace) == dict.fromkeys(names, ("Updated", first)), 60, "all are at it"
    )
    writes = Writes(audit_log)

    second = change(kubectl, api, namespace, "two", first)
    wait_until(lambda: targets(api, namespace) == dict.fromkeys(names, ("Updated", second)), 60, "all moved")
    settle(kubectl, api, versions=True)
    seen = [write for write in writes.seen() if f" {namespace}/" in write]
    patches = [write for write in seen if write.startswith("patch deployments")]
    assert sorted(patches) == [f"patch deployments {namespace}/{name}: 200" for name in names]
    assert len([write for write in seen if "versionedconfigs" in write]) < 30
    assert len(fetch_all(api, pykube.Deployment, namespace)) == 100


def plain_and_reading() -> Manifest:
    """A template that refers to app-cfg twice."""
    return {**plain_pod_spec(), **reading_pod_spec()}


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_other_kinds_start_with_a_version_and_keep_it(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, kind: str
) -> None:
    """A StatefulSet whose first pod waits for an object that will never be would wait for ever."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))
    first = version_of(api, namespace)
    wait_mapped(api, namespace, first)
    workload = {**deployment(replicas=2, serviceName="web"), "kind": kind}
    if kind == "DaemonSet":
        del workload["spec"]["replicas"], workload["spec"]["serviceName"]
    kubectl.apply(namespace, workload)
    kubectl("rollout", "status", "-n", namespace, f"{kind}/web", "--timeout=60s")
    before = {p["metadata"]["uid"] for p in harness.live_pods(api, namespace)}

    for _ in range(3):
        kubectl.apply(namespace, workload)
    settle(kubectl, api, versions=True)
    assert {p["metadata"]["uid"] for p in harness.live_pods(api, namespace)} == before
    second = change(kubectl, api, namespace, "two", first)
    assert targets(api, namespace) == {"web": ("Updated", second)}
    assert {value for mode in modes(cluster, api, namespace) for value in mode} == {"two"}
