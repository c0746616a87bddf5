"""Content becomes versions, workloads move to them on real kubelets, and old versions stay while anything needs them.

Waits are on conditions. "It does not happen" is shown at the end of something that the operator did afterwards.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pykube
import pytest

from e2e import harness
from e2e.harness import (
    IN_USE,
    Cluster,
    Kubectl,
    Operator,
    Writes,
    config_map,
    deployment,
    fetch,
    pod,
    pods_read,
    reading_pod_spec,
    settle,
    unscheduled,
    versioned_config,
    wait_for_rollout,
    wait_gone,
    wait_until,
)
from e2e.stories import (
    change,
    edit,
    generation,
    get,
    identity,
    modes,
    names_in,
    predicted,
    replica_sets,
    resource,
    revision_with,
    start,
    start_several,
    targets,
    template,
    version_of,
    versions,
    wait_condition,
    wait_moved,
    wait_ready_reason,
    wait_released,
    watched,
)

MIB = 1 << 20


# -- one change, one rollout -----------------------------------------------------------------------------------------


def test_two_configs_changed_together_are_one_rollout(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V1"""
    spec = reading_pod_spec("a")
    spec["volumes"][0]["configMap"]["name"] = "b"

    def apply(mode: str) -> None:
        pair = [versioned_config(name, {"MODE": f"{name}-{mode}"}) for name in ("a", "b")]
        kubectl.apply(namespace, *pair)

    apply("1")
    current = {version_of(api, namespace, name) for name in ("a", "b")}
    kubectl.create(namespace, deployment(spec=spec, replicas=2))
    wait_until(lambda: names_in(template(api, namespace)) == current, 30, "web is at both versions")
    wait_for_rollout(kubectl, namespace)

    for mode in ("2", "3"):
        before = replica_sets(api, namespace)
        old = {name: str(resource(api, namespace, name)["status"]["currentVersion"]) for name in ("a", "b")}
        apply(mode)
        current = {version_of(api, namespace, name, besides=old[name]) for name in ("a", "b")}
        assert names_in(template(api, namespace)) == current
        after = replica_sets(api, namespace)
        assert after.keys() >= before.keys()
        assert [after[name] for name in after.keys() - before.keys()] == [max(before.values()) + 1]
        assert modes(cluster, api, namespace) == [{f"a-{mode}", f"b-{mode}"}] * 2


@pytest.mark.parametrize("spread", [1, "100%"])
def test_two_configs_of_several_workloads_are_one_rollout_of_each(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, spread: int | str
) -> None:
    """V1, also where they move one after the other, and one of both has a target more."""
    spec = reading_pod_spec("a")
    spec["volumes"][0]["configMap"]["name"] = "b"
    workloads = {"api": reading_pod_spec("a"), "web": spec, "xeb": spec, "yeb": spec}

    def apply(mode: str) -> None:
        rollout = {"maxConcurrent": spread}
        kubectl.apply(
            namespace, *(versioned_config(name, {"MODE": mode}, rollout=rollout) for name in ("a", "b"))
        )

    apply("1")
    old = {name: version_of(api, namespace, name) for name in ("a", "b")}
    kubectl.create(namespace, *(deployment(name, pods, replicas=1) for name, pods in workloads.items()))
    for name, pods in workloads.items():
        wanted = {old["a"]} if pods is not spec else set(old.values())
        wait_until(lambda: names_in(template(api, namespace, name)) == wanted, 30, f"{name} is at it")  # noqa: B023
        wait_for_rollout(kubectl, namespace, name)
    before = {name: len(replica_sets(api, namespace, name)) for name in workloads}

    apply("2")
    for name in ("a", "b"):
        version_of(api, namespace, name, besides=old[name])
    assert {name: len(replica_sets(api, namespace, name)) for name in workloads} == {
        name: count + 1 for name, count in before.items()
    }


