"""Where a name was reused all the same, a StaleConfig says which pods read old content, and goes when none does any more.

Everything is compared with what the pods really have, on disk and in their environment.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import pykube
import pytest

from e2e.cluster.local import LocalCluster
from e2e.harness import (
    ROOT,
    Cluster,
    Kubectl,
    Operator,
    config_map,
    deployment,
    live_pods,
    pods_read,
    reading_pod_spec,
    secret,
    wait_for_rollout,
    wait_until,
)
from e2e.stories import stale, vanish, wait_read

pytestmark = pytest.mark.usefixtures("operator")


def verdicts(status: dict[str, Any] | None) -> dict[str, str]:
    """By pod."""
    return {
        pod["name"]: pod["verdict"]
        for node in (status or {}).get("nodes", ())
        for pod in node.get("pods", ())
    }


def wait_told(
    api: pykube.HTTPClient, namespace: str, expected: Callable[[], dict[str, str]]
) -> dict[str, Any]:
    """Until the StaleConfig says that, or the last that it said and what it should."""
    seen: dict[str, Any] = {}

    def told() -> bool:
        seen["status"], seen["expected"] = stale(api, namespace), expected()
        return bool(verdicts(seen["status"]) == seen["expected"])

    try:
        wait_until(told, 40, "the StaleConfig tells of the pods")
    except AssertionError:
        raise AssertionError(json.dumps(seen, indent=1)) from None
    return dict(seen["status"])


def expected_of(
    cluster: Cluster, api: pykube.HTTPClient, namespace: str, live: str, old: str
) -> dict[str, str]:
    """What should be said, from what the pods have."""
    return {one.pod: old if one.mode() - {live} else "Fresh" for one in pods_read(cluster, api, namespace)}


def test_a_name_that_is_used_again(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G2, and G1 where nothing protects: the pods on a node that held the old one read it, also new pods, and those on other
    nodes read the new one."""
    first, *others = cluster.nodes
    spec = deployment(replicas=1)
    spec["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": first}
    kubectl.create(namespace, config_map(), spec)
    wait_for_rollout(kubectl, namespace)
    wait_read(api, namespace)
    assert stale(api, namespace) is None

    vanish(kubectl, namespace)
    told = wait_told(api, namespace, lambda: expected_of(cluster, api, namespace, "", "ServingDeleted"))
    assert told["verdict"] == "ServingDeleted"

    kubectl.create(namespace, config_map(data={"MODE": "green"}))
    told = wait_told(api, namespace, lambda: expected_of(cluster, api, namespace, "green", "Stale"))
    assert told["verdict"] == "Stale"

    kubectl(
        "patch",
        "deployment/web",
        "-n",
        namespace,
        "--type=json",
        "-p",
        '[{"op":"remove","path":"/spec/template/spec/nodeSelector"}]',
    )
    kubectl("scale", "deployment/web", "-n", namespace, "--replicas=6")
    wait_for_rollout(kubectl, namespace)

    readings = pods_read(cluster, api, namespace)
    modes = {one.node: one.mode() for one in readings}
    assert modes[first] == {"blue"}, "the fault is not there: nothing is shown"
    assert {mode for node in others for mode in modes[node]} == {"green"}
    told = wait_told(api, namespace, lambda: expected_of(cluster, api, namespace, "green", "Stale"))
    assert told["nodeCount"] == 1
    assert told["podCount"] == sum(one.node == first for one in readings)
    columns = kubectl("get", "stalecfg", "-n", namespace).stdout.split()
    assert columns[:7] == ["NAME", "KIND", "NAME", "NODES", "PODS", "VERDICT", "SINCE"]

    # The cure that it names.
    assert "Cordon" in told["cure"]
    kubectl("cordon", first)
    try:
        kubectl("delete", "pods", "-n", namespace, *[one.pod for one in readings if one.node == first])
        wait_for_rollout(kubectl, namespace)
    finally:
        kubectl("uncordon", first)
    wait_until(lambda: stale(api, namespace) is None, 120, "the StaleConfig goes")
    assert all(one.mode() == {"green"} for one in pods_read(cluster, api, namespace))


