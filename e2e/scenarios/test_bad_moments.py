"""What goes wrong at a bad moment: while something settles, in the middle of a way back, while nobody looks. On real kubelets."""

import json

import pykube

from e2e.harness import (
    Kubectl,
    Operator,
    deployment,
    fetch_all,
    reading_pod_spec,
    versioned_config,
    wait_for_rollout,
    wait_gone,
    wait_until,
)
from e2e.stories import (
    BAD,
    change,
    crashing_pod_spec,
    edit,
    generation,
    get,
    names_in,
    resource,
    start,
    start_several,
    targets,
    template,
    told_of,
    version_of,
    versions,
    wait_condition,
    wait_rolled_back,
)


def test_what_crashes_again_and_again_lets_nobody_pass(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """onFailure: Pause. The container runs between two crashes, and for a moment the target looks well."""
    rollout = {"minReadySeconds": 3, "onFailure": "Pause"}
    start_several(kubectl, api, namespace, crashing_pod_spec(), "ab", rollout=rollout)
    before = generation(api, namespace, "b")

    edit(kubectl, namespace, data=BAD)
    wait_condition(api, namespace, "Degraded", "TargetFailed")

    def restarts() -> int:
        found = fetch_all(api, pykube.Pod, namespace, {"app": "a"})
        return max(
            int(status["restartCount"])
            for one in found
            for status in one["status"].get("containerStatuses", [])
        )

    wait_until(lambda: restarts() >= 3, 90, "it has run and crashed several times")
    assert targets(api, namespace)["a"][0] == "Failed"
    assert generation(api, namespace, "b") == before


def test_a_failure_is_taken_back_while_other_content_settles(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    rollout = {"minReadySeconds": 5, "settleSeconds": 0}
    first = start_several(kubectl, api, namespace, crashing_pod_spec(), "ab", rollout=rollout)
    edit(kubectl, namespace, data=BAD)
    wait_until(lambda: targets(api, namespace)["a"][0] == "Updating", 30, "a is on the move")

    edit(kubectl, namespace, data={"MODE": "three"}, rollout={"settleSeconds": 120})
    wait_until(lambda: targets(api, namespace)["a"] == ("Updated", first), 60, "a is back")
    (ready,) = [c for c in resource(api, namespace)["status"]["conditions"] if c["type"] == "Ready"]
    assert ready["status"] == "False"


def test_what_would_miss_a_key_does_not_go_back(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Its template took a key of the new version meanwhile: gone back, its pods could not start."""
    start_several(kubectl, api, namespace, crashing_pod_spec(), "b", rollout={"minReadySeconds": 10})
    kubectl.create(namespace, deployment("a", reading_pod_spec(), replicas=1))
    wait_until(lambda: targets(api, namespace).get("a", ("",))[0] == "Updated", 60, "a is a target")
    edit(kubectl, namespace, data={**BAD, "NEW": "x"})
    on_the_move = ("Updating", "Failed")
    wait_until(lambda: targets(api, namespace)["b"][0] in on_the_move, 60, "a is through, and it is b's turn")

    version = str(resource(api, namespace)["status"]["currentVersion"])
    env = {"name": "NEW", "valueFrom": {"configMapKeyRef": {"name": version, "key": "NEW"}}}
    add = [{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": env}]
    kubectl("patch", "-n", namespace, "deployment/a", "--type=json", "-p", json.dumps(add))

    told = wait_condition(api, namespace, "Degraded", "TargetFailed")
    wait_until(
        lambda: "cannot go back" in wait_condition(api, namespace, "Degraded", "TargetFailed")["message"],
        30,
        "it says why",
    )
    assert "Deployment b" in told["message"]
    wait_for_rollout(kubectl, namespace, "a")
    assert targets(api, namespace)["a"] == ("Updated", version)


def test_a_target_that_was_made_anew_while_nobody_looked_is_moved(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """It has an older version than the one of that name before it, and nobody undid anything."""
    stopped_operator.start()
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "a")
    second = change(kubectl, api, namespace, "two", first)
    stopped_operator.kill()
    kubectl("delete", "-n", namespace, "deployment/a", "--wait")
    old = json.loads(json.dumps(reading_pod_spec()).replace('"app-cfg"', f'"{first}"'))
    kubectl.create(namespace, deployment("a", old, replicas=1))
    wait_for_rollout(kubectl, namespace, "a")

    stopped_operator.start()
    wait_until(lambda: targets(api, namespace).get("a") == ("Updated", second), 60, "it is moved")


def test_a_version_that_has_failed_is_not_tried_again_because_it_was_deleted(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    start_several(kubectl, api, namespace, crashing_pod_spec(), "a", rollout={"minReadySeconds": 5})
    edit(kubectl, namespace, data=BAD)
    wait_rolled_back(api, namespace)
    wait_for_rollout(kubectl, namespace, "a")
    bad = str(resource(api, namespace)["status"]["latestVersion"])
    before = generation(api, namespace, "a")

    kubectl("delete", "-n", namespace, f"configmap/{bad}", "--wait=false")
    kubectl(
        "patch",
        "-n",
        namespace,
        f"configmap/{bad}",
        "--type=merge",
        "-p",
        '{"metadata":{"annotations":{"versionedconfig.io/release":"gone"}}}',
        check=False,
    )
    wait_until(lambda: bad not in versions(api, namespace), 30, "it is gone")
    edit(kubectl, namespace, historyLimit=7)
    wait_rolled_back(api, namespace)
    assert told_of(api, namespace, bad)["result"] == "Failed"
    assert generation(api, namespace, "a") == before


def test_who_goes_back_to_a_version_that_is_gone_gets_the_current_one(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """An old revision does not hold: somebody may delete what only that needs."""
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "a")
    second = change(kubectl, api, namespace, "two", first)
    kubectl("delete", "-n", namespace, f"configmap/{first}", "--wait")

    kubectl("rollout", "undo", "-n", namespace, "deployment/a")
    wait_until(lambda: names_in(template(api, namespace, "a")) == {second}, 30, "it is moved again")
    wait_for_rollout(kubectl, namespace, "a")
    wait_until(lambda: targets(api, namespace) == {"a": ("Updated", second)}, 30, "it is told")


def test_a_version_that_others_take_from_is_kept(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    first = start(kubectl, api, namespace, replicas=0, historyLimit=0)
    follower = versioned_config("follower", {}, **{"from": [{"kind": "ConfigMap", "name": first}]})
    kubectl.create(namespace, follower)
    version_of(api, namespace, "follower")
    kubectl("delete", "-n", namespace, "deployment/web", "--wait")

    second = change(kubectl, api, namespace, "two", first)
    assert versions(api, namespace) >= {first, second}
    assert version_of(api, namespace, "follower")
    kubectl("delete", "-n", namespace, "vcfg/follower", "--wait")
    change(kubectl, api, namespace, "three", second)
    wait_gone(api, namespace, first)


def test_the_policy_on_deletion_is_the_one_of_the_end(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """It was Delete when the older version was made: what `rollout undo` needs stays all the same."""
    first = start(kubectl, api, namespace, replicas=0, deletionPolicy="Delete")
    second = change(kubectl, api, namespace, "two", first)
    assert names_in(template(api, namespace)) == {second}
    edit(kubectl, namespace, deletionPolicy="RetainInUse")
    wait_until(
        lambda: "versionedconfig.io/deletion-policy" not in annotations(api, namespace, first),
        30,
        "it is noted",
    )

    kubectl("delete", "-n", namespace, "vcfg/app-cfg", "--wait")
    kubectl("rollout", "undo", "-n", namespace, "deployment/web", "--to-revision=1")
    assert versions(api, namespace) == {first, second}
    kubectl("delete", "-n", namespace, "deployment/web", "--wait")
    wait_gone(api, namespace, first)
    wait_gone(api, namespace, second)


def annotations(api: pykube.HTTPClient, namespace: str, name: str) -> dict[str, str]:
    """Of a ConfigMap."""
    return dict(get(api, namespace, name, pykube.ConfigMap)["metadata"].get("annotations", {}))