def test_metadata_alone_rolls_nothing(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V4"""
    first = start(kubectl, api, namespace, metadata={"labels": {"team": "x"}, "annotations": {"about": "y"}})
    uid = get(api, namespace, first, pykube.ConfigMap)["metadata"]["uid"]
    kubectl("label", "-n", namespace, f"configmap/{first}", "others=stay")
    before = generation(api, namespace), replica_sets(api, namespace)

    def wait_metadata(labels: dict[str, str], annotations: dict[str, str]) -> None:
        def there() -> bool:
            meta = get(api, namespace, first, pykube.ConfigMap)["metadata"]
            found = [
                {key: value for key, value in meta[field].items() if "versionedconfig.io/" not in key}
                for field in ("labels", "annotations")
            ]
            return found == [labels, annotations]

        wait_until(there, 15, f"the version has {labels} and {annotations}")
        assert version_of(api, namespace) == first

    wait_metadata({"team": "x", "others": "stay"}, {"about": "y"})
    edit(kubectl, namespace, metadata={"labels": {"team": "z", "tier": "web"}, "annotations": {"more": "w"}})
    wait_metadata({"team": "z", "tier": "web", "others": "stay"}, {"about": "y", "more": "w"})
    edit(kubectl, namespace, metadata={"labels": {"team": None}, "annotations": None})
    wait_metadata({"tier": "web", "others": "stay"}, {})
    kubectl("label", "-n", namespace, "vcfg/app-cfg", "of=the-versionedconfig-itself")
    settle(kubectl, api, versions=True)
    wait_metadata({"tier": "web", "others": "stay"}, {})

    assert get(api, namespace, first, pykube.ConfigMap)["metadata"]["uid"] == uid
    assert versions(api, namespace) == {first}
    assert (generation(api, namespace), replica_sets(api, namespace)) == before


def test_every_reference_is_rewritten_in_one_patch(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V23: also in an init container; what only has a similar name, or is a Secret of that name, stays."""
    spec = reading_pod_spec()
    key = {"name": "app-cfg", "key": "MODE"}
    extra = {"configMapRef": {"name": "app-cfg-extra"}}
    init = {
        "name": "i",
        "image": "busybox",
        "command": ["true"],
        "envFrom": [{"configMapRef": {"name": "app-cfg"}}, extra],
    }
    second = {
        **spec["containers"][0],
        "name": "d",
        "env": [{"name": "M", "valueFrom": {"configMapKeyRef": key}}],
        "envFrom": [extra, {"secretRef": {"name": "app-cfg", "optional": True}}],
    }
    sources = [
        {"configMap": {"name": "app-cfg-extra"}},
        {"configMap": {"name": "app-cfg", "items": [{"key": "MODE", "path": "m"}]}},
        {"secret": {"name": "app-cfg", "optional": True}},
    ]
    spec["initContainers"] = [init]
    spec["containers"].append(second)
    spec["volumes"].append({"name": "p", "projected": {"sources": sources}})

    kubectl.create(namespace, config_map("app-cfg-extra"), versioned_config("app-cfg", {"MODE": "one"}))
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(spec=spec, replicas=1))
    wait_for_rollout(kubectl, namespace)
    assert version_of(api, namespace) == first
    before = generation(api, namespace), replica_sets(api, namespace), template(api, namespace)
    # Five references to it, and as many that are not.
    assert json.dumps(before[2]).count(f'"{first}"') == 5
    assert json.dumps(before[2]).count('"app-cfg-extra"') == 3
    assert json.dumps(before[2]).count('"app-cfg"') == 2

    second_version = change(kubectl, api, namespace, "two", first)
    (uid, number), sets, old = before
    assert template(api, namespace) == json.loads(json.dumps(old).replace(first, second_version))
    assert generation(api, namespace) == (uid, number + 1)
    assert len(replica_sets(api, namespace)) == len(sets) + 1


def test_what_changed_while_the_operator_was_down_is_one_rollout(
    stopped_operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    audit_log: Path,
) -> None:
    """V25: and another start, with nothing to do, writes nothing."""
    stopped_operator.start()
    first = start(kubectl, api, namespace, replicas=2)
    before = replica_sets(api, namespace)

    stopped_operator.stop()
    edit(kubectl, namespace, data={"MODE": "two"})
    edit(kubectl, namespace, data={"MODE": "three"})
    stopped_operator.start()
    version_of(api, namespace, besides=first)
    assert modes(cluster, api, namespace) == [{"three"}] * 2
    after = replica_sets(api, namespace)
    assert [after[name] for name in after.keys() - before.keys()] == [max(before.values()) + 1]
    assert len(versions(api, namespace)) == 2

    wait_released(api, namespace, first)
    stopped_operator.stop()
    writes = Writes(audit_log)
    stopped_operator.start()
    settle(kubectl, api, versions=True)
    assert writes.seen(), "the audit log shows nothing at all"
    # Namespaces of earlier tests may be on their way out.
    assert writes.seen(without=lambda n: n != namespace and n.startswith(("t-", "settle-"))) == []


