"""Versions that fail: found early, taken back in one step, and not tried again until the content changes; on real
kubelets.
"""

import json

import pykube
import pytest

from e2e.harness import (
    ROOT,
    Cluster,
    Kubectl,
    Operator,
    deployment,
    fetch_all,
    reading_pod_spec,
    settle,
    versioned_config,
    wait_for_rollout,
    wait_until,
)
from e2e.stories import (
    BAD,
    crashing_pod_spec,
    edit,
    generation,
    get,
    modes,
    names_in,
    predicted,
    resource,
    start_several,
    targets,
    template,
    told_of,
    version_of,
    versions,
    wait_condition,
    wait_moved,
    wait_rolled_back,
    watched,
)


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_version_that_crashes_its_first_target_reaches_no_second_one(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    where: str,
) -> None:
    """V27: the first one goes back at once, and without any deadline."""
    rollout = {"minReadySeconds": 5}
    first = start_several(kubectl, api, namespace, crashing_pod_spec(where), "abc", rollout=rollout)
    others = {name: generation(api, namespace, name) for name in "bc"}

    with watched(api, namespace, first) as record:
        edit(kubectl, namespace, data=BAD)
        told = wait_rolled_back(api, namespace)
    assert record.moved() == ["a"]
    assert "CrashLoopBackOff" in told["message"]
    assert "Deployment a" in told["message"]
    assert {name: generation(api, namespace, name) for name in "bc"} == others
    wait_for_rollout(kubectl, namespace, "a")
    assert [modes(cluster, api, namespace, name) for name in "abc"] == [[{"one"}]] * 3

    status = resource(api, namespace)["status"]
    bad = status["latestVersion"]
    assert (status["currentVersion"], status["stableVersion"]) == (first, first)
    assert told_of(api, namespace, bad)["result"] == "Failed"
    assert told_of(api, namespace, first)["cause"] == "Rollback"
    (ready,) = [c for c in status["conditions"] if c["type"] == "Ready"]
    assert ready["status"] == "False"

    # Not tried again, not even by a restart, until the content changes.
    moved = {name: generation(api, namespace, name) for name in "abc"}
    operator.stop()
    operator.start()
    settle(kubectl, api, versions=True)
    assert {name: generation(api, namespace, name) for name in "abc"} == moved
    assert versions(api, namespace) == {first, bad}
    edit(kubectl, namespace, data={"MODE": "three", "CRASH": None})
    good = version_of(api, namespace, besides=first)
    assert targets(api, namespace) == dict.fromkeys("abc", ("Updated", good))


