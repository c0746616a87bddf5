"""What people may ask of protection, and what they do in spite of it: breaking the glass, leaving objects out, stripping
the finalizer, taking pods away by force, only looking."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pykube
import pytest

from e2e.cluster.local import LocalCluster
from e2e.cluster.provide import Cluster
from e2e.harness import (
    IGNORE,
    IN_USE,
    OPERATOR_NAMESPACE,
    RELEASE,
    STRIPPED,
    Kubectl,
    Operator,
    Writes,
    config_map,
    events,
    fetch,
    finalizers,
    pod,
    reading_pod_spec,
    secret,
    settle,
    temporary_namespace,
    unscheduled,
    wait_gone,
    wait_protected,
    wait_until,
)

QUARANTINE = "versionedconfig.io/quarantine"


def test_breaking_the_glass_works_at_once(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G26: the object goes though a pod uses it; who asked says why, an Event keeps it, a counter counts it."""
    before = operator.metrics()["versionedconfig_break_glass_total"]
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
    wait_until(lambda: events(api, namespace, "app-cfg", "DeletionBlocked"), 15, "its deletion waits")

    kubectl("annotate", "-n", namespace, "configmap/app-cfg", f"{RELEASE}=restore after an outage, ticket 7")

    wait_gone(api, namespace, timeout=5)
    (event,) = events(api, namespace, "app-cfg", "ProtectionReleased")
    assert event["type"] == "Warning"
    assert "1 object that uses it: restore after an outage, ticket 7" in event["message"]
    assert operator.metrics()["versionedconfig_break_glass_total"] == before + 1


def test_a_namespace_can_be_left_out(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl("annotate", "namespace", namespace, f"{IGNORE}=true")
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    settle(kubectl, api)
    assert IN_USE not in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))

    kubectl("annotate", "namespace", namespace, f"{IGNORE}-")
    wait_protected(api, namespace)

    # What is protected stays so until nobody holds it, and then does not come back.
    kubectl("annotate", "namespace", namespace, f"{IGNORE}=true")
    kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
    settle(kubectl, api)
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))
    kubectl("delete", "-n", namespace, "pod/holder")
    wait_gone(api, namespace)


@pytest.mark.parametrize("kind", ["helm.sh/release.v1", "bootstrap.kubernetes.io/token"])
def test_secrets_of_other_controllers_are_not_touched(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, kind: str
) -> None:
    """G25"""
    theirs = {**secret("theirs"), "type": kind}
    spec = unscheduled(reading_pod_spec())
    spec["volumes"].append({"name": "t", "secret": {"secretName": "theirs"}})
    kubectl.create(namespace, theirs, config_map(), pod("holder", spec))
    wait_protected(api, namespace)
    settle(kubectl, api)

    assert IN_USE not in finalizers(fetch(api, pykube.Secret, namespace, "theirs"))


def test_a_finalizer_stripped_from_a_living_object_comes_back(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, unguarded: None
) -> None:
    """G20"""
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    uid = fetch(api, pykube.ConfigMap, namespace, "app-cfg")["metadata"]["uid"]  # type: ignore[index]

    kubectl.strip(namespace, "configmap/app-cfg")

    wait_protected(api, namespace)
    assert fetch(api, pykube.ConfigMap, namespace, "app-cfg")["metadata"]["uid"] == uid  # type: ignore[index]


def test_an_object_stripped_while_it_was_deleted_is_counted(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, unguarded: None
) -> None:
    """G20: nothing can bring it back."""
    series = 'versionedconfig_finalizer_bypasses_total{how="stripped"}'
    before = operator.metrics()[series]
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    settle(kubectl, api)
    kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")

    kubectl.strip(namespace, "configmap/app-cfg")

    wait_gone(api, namespace)
    wait_until(lambda: operator.metrics()[series] == before + 1, 10, "the loss is counted")


@pytest.fixture
def unguarded(kubectl: Kubectl, api: pykube.HTTPClient, installed: None) -> Iterator[None]:
    """The policy that guards the finalizer is not in force."""
    guard = Path(__file__).parents[2] / "manifests/base/admission.yaml"
    binding = "validatingadmissionpolicybinding/versionedconfig-finalizer-guard"
    kubectl("delete", binding)
    kubectl("create", "namespace", "unguarded")

    def denied() -> bool:
        """Policies take a moment in both directions."""
        kubectl.apply(
            "unguarded", {**config_map("probe"), "metadata": {"name": "probe", "finalizers": [IN_USE]}}
        )
        done = kubectl(
            "patch", "-n", "unguarded", "configmap/probe", "--type=merge", "-p", STRIPPED, check=False
        )
        return done.returncode != 0

    try:
        wait_until(lambda: not denied(), 30, "the guard is off")
        yield
    finally:
        kubectl("apply", "-f", str(guard))
        wait_until(denied, 30, "the guard is on again")
        kubectl("annotate", "-n", "unguarded", "configmap/probe", f"{RELEASE}=the test ends")
        kubectl.strip("unguarded", "configmap/probe")
        kubectl("delete", "namespace", "unguarded")


@pytest.fixture
def lose_node(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Call it, and the kubelet of node-0 hears nothing and says nothing more, while its containers go on."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("a kubelet of somebody else's cluster is not stopped")
    pid = cluster.processes()["kubelet-node-0"]["pid"]
    yield lambda: os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)