def test_the_same_content_is_not_stale(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G4"""
    kubectl.create(namespace, config_map(), deployment(replicas=2))
    wait_for_rollout(kubectl, namespace)
    wait_read(api, namespace)

    vanish(kubectl, namespace)
    kubectl.create(namespace, config_map())

    told = wait_told(
        api,
        namespace,
        lambda: dict.fromkeys((one.pod for one in pods_read(cluster, api, namespace)), "Fresh"),
    )
    assert (told["verdict"], told["podCount"]) == ("Fresh", 0)


def test_nothing_is_said_of_an_application_that_goes(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, operator: Operator
) -> None:
    """Its ConfigMap goes a moment before its pods."""
    kubectl.create(namespace, config_map(immutable=False), deployment(replicas=3))
    wait_for_rollout(kubectl, namespace)

    kubectl("delete", "-n", namespace, "configmap/app-cfg", "deployment/web", "--wait=false")

    until = time.monotonic() + 15
    while time.monotonic() < until:
        assert stale(api, namespace) is None
        time.sleep(0.5)


def test_it_survives_a_restart_of_the_operator(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, operator: Operator
) -> None:
    """What was known is known, and what was not seen is not guessed."""
    kubectl.create(namespace, config_map(), deployment(replicas=3))
    wait_for_rollout(kubectl, namespace)
    wait_read(api, namespace)
    vanish(kubectl, namespace)
    kubectl.create(namespace, config_map(data={"MODE": "green"}))
    before = wait_told(api, namespace, lambda: expected_of(cluster, api, namespace, "green", "Stale"))

    operator.kill()
    operator.start()

    time.sleep(5)
    after = wait_told(api, namespace, lambda: expected_of(cluster, api, namespace, "green", "Stale"))
    assert after["since"] == before["since"]
    # A pod that comes now still meets the old ones.
    kubectl("scale", "deployment/web", "-n", namespace, "--replicas=6")
    wait_for_rollout(kubectl, namespace)
    wait_told(api, namespace, lambda: expected_of(cluster, api, namespace, "green", "Stale"))


def test_damage_from_before_the_operator_came(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, operator: Operator
) -> None:
    """The public report's own steps: within ten seconds it names exactly the pods on exactly the nodes that read the old
    content."""
    operator.stop()
    first, second, third = cluster.nodes
    spec = deployment(replicas=2)
    template = spec["spec"]["template"]["spec"]
    template["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "kubernetes.io/hostname", "operator": "In", "values": [first, second]}
                        ]
                    }
                ]
            }
        }
    }
    template["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
    other = deployment(
        "other", {**reading_pod_spec(), "nodeSelector": {"kubernetes.io/hostname": third}}, replicas=0
    )
    kubectl.create(namespace, config_map(), spec, other)
    wait_for_rollout(kubectl, namespace)
    wait_read(api, namespace)
    kubectl.strip(namespace, "configmap/app-cfg")
    kubectl("delete", "-n", namespace, "configmap/app-cfg")
    kubectl.create(namespace, config_map(data={"MODE": "green"}))
    kubectl("scale", "-n", namespace, "deployment/web", "--replicas=5")
    kubectl("scale", "-n", namespace, "deployment/other", "--replicas=2")
    wait_for_rollout(kubectl, namespace)
    wait_for_rollout(kubectl, namespace, "other")
    old = {one.pod: one.node for one in pods_read(cluster, api, namespace) if one.mode() == {"blue"}}
    assert {*old.values()} == {first, second}
    assert len(old) == 5
    assert {frozenset(one.mode()) for one in pods_read(cluster, api, namespace, "other")} == {
        frozenset({"green"})
    }

    operator.start()
    began = time.monotonic()

    def named() -> dict[str, str]:
        status = stale(api, namespace) or {"nodes": ()}
        return {
            pod["name"]: node["name"]
            for node in status["nodes"]
            for pod in node["pods"]
            if pod["verdict"] == "Stale"
        }

    wait_until(lambda: named() == old, 10, "exactly these pods are named")
    assert time.monotonic() - began < 10
    told = stale(api, namespace)
    assert told is not None
    assert (told["nodeCount"], told["podCount"]) == (2, 5)


def test_damage_of_which_no_pod_is_left_from_before(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, operator: Operator
) -> None:
    """All pods are younger than the object that they do not read: the rollout let old and new ones meet."""
    operator.stop()
    kubectl.create(namespace, config_map(), deployment(replicas=7))
    wait_for_rollout(kubectl, namespace)
    kubectl.strip(namespace, "configmap/app-cfg")
    kubectl("delete", "-n", namespace, "configmap/app-cfg")
    kubectl.create(namespace, config_map(data={"MODE": "green"}))
    kubectl("rollout", "restart", "-n", namespace, "deployment/web")
    wait_for_rollout(kubectl, namespace)
    readings = pods_read(cluster, api, namespace)
    old = {one.pod for one in readings if one.mode() == {"blue"}}
    assert old

    operator.start()

    def called_stale() -> set[str]:
        return {name for name, verdict in verdicts(stale(api, namespace)).items() if verdict == "Stale"}

    wait_until(lambda: called_stale() == old, 10, "exactly these pods are named")


def test_a_kubelet_that_restarts(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, operator: Operator
) -> None:
    """It forgets: volumes turn to what is live, and what a container took at its start stays."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this cluster's kubelets cannot be restarted")
    rbac = str(ROOT / "manifests/components/kubelet-metrics/rbac.yaml")
    kubectl("apply", "-f", rbac)
    operator.stop()
    operator.start("--kubelet-metrics")
    try:
        node = cluster.nodes[0]
        both = {**reading_pod_spec(), "nodeSelector": {"kubernetes.io/hostname": node}}
        files = json.loads(json.dumps(both))
        del files["containers"][0]["env"]
        kubectl.create(
            namespace,
            config_map(),
            deployment("web", both, replicas=1),
            deployment("files", files, replicas=1),
        )
        for name in ("web", "files"):
            wait_for_rollout(kubectl, namespace, name)
            wait_read(api, namespace, name)
        vanish(kubectl, namespace)
        kubectl.create(namespace, config_map(data={"MODE": "green"}))
        names = {app: live_pods(api, namespace, app)[0]["metadata"]["name"] for app in ("web", "files")}
        wait_told(api, namespace, lambda: dict.fromkeys(names.values(), "Stale"))

        cluster.restart_kubelet(node)

        wait_until(
            lambda: [one.mode() for one in pods_read(cluster, api, namespace, "files")] == [{"green"}],
            60,
            "the volume turns",
        )
        assert [one.mode() for one in pods_read(cluster, api, namespace)] == [{"blue", "green"}]
        wait_told(api, namespace, lambda: {names["web"]: "Stale", names["files"]: "Fresh"})
    finally:
        operator.stop()
        operator.start()
        kubectl("delete", "-f", rbac)


def test_secrets(cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    """The same, and nothing of their content stands anywhere."""
    marker = "hunter2hunter2"
    spec = deployment(replicas=2)
    container = spec["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "MODE", "valueFrom": {"secretKeyRef": {"name": "app-cfg", "key": "MODE"}}}]
    spec["spec"]["template"]["spec"]["volumes"] = [{"name": "v", "secret": {"secretName": "app-cfg"}}]
    kubectl.create(namespace, secret("app-cfg", {"MODE": marker}), spec)
    wait_for_rollout(kubectl, namespace)
    wait_read(api, namespace)

    vanish(kubectl, namespace, resource="secret")
    kubectl.create(namespace, secret("app-cfg", {"MODE": "other"}))

    def told() -> dict[str, Any] | None:
        status = stale(api, namespace, "secret-app-cfg")
        return status if status is not None and status["verdict"] == "Stale" else None

    status = wait_until(told, 40, "the StaleConfig tells of the Secret")
    assert status["podCount"] == 2
    assert marker not in kubectl("get", "stalecfg,events", "-n", namespace, "-o", "json").stdout