def test_the_failed_content_once_more_after_other_content_is_tried(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = start_several(kubectl, api, namespace, crashing_pod_spec(), "a", rollout={"minReadySeconds": 5})
    edit(kubectl, namespace, data=BAD)
    wait_rolled_back(api, namespace)
    bad = str(resource(api, namespace)["status"]["latestVersion"])

    # The content is set back to what everything is at: nothing moves, and all is well.
    before = generation(api, namespace, "a")
    edit(kubectl, namespace, data={"MODE": "one", "CRASH": None})
    assert version_of(api, namespace) == first
    assert generation(api, namespace, "a") == before

    edit(kubectl, namespace, data=BAD)
    wait_until(
        lambda: (
            told_of(api, namespace, bad).get("result") is None or generation(api, namespace, "a") != before
        ),
        30,
        "it is tried again",
    )
    wait_rolled_back(api, namespace)
    assert generation(api, namespace, "a")[1] == before[1] + 2


def test_everything_of_the_wave_goes_back_to_what_it_had(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Two move together, and one of them had been set back to an older version by hand."""
    rollout = {"maxConcurrent": "100%", "minReadySeconds": 5}
    first = start_several(kubectl, api, namespace, crashing_pod_spec(), "ab", rollout=rollout)
    edit(kubectl, namespace, data={"MODE": "mid"})
    middle = version_of(api, namespace, besides=first)
    # The first revision has the logical name, the second one the first version.
    kubectl("rollout", "undo", "-n", namespace, "deployment/b")
    wait_until(lambda: targets(api, namespace).get("b") == ("Overridden", first), 30, "b is overridden")
    wait_for_rollout(kubectl, namespace, "b")

    edit(kubectl, namespace, data=BAD)
    wait_rolled_back(api, namespace)
    assert targets(api, namespace) == {"a": ("Updated", middle), "b": ("Overridden", first)}
    wait_moved(kubectl, api, namespace, middle, "a")
    wait_moved(kubectl, api, namespace, first, "b")
    assert modes(cluster, api, namespace, "a") == [{"mid"}]
    assert modes(cluster, api, namespace, "b") == [{"one"}]

    edit(kubectl, namespace, data={"MODE": "four", "CRASH": None})
    fourth = version_of(api, namespace, besides=middle)
    assert targets(api, namespace) == dict.fromkeys("ab", ("Updated", fourth))


def test_a_target_that_never_worked_takes_no_version_back(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """It fails for a fault of its own: the others get the new content first, and keep it."""
    start_several(kubectl, api, namespace, reading_pod_spec(), "bc", rollout={"minReadySeconds": 5})
    spec = reading_pod_spec()
    spec["containers"][0]["env"].append({"name": "CRASH", "value": "1"})
    kubectl.create(namespace, deployment("a", spec, replicas=1))
    wait_condition(api, namespace, "Degraded", "TargetFailed")

    edit(kubectl, namespace, data={"MODE": "two"})
    wait_until(
        lambda: [state for state, _ in targets(api, namespace).values()] == ["Failed", "Updated", "Updated"],
        60,
        "only the broken one fails",
    )
    status = resource(api, namespace)["status"]
    assert status["currentVersion"] == status["latestVersion"]
    assert {version for _, version in targets(api, namespace).values()} == {status["currentVersion"]}


def test_a_set_back_stateful_set_says_what_to_do_about_its_stuck_pod(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V10: its controller waits for the broken pod, though the template is good again (kubernetes/kubernetes#67250)."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout={"minReadySeconds": 5}))
    first = version_of(api, namespace)
    spec = json.loads(json.dumps(crashing_pod_spec("initContainers")).replace('"app-cfg"', f'"{first}"'))
    workload = deployment(spec=spec, replicas=2, serviceName="web")
    kubectl.create(namespace, {**workload, "kind": "StatefulSet"})
    kubectl("rollout", "status", "-n", namespace, "statefulset/web", "--timeout=60s")
    assert version_of(api, namespace) == first

    edit(kubectl, namespace, data=BAD)

    def stuck() -> str:
        status = resource(api, namespace)["status"]
        (target,) = status["targets"]
        back = status["currentVersion"] == first and target["version"] == first
        return str(target.get("message", "")) if back else ""

    message = wait_until(lambda: text if "delete it" in (text := stuck()) else "", 60, "it says so")
    assert "web-1" in message
    bad = str(resource(api, namespace)["status"]["latestVersion"])
    # The broken version is there as long as the pod is.
    assert versions(api, namespace) == {first, bad}
    kubectl("delete", "-n", namespace, "pod/web-1")
    wait_rolled_back(api, namespace)
    assert modes(cluster, api, namespace) == [{"one"}] * 2


def test_a_crash_in_the_middle_of_going_back(
    stopped_operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Another process goes on from what the status says."""
    stopped_operator.start()
    rollout = {"maxConcurrent": "100%", "minReadySeconds": 5}
    first = start_several(kubectl, api, namespace, crashing_pod_spec(), "abc", rollout=rollout)
    edit(kubectl, namespace, data=BAD)
    wait_until(lambda: resource(api, namespace)["status"]["latestVersion"] != first, 30, "it begins")

    def on_the_move() -> bool:
        found = fetch_all(api, pykube.Deployment, namespace)
        names = set().union(*(names_in(one["spec"]["template"]["spec"]) for one in found))
        return names != {first} or bool(resource(api, namespace)["status"]["currentVersion"] == first)

    for _ in range(3):
        wait_until(on_the_move, 20, "something has moved")
        stopped_operator.kill()
        stopped_operator.start()

    wait_rolled_back(api, namespace)
    assert targets(api, namespace) == dict.fromkeys("abc", ("Updated", first))
    for name in "abc":
        wait_for_rollout(kubectl, namespace, name)
    assert [modes(cluster, api, namespace, name) for name in "abc"] == [[{"one"}]] * 3


# -- pins --------------------------------------------------------------------------------------------------------------


def test_a_pin_stays_whatever_the_content_and_is_released(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "ab")
    edit(kubectl, namespace, data={"MODE": "two"})
    second = version_of(api, namespace, besides=first)

    edit(kubectl, namespace, pin=first.rpartition("-")[2])
    wait_until(
        lambda: targets(api, namespace) == dict.fromkeys("ab", ("Updated", first)), 30, "all at the pin"
    )
    assert version_of(api, namespace) == first
    assert told_of(api, namespace, first)["cause"] == "Pin"
    edit(kubectl, namespace, data={"MODE": "three"})
    third = predicted(kubectl, "three")
    wait_until(lambda: third in versions(api, namespace), 30, "the content makes a version")
    settle(kubectl, api, versions=True)
    assert version_of(api, namespace) == first
    assert resource(api, namespace)["status"]["latestVersion"] == third
    assert [modes(cluster, api, namespace, name) for name in "ab"] == [[{"one"}]] * 2

    edit(kubectl, namespace, pin=None)
    assert version_of(api, namespace, besides=first) == third
    assert told_of(api, namespace, third)["cause"] == "Unpin"
    assert [modes(cluster, api, namespace, name) for name in "ab"] == [[{"three"}]] * 2
    assert versions(api, namespace) == {first, second, third}


def test_a_pin_to_what_is_not_there_changes_nothing(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "a")
    before = generation(api, namespace, "a")

    edit(kubectl, namespace, pin="kkkkkkkkkk")
    told = wait_condition(api, namespace, "Stalled", "PinNotKept")
    assert first.rpartition("-")[2] in told["message"]
    assert generation(api, namespace, "a") == before
    edit(kubectl, namespace, pin=None)
    assert version_of(api, namespace) == first


# -- a fight -----------------------------------------------------------------------------------------------------------


def test_a_tool_that_writes_the_logical_name_back_is_not_fought_for_ever(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V17, where no admission policy answers: three rounds, then it is left alone and told."""
    kubectl("label", "namespace", namespace, "versionedconfig.io/rewrite=false")
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "a")
    back = json.dumps(
        [
            {"op": "replace", "path": path, "value": "app-cfg"}
            for path in (
                "/spec/template/spec/containers/0/env/0/valueFrom/configMapKeyRef/name",
                "/spec/template/spec/volumes/0/configMap/name",
            )
        ]
    )
    rounds = 0
    while rounds < 6:
        wait_until(lambda: targets(api, namespace).get("a") == ("Updated", first), 30, "a is updated")
        kubectl("patch", "-n", namespace, "deployment/a", "--type=json", "-p", back)
        rounds += 1
        settle(kubectl, api, versions=True)
        if targets(api, namespace).get("a", ("",))[0] == "Conflict":
            break
    assert rounds == 3
    told = wait_condition(api, namespace, "Degraded", "Conflict")
    assert "a" in told["message"]
    assert names_in(template(api, namespace, "a")) == {"app-cfg"}
    # The logical name, and the version: two revisions, however long it went on.
    assert len(fetch_all(api, pykube.ReplicaSet, namespace)) == 2

    edit(kubectl, namespace, data={"MODE": "two"})
    second = version_of(api, namespace, besides=first)
    assert targets(api, namespace)["a"] == ("Updated", second)
    assert get(api, namespace, second, pykube.ConfigMap)["immutable"] is True


def test_stuck_pods_are_replaced_where_that_is_asked_for(
    stopped_operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V10: that pod alone; and a StatefulSet that was created with the logical name gets going."""
    kubectl("apply", "-f", str(ROOT / "manifests/components/replace-stuck-pods/rbac.yaml"))
    kubectl("label", "namespace", namespace, "versionedconfig.io/rewrite=false")
    stopped_operator.start("--replace-stuck-pods")
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout={"minReadySeconds": 5}))
    first = version_of(api, namespace)
    # An init container: others are ready for a moment, and the set's controller goes on to the next pod.
    workload = deployment(spec=crashing_pod_spec("initContainers"), replicas=2, serviceName="web")
    kubectl.create(namespace, {**workload, "kind": "StatefulSet"})
    kubectl("rollout", "status", "-n", namespace, "statefulset/web", "--timeout=60s")
    assert version_of(api, namespace) == first
    untouched = get(api, namespace, "web-0", pykube.Pod)["metadata"]["uid"]

    edit(kubectl, namespace, data=BAD)
    wait_rolled_back(api, namespace)
    kubectl("rollout", "status", "-n", namespace, "statefulset/web", "--timeout=60s")
    assert modes(cluster, api, namespace) == [{"one"}] * 2
    assert get(api, namespace, "web-0", pykube.Pod)["metadata"]["uid"] == untouched
    stopped_operator.stop()
    kubectl("delete", "-f", str(ROOT / "manifests/components/replace-stuck-pods/rbac.yaml"))