def test_a_pod_taken_by_force_holds_while_its_node_may_run_it(
    stopped_operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    lose_node: Callable[[], None],
) -> None:
    """The container goes on reading what it had; also an operator that was not there remembers."""
    operator = stopped_operator
    operator.start("--quarantine-seconds", "15")
    spec = {**reading_pod_spec(), "nodeName": "node-0"}
    kubectl.create(namespace, config_map(), config_map("free"), pod("holder", spec))
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/holder", "--timeout=60s")
    wait_protected(api, namespace)
    lose_node()

    kubectl("delete", "-n", namespace, "pod/holder", "--force", "--grace-period=0")
    wait_until(
        lambda: (
            QUARANTINE
            in (fetch(api, pykube.ConfigMap, namespace, "app-cfg") or {})["metadata"].get("annotations", {})
        ),
        10,
        "it is written down who may still use it",
    )
    kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
    operator.kill()
    operator.start("--quarantine-seconds", "15")
    settle(kubectl, api)
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg")), "nobody asked its node"

    wait_gone(api, namespace, timeout=60)
    operator.stop()


def test_a_new_pod_holds_what_is_being_deleted(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Nothing stops a pod that names a terminating object from starting."""
    operator = stopped_operator
    operator.start("--linger-seconds", "5")
    spec = unscheduled(reading_pod_spec())
    kubectl.create(namespace, config_map(), config_map("control"), pod("first", spec))
    control = unscheduled(reading_pod_spec("control"))
    kubectl.create(namespace, pod("control", control))
    wait_protected(api, namespace)
    wait_protected(api, namespace, "control")

    kubectl("delete", "-n", namespace, "configmap/app-cfg", "configmap/control", "--wait=false")
    kubectl("delete", "-n", namespace, "pod/first", "pod/control")
    kubectl.create(namespace, pod("second", spec))

    wait_gone(api, namespace, "control")
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))
    kubectl("delete", "-n", namespace, "pod/second")
    wait_gone(api, namespace)
    operator.stop()


def test_protection_can_be_limited_to_labels_and_namespaces(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    operator = stopped_operator
    operator.start("--protect-selector", "tier in (gold),!legacy", "--protect-namespace", namespace)
    gold = {**config_map("gold"), "metadata": {"name": "gold", "labels": {"tier": "gold"}}}
    old = {**config_map("old"), "metadata": {"name": "old", "labels": {"tier": "gold", "legacy": ""}}}
    spec = unscheduled(reading_pod_spec("gold"))
    spec["volumes"] += [{"name": n, "configMap": {"name": n}} for n in ("old", "plain")]
    with temporary_namespace(kubectl, api, "other") as other:
        for place in (other, namespace):
            kubectl.create(place, gold, old, config_map("plain"), pod("holder", spec))
        wait_protected(api, namespace, "gold")
        kubectl("label", "-n", namespace, "configmap/old", "legacy-")
        wait_protected(api, namespace, "old")
        left_out = [
            fetch(api, pykube.ConfigMap, namespace, "plain"),
            fetch(api, pykube.ConfigMap, other, "gold"),
        ]
        assert [finalizers(found) for found in left_out] == [[], []]
    operator.stop()


def test_a_further_kind_can_be_told_to_hold(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """An Ingress follows by default."""
    operator = stopped_operator
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "front"},
        "spec": {"defaultBackend": backend, "tls": [{"secretName": "cert"}]},
    }
    account = f"--serviceaccount={OPERATOR_NAMESPACE}:versionedconfig"
    kubectl(
        "create",
        "clusterrole",
        "e2e-ingresses",
        "--verb=list,watch",
        "--resource=ingresses.networking.k8s.io",
    )
    kubectl("create", "clusterrolebinding", "e2e-ingresses", "--clusterrole=e2e-ingresses", account)
    try:
        kubectl.create(namespace, secret("cert"), ingress)
        operator.start("--hold", "ingresses.networking.k8s.io")
        wait_protected(api, namespace, "cert", kind=pykube.Secret)
        kubectl("delete", "-n", namespace, "secret/cert", "--wait=false")
        (event,) = wait_until(
            lambda: events(api, namespace, "cert", "DeletionBlocked"), 15, "an Event tells who holds it"
        )
        assert f"Ingress {namespace}/front" in event["message"]
        kubectl("delete", "-n", namespace, "ingress/front")
        wait_gone(api, namespace, "cert", kind=pykube.Secret)
    finally:
        operator.stop()
        kubectl("delete", "clusterrole,clusterrolebinding", "e2e-ingresses")


def test_pending_and_finished_pods_can_do_otherwise(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """The switches of G5 and G8."""
    operator = stopped_operator
    operator.start("--pending-pods", "follow", "--finished-pods", "hold")
    finished = {**reading_pod_spec("ended"), "restartPolicy": "Never"}
    finished["containers"] = [{**finished["containers"][0], "command": ["true"]}]
    kubectl.create(
        namespace, config_map(), config_map("ended"), pod("pending", unscheduled(reading_pod_spec()))
    )
    kubectl.create(namespace, pod("ended", finished))
    kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/ended", "--timeout=60s")
    wait_protected(api, namespace, "ended")
    assert IN_USE not in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))

    kubectl("delete", "-n", namespace, "configmap/ended", "--wait=false")
    time.sleep(3 * operator.linger_seconds)
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "ended"))
    kubectl("delete", "-n", namespace, "pod/ended")
    wait_gone(api, namespace, "ended")
    operator.stop()


def test_observing_writes_nothing(
    stopped_operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    audit_log: Path,
) -> None:
    operator = stopped_operator
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    writes = Writes(audit_log)
    operator.start("--mode", "observe")
    would = f"would protect config=configmap/app-cfg in namespace {namespace}"
    wait_until(lambda: would in operator.log, 15, "it says what it would do")
    assert operator.metrics()['versionedconfig_observed_actions_total{action="protect"}'] >= 1
    operator.stop()
    assert writes.seen() == []
    assert IN_USE not in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))