def test_zero_replicas(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V14: it moves at once, its template alone keeps the version, and scaled up it reads the new content."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, historyLimit=0))
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(replicas=0, revisionHistoryLimit=0))
    wait_moved(kubectl, api, namespace, first)
    second = change(kubectl, api, namespace, "two", first)
    assert targets(api, namespace) == {"web": ("Updated", second)}
    # No revision can bring it back, and none is to be kept for the history.
    wait_gone(api, namespace, first)
    assert versions(api, namespace) == {second}

    kubectl("scale", "-n", namespace, "deployment/web", "--replicas=2")
    wait_for_rollout(kubectl, namespace)
    assert modes(cluster, api, namespace) == [{"two"}] * 2


def test_exactly_one_mebibyte(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V6: bytes count, not characters."""
    half = MIB // 2
    data = {"ASCII": "x" * (half - 3), "UTF8": "é" * (half // 2), "MODE": "one"}
    kubectl.create(namespace, versioned_config("app-cfg", data))
    version = version_of(api, namespace)
    kubectl.create(namespace, deployment(replicas=1))
    wait_moved(kubectl, api, namespace, version)
    (reading,) = pods_read(cluster, api, namespace)
    assert {f"v/{key}": value for key, value in data.items()}.items() <= reading.files.items()

    edit(kubectl, namespace, data={"MODE": "four"})
    refusal = wait_condition(api, namespace, "Stalled", "InvalidContent")
    assert str(MIB + 1) in refusal["message"]


# -- back and forth --------------------------------------------------------------------------------------------------


def test_content_that_comes_back_has_its_old_name(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V5: the same object while it exists; made again when somebody deleted it."""
    first = start(kubectl, api, namespace)
    uid = get(api, namespace, first, pykube.ConfigMap)["metadata"]["uid"]
    second = change(kubectl, api, namespace, "two", first)
    assert change(kubectl, api, namespace, "one", second) == first
    assert get(api, namespace, first, pykube.ConfigMap)["metadata"]["uid"] == uid
    assert modes(cluster, api, namespace) == [{"one"}]

    assert change(kubectl, api, namespace, "two", first) == second
    kubectl("delete", "-n", namespace, f"configmap/{first}", "--timeout=30s")
    assert change(kubectl, api, namespace, "one", second) == first
    again = get(api, namespace, first, pykube.ConfigMap)
    assert again["metadata"]["uid"] != uid
    assert (again["data"], again["immutable"]) == ({"MODE": "one"}, True)
    assert modes(cluster, api, namespace) == [{"one"}]


@pytest.mark.parametrize(("mode", "immutable"), [("stranger", False), ("two", True)])
def test_a_strangers_object_is_never_touched(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, mode: str, immutable: bool
) -> None:
    """V5: not even one that happens to hold the same content: whoever made it may delete it."""
    first = start(kubectl, api, namespace)
    taken = predicted(kubectl, "two")
    kubectl.create(namespace, config_map(taken, {"MODE": mode}, immutable=immutable))
    before = identity(api, namespace, taken), generation(api, namespace), replica_sets(api, namespace)

    edit(kubectl, namespace, data={"MODE": "two"})
    refusal = wait_condition(api, namespace, "Stalled", "NameConflict")
    assert taken in refusal["message"]
    settle(kubectl, api, versions=True)
    assert (
        identity(api, namespace, taken),
        generation(api, namespace),
        replica_sets(api, namespace),
    ) == before
    assert names_in(template(api, namespace)) == {first}

    kubectl("delete", "-n", namespace, f"configmap/{taken}")
    assert version_of(api, namespace) == taken
    assert get(api, namespace, taken, pykube.ConfigMap)["data"] == {"MODE": "two"}


def test_an_undo_stays(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V8: until the content changes, whatever else happens meanwhile."""
    first = start(kubectl, api, namespace, historyLimit=0)
    kubectl.create(namespace, deployment("other", replicas=0))
    wait_moved(kubectl, api, namespace, first, "other")
    second = change(kubectl, api, namespace, "two", first)
    third = change(kubectl, api, namespace, "three", second)

    def undo(to: str, mode: str, *args: str) -> dict[str, tuple[str, str]]:
        kubectl("rollout", "undo", "-n", namespace, "deployment/web", *args)
        wait_moved(kubectl, api, namespace, to)
        assert modes(cluster, api, namespace) == [{mode}]
        apart = {"other": ("Updated", third), "web": ("Overridden", to)}
        wait_until(lambda: targets(api, namespace) == apart, 15, "the status tells of the undo")
        return apart

    undo(second, "two")
    apart = undo(first, "one", f"--to-revision={revision_with(api, namespace, first)}")
    undone = generation(api, namespace)

    # Everything that makes the operator look again.
    kubectl("scale", "-n", namespace, "deployment/other", "--replicas=1")
    wait_for_rollout(kubectl, namespace, "other")
    edit(kubectl, namespace, metadata={"labels": {"looked": "again"}})
    kubectl("label", "-n", namespace, "deployment/web", "looked=again")
    settle(kubectl, api, versions=True)
    operator.kill()
    operator.start()
    settle(kubectl, api, versions=True)
    assert version_of(api, namespace) == third
    assert generation(api, namespace) == undone
    assert targets(api, namespace) == apart
    # Each of them can be gone back to, so none is collected.
    assert versions(api, namespace) == {first, second, third}

    fourth = change(kubectl, api, namespace, "four", third)
    assert targets(api, namespace) == {"other": ("Updated", fourth), "web": ("Updated", fourth)}
    assert modes(cluster, api, namespace) == [{"four"}]


# -- several targets -------------------------------------------------------------------------------------------------


def test_one_at_a_time_in_the_order_of_names(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """maxConcurrent: 1"""
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "dbca")
    with watched(api, namespace, first) as record:
        change(kubectl, api, namespace, "two", first)
    assert record.moved() == ["a", "b", "c", "d"]
    assert record.most_on_the_move() == 1
    assert [modes(cluster, api, namespace, name) for name in "abcd"] == [[{"two"}]] * 4


def test_a_target_that_does_not_get_ready_stops_the_rollout(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """onFailure: Pause, and a fault that no pod shows: the others stay as they are, until the content is mended."""
    rollout = {"onFailure": "Pause", "progressDeadlineSeconds": 3}
    first = start_several(kubectl, api, namespace, reading_pod_spec(), "ab", rollout=rollout)
    other = generation(api, namespace, "b")
    # No new pod can be made.
    kubectl("create", "-n", namespace, "quota", "full", "--hard=pods=2")

    edit(kubectl, namespace, data={"MODE": "two"})
    told = wait_condition(api, namespace, "Degraded", "TargetFailed")
    assert "Deployment a " in told["message"]
    settle(kubectl, api, versions=True)
    assert generation(api, namespace, "b") == other
    bad = str(resource(api, namespace)["status"]["currentVersion"])
    assert targets(api, namespace) == {"a": ("Failed", bad), "b": ("Waiting", first)}
    # The pod that worked before still does.
    assert {"one"} in modes(cluster, api, namespace, "a")
    assert versions(api, namespace) == {first, bad}

    kubectl("delete", "-n", namespace, "quota/full")
    assert version_of(api, namespace) == bad
    assert targets(api, namespace) == dict.fromkeys("ab", ("Updated", bad))
    assert [modes(cluster, api, namespace, name) for name in "ab"] == [[{"two"}]] * 2


def test_paused(operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    """rollout.paused: versions are made, targets stay, and go on from there."""
    first = start(kubectl, api, namespace, replicas=0)
    before = generation(api, namespace)
    edit(kubectl, namespace, rollout={"paused": True}, data={"MODE": "two"})
    wait_ready_reason(api, namespace, "Paused")
    settle(kubectl, api, versions=True)
    second = str(resource(api, namespace)["status"]["currentVersion"])
    assert versions(api, namespace) == {first, second}
    assert targets(api, namespace) == {"web": ("Waiting", first)}
    assert generation(api, namespace) == before

    edit(kubectl, namespace, rollout={"paused": False})
    assert version_of(api, namespace) == second
    assert names_in(template(api, namespace)) == {second}


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_history(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path
) -> None:
    """What a pod, a template or an old revision refers to is kept, and historyLimit more; the rest goes, alone."""
    writes = Writes(audit_log)
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, historyLimit=1))
    first = version_of(api, namespace)
    kubectl.create(
        namespace,
        pod("reads-the-first", unscheduled(reading_pod_spec(first))),
        deployment(replicas=0, revisionHistoryLimit=1),
        config_map("app-cfg-0123456789"),
        config_map("app-cfg"),
    )
    wait_moved(kubectl, api, namespace, first)
    made = [first]
    for mode in ("two", "three", "four", "five"):
        made.append(change(kubectl, api, namespace, mode, made[-1]))
    _, second, third, fourth, fifth = made
    wait_gone(api, namespace, second)

    def kept() -> dict[str, str]:
        told = resource(api, namespace)["status"]["versions"]
        return {one["name"]: one["state"] for one in told}

    states = {fifth: "Current", fourth: "InUse", third: "Unused", first: "InUse"}
    wait_until(lambda: kept() == states, 15, f"the status tells {states}")
    assert list(kept()) == [fifth, fourth, third, first]
    assert versions(api, namespace) == {first, third, fourth, fifth}
    settle(kubectl, api, versions=True)

    # The pod goes: its version is unused now, and the older one of two.
    kubectl("delete", "-n", namespace, "pod/reads-the-first", "--grace-period=0", "--force")
    wait_gone(api, namespace, first)
    assert versions(api, namespace) == {third, fourth, fifth}
    deletions = [line for line in writes.seen() if line.startswith("delete") and f" {namespace}/" in line]
    assert deletions == [f"delete configmaps {namespace}/{name}: 200" for name in (second, first)]


def test_deleting_the_versioned_config(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Versions in use stay and their workloads run on; unused ones go, and the others when nothing uses them."""
    first = start(kubectl, api, namespace)
    second = change(kubectl, api, namespace, "two", first)
    # Nothing uses this one.
    kubectl.create(namespace, versioned_config("alone", {"MODE": "one"}))
    alone = version_of(api, namespace, "alone")
    before = generation(api, namespace)

    kubectl("delete", "-n", namespace, "vcfg/app-cfg", "vcfg/alone")
    wait_gone(api, namespace, alone)
    settle(kubectl, api, versions=True)
    assert versions(api, namespace) == {first, second}
    assert IN_USE in harness.finalizers(fetch(api, pykube.ConfigMap, namespace, second))
    assert generation(api, namespace) == before
    assert modes(cluster, api, namespace) == [{"two"}]

    kubectl("delete", "-n", namespace, "deployment/web")
    wait_gone(api, namespace, second)
    wait_gone(api, namespace, first)


# -- what cannot work ------------------------------------------------------------------------------------------------

REFUSED_AT_ADMISSION: dict[str, tuple[dict[str, Any], str]] = {
    "too large": ({"data": {"MODE": "x" * (MIB + 1)}}, "1048576 bytes"),
    "a key that is no file name": ({"data": {"MODE": None, "a/b": "x"}}, "cannot be a file name"),
    "a key that leads out": ({"data": {"..": "x"}}, "cannot be a file name"),
    "a long key": ({"data": {"k" * 254: "x"}}, "at most 253 characters"),
    "a key in both": ({"binaryData": {"MODE": "eA=="}}, "both data and binaryData"),
    "nothing in it": ({"data": None}, "there is nothing in it"),
    "empty data": ({"data": {"MODE": None}}, "there is nothing in it"),
    "not base64": ({"binaryData": {"b": "%"}}, "binaryData.b"),
}
REFUSED_BY_CONDITION: dict[str, tuple[dict[str, Any], str]] = {
    "too large in bytes": ({"data": {"MODE": "é" * (MIB // 2 + 1)}}, f"{MIB + 2} bytes"),
    "too large in base64": (
        {"binaryData": {"b": base64.b64encode(bytes(MIB - 2)).decode()}},
        f"{MIB + 1} bytes",
    ),
    "base64 cut short": ({"binaryData": {"b": "eA="}}, "'b' in binaryData is not base64"),
}


def test_content_that_cannot_work_changes_nothing(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Refused by the API server where it can tell, else with a condition that says what to change."""
    first = start(kubectl, api, namespace)
    before = generation(api, namespace), replica_sets(api, namespace)

    for what, (spec, words) in REFUSED_AT_ADMISSION.items():
        with pytest.raises(harness.CommandFailed) as refusal:
            edit(kubectl, namespace, **spec)
        assert words in str(refusal.value), what
    for what, (spec, words) in REFUSED_BY_CONDITION.items():
        edit(kubectl, namespace, **spec)
        told = wait_condition(api, namespace, "Stalled", "InvalidContent")
        assert words in told["message"], what
        assert resource(api, namespace)["status"]["currentVersion"] == first
        edit(kubectl, namespace, data={"MODE": "one"}, binaryData=None)
        assert version_of(api, namespace) == first, what

    long_name = {**versioned_config("n" * 243, {"MODE": "one"})}
    with pytest.raises(harness.CommandFailed, match="at most 242 characters"):
        kubectl.create(namespace, long_name)
    assert versions(api, namespace) == {first}
    assert (generation(api, namespace), replica_sets(api, namespace)) == before
    assert modes(cluster, api, namespace) == [{"one"}]


def test_the_longest_name(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V7: 242 characters, longer than a label's value may be."""
    name = "n" * 242
    kubectl.create(namespace, versioned_config(name, {"MODE": "one"}))
    version = version_of(api, namespace, name)
    assert len(version) == 253
    assert version == predicted(kubectl, "one", name)
    annotations = get(api, namespace, version, pykube.ConfigMap)["metadata"]["annotations"]
    assert annotations["versionedconfig.io/name"] == f"{namespace}/{name}"
