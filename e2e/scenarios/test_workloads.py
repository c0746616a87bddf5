"""Every kind of workload moves to a new version in its own way, or is left alone, and its pods really read it.

Waits are on conditions. "It does not happen" is shown at the end of something that the operator did afterwards.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pykube
import pytest

from e2e.harness import (
    Cluster,
    Kubectl,
    Manifest,
    Operator,
    Writes,
    config_map,
    deployment,
    fetch,
    fetch_all,
    pod,
    pods_read,
    reading_pod_spec,
    settle,
    unscheduled,
    versioned_config,
    wait_gone,
    wait_until,
)
from e2e.stories import (
    change,
    edit,
    get,
    identity,
    modes,
    names_in,
    resource,
    targets,
    version_of,
    versioned_secret,
    versions,
    wait_moved,
)

KINDS: Mapping[str, type[Any]] = {
    "CronJob": pykube.CronJob,
    "DaemonSet": pykube.DaemonSet,
    "Deployment": pykube.Deployment,
    "Job": pykube.Job,
    "ReplicaSet": pykube.ReplicaSet,
    "StatefulSet": pykube.StatefulSet,
}


# -- words -----------------------------------------------------------------------------------------------------------


def workload(kind: str, name: str = "web", spec: Manifest | None = None, **more: Any) -> Manifest:
    """One of reading pods if nothing else is said; a CronJob is due once a year."""
    pods = {"metadata": {"labels": {"app": name}}, "spec": spec or reading_pod_spec()}
    if kind in ("Job", "CronJob"):
        pods["spec"] = {**pods["spec"], "restartPolicy": "Never"}
        body: Manifest = {"backoffLimit": 0, "template": pods}
    else:
        body = {"selector": {"matchLabels": {"app": name}}, "template": pods}
    if kind == "CronJob":
        body = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": body}}
    elif kind == "StatefulSet":
        body["serviceName"] = name
    elif kind == "DaemonSet":
        # As many nodes as there are at once: no scenario is about how a DaemonSet goes about it.
        body["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": "100%"}}
    version = "batch/v1" if kind in ("Job", "CronJob") else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {**body, **more}}


def pod_spec(found: Manifest) -> Manifest:
    """Of the object's template."""
    spec = found["spec"]
    template: Manifest = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    return dict(template["template"]["spec"])


def template(api: pykube.HTTPClient, namespace: str, kind: str, name: str = "web") -> Manifest:
    """The pod spec of the workload's template."""
    return pod_spec(get(api, namespace, name, KINDS[kind]))


def generation(api: pykube.HTTPClient, namespace: str, kind: str, name: str = "web") -> tuple[str, int]:
    """Changes with every write to its spec, and with the object."""
    meta = get(api, namespace, name, KINDS[kind])["metadata"]
    return str(meta["uid"]), int(meta["generation"])


def start(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, *workloads: Manifest, **spec: Any) -> str:
    """A VersionedConfig `app-cfg` and workloads that use it; waits until all is well. The version.

    They have it from the beginning: the pods that most kinds would make with the logical name cannot start, and are
    somebody else's to delete."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, **spec))
    first = version_of(api, namespace)
    kubectl.create(namespace, *json.loads(json.dumps(workloads).replace('"app-cfg"', f'"{first}"')))
    wait_at(api, namespace, first, *workloads)
    return first


def wait_at(api: pykube.HTTPClient, namespace: str, version: str, *workloads: Manifest) -> None:
    """Until the workloads refer to that version alone, and the VersionedConfig tells that they are through."""
    wanted = {one["metadata"]["name"]: ("Updated", version) for one in workloads}
    wait_until(lambda: targets(api, namespace).items() >= wanted.items(), 60, f"{wanted}")
    for one in workloads:
        assert names_in(template(api, namespace, one["kind"], one["metadata"]["name"])) == {version}


def wait_targets(api: pykube.HTTPClient, namespace: str, wanted: Mapping[str, tuple[str, str]]) -> None:
    """Until the status tells exactly that."""
    wait_until(lambda: targets(api, namespace) == wanted, 30, f"the targets are {wanted}")


def told(api: pykube.HTTPClient, namespace: str, version: str) -> Manifest:
    """What the status tells of that version."""
    (found,) = [one for one in resource(api, namespace)["status"]["versions"] if one["name"] == version]
    return dict(found)


def wait_users(
    api: pykube.HTTPClient,
    namespace: str,
    version: str,
    *,
    pods: int = 0,
    revisions: int = 0,
    workloads: tuple[str, ...] = (),
) -> None:
    """Until the status tells who refers to that version, and of nobody else."""
    some = {"pods": pods, "revisions": revisions, "workloads": list(workloads)}
    wanted = {key: value for key, value in some.items() if value}
    wait_until(
        lambda: told(api, namespace, version).get("users", {}) == wanted, 20, f"{version} has users {wanted}"
    )


def delete_pods(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, *names: str) -> None:
    """Delete pods and wait until others are there in their places and run. Names may come back."""

    def live() -> dict[str, Manifest]:
        found = fetch_all(api, pykube.Pod, namespace)
        return {pod["metadata"]["uid"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    old = live()
    kubectl("delete", "-n", namespace, *(f"pod/{name}" for name in names))

    def replaced() -> bool:
        now = live()
        running = [found for found in now.values() if found.get("status", {}).get("phase") == "Running"]
        return len(old.keys() - now.keys()) == len(names) and len(running) == len(old)

    wait_until(replaced, 60, f"{', '.join(names)} are replaced")


def pod_names(api: pykube.HTTPClient, namespace: str, app: str = "web") -> list[str]:
    return sorted(str(one["metadata"]["name"]) for one in fetch_all(api, pykube.Pod, namespace, {"app": app}))


# -- kinds that replace their pods -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "pods"), [("Deployment", 2), ("StatefulSet", 2), ("DaemonSet", 3)])
def test_pods_are_replaced(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    kind: str,
    pods: int,
) -> None:
    """Once per change, and the status tells truly who uses which version, since when and why."""
    pods = len(cluster.nodes) if kind == "DaemonSet" else pods
    more: Manifest = {} if kind == "DaemonSet" else {"replicas": pods}
    web = workload(kind, **more)
    first = start(kubectl, api, namespace, web)
    assert modes(cluster, api, namespace) == [{"one"}] * pods
    uid, number = generation(api, namespace, kind)
    old = told(api, namespace, first)

    second = change(kubectl, api, namespace, "two", first)
    assert modes(cluster, api, namespace) == [{"two"}] * pods
    assert generation(api, namespace, kind) == (uid, number + 1)
    assert targets(api, namespace) == {"web": ("Updated", second)}
    # Of a Deployment the current revision is told too: a ReplicaSet is what an undo brings back.
    wait_users(api, namespace, second, pods=pods, revisions=1, workloads=(f"{kind}/web",))
    wait_users(api, namespace, first, revisions=1)

    status = resource(api, namespace)["status"]
    assert (status["targetsSummary"], status["stableVersion"]) == ("1/1", second)
    now, before = told(api, namespace, second), told(api, namespace, first)
    assert (now["state"], now["cause"], now["result"]) == ("Current", "SpecChange", "Succeeded")
    assert (before["state"], before["cause"], before["result"]) == ("InUse", "SpecChange", "Succeeded")
    assert now["since"] == status["currentSince"]
    assert before["since"] == old["since"]
    made = get(api, namespace, second, pykube.ConfigMap)["metadata"]["creationTimestamp"]
    assert now["created"] == made
    # The version is there before it is current; a creationTimestamp has no fractions.
    assert datetime.fromisoformat(before["since"]) < datetime.fromisoformat(now["since"])
    assert datetime.fromisoformat(made) <= datetime.fromisoformat(now["since"])


def test_a_partition(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V11: through when the pods from the partition on are; the others keep their version until it is lowered."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    web = workload("StatefulSet", replicas=3, updateStrategy=strategy, podManagementPolicy="Parallel")
    first = start(kubectl, api, namespace, web, historyLimit=0)

    second = change(kubectl, api, namespace, "two", first)
    assert modes(cluster, api, namespace) == [{"one"}, {"one"}, {"two"}]
    assert targets(api, namespace) == {"web": ("Updated", second)}
    wait_users(api, namespace, first, pods=2, revisions=1)
    assert told(api, namespace, first)["state"] == "InUse"
    # One of the others starts again: it still reads what it did.
    delete_pods(kubectl, api, namespace, "web-0")
    assert modes(cluster, api, namespace) == [{"one"}, {"one"}, {"two"}]

    patch = json.dumps({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
    kubectl("patch", "-n", namespace, "statefulset/web", "-p", patch)
    kubectl("rollout", "status", "-n", namespace, "statefulset/web", "--timeout=60s")
    assert modes(cluster, api, namespace) == [{"two"}] * 3
    wait_users(api, namespace, second, pods=3, revisions=1, workloads=("StatefulSet/web",))
    assert version_of(api, namespace) == second


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_on_delete(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    kind: str,
) -> None:
    """V11: the template moves, and nobody waits; a pod that somebody deletes comes back with the new content."""
    more: Manifest = {} if kind == "DaemonSet" else {"replicas": 2}
    web = workload(kind, updateStrategy={"type": "OnDelete"}, **more)
    first = start(kubectl, api, namespace, web, historyLimit=0)
    count = len(pod_names(api, namespace))
    assert modes(cluster, api, namespace) == [{"one"}] * count

    second = change(kubectl, api, namespace, "two", first)
    wait_targets(api, namespace, {"web": ("Manual", second)})
    assert version_of(api, namespace) == second
    (target,) = resource(api, namespace)["status"]["targets"]
    assert "deletes them" in target["message"]
    settle(kubectl, api, versions=True)
    assert modes(cluster, api, namespace) == [{"one"}] * count
    wait_users(api, namespace, first, pods=count, revisions=1)

    one, *others = pod_names(api, namespace)
    delete_pods(kubectl, api, namespace, one)
    assert sorted(modes(cluster, api, namespace)[i] == {"two"} for i in range(count)) == [False] * (
        count - 1
    ) + [True]
    wait_targets(api, namespace, {"web": ("Manual", second)})
    delete_pods(kubectl, api, namespace, *others)
    assert modes(cluster, api, namespace) == [{"two"}] * count
    wait_targets(api, namespace, {"web": ("Updated", second)})


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_an_undo_stays(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    kind: str,
) -> None:
    """V8: until the content changes, also for kinds whose revisions are ControllerRevisions."""
    more: Manifest = {} if kind == "DaemonSet" else {"replicas": 1}
    web = workload(kind, **more)
    first = start(kubectl, api, namespace, web, historyLimit=0)
    count = len(pod_names(api, namespace))
    second = change(kubectl, api, namespace, "two", first)

    kubectl("rollout", "undo", "-n", namespace, f"{kind.lower()}/web")
    kubectl("rollout", "status", "-n", namespace, f"{kind.lower()}/web", "--timeout=60s")
    assert modes(cluster, api, namespace) == [{"one"}] * count
    wait_targets(api, namespace, {"web": ("Overridden", first)})
    undone = generation(api, namespace, kind)
    edit(kubectl, namespace, metadata={"labels": {"looked": "again"}})
    kubectl("label", "-n", namespace, f"{kind.lower()}/web", "looked=again")
    operator.kill()
    operator.start()
    settle(kubectl, api, versions=True)
    assert version_of(api, namespace) == second
    assert generation(api, namespace, kind) == undone
    assert targets(api, namespace) == {"web": ("Overridden", first)}
    assert versions(api, namespace) == {first, second}

    third = change(kubectl, api, namespace, "three", second)
    assert targets(api, namespace) == {"web": ("Updated", third)}
    assert modes(cluster, api, namespace) == [{"three"}] * count


def test_an_undo_while_the_operator_is_down(
    stopped_operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V8: a StatefulSet's revisions tell of it afterwards."""
    stopped_operator.start()
    first = start(kubectl, api, namespace, workload("StatefulSet", replicas=1))
    second = change(kubectl, api, namespace, "two", first)
    stopped_operator.stop()
    kubectl("rollout", "undo", "-n", namespace, "statefulset/web")
    kubectl("rollout", "status", "-n", namespace, "statefulset/web", "--timeout=60s")
    undone = generation(api, namespace, "StatefulSet")
    stopped_operator.start()
    wait_targets(api, namespace, {"web": ("Overridden", first)})
    settle(kubectl, api, versions=True)
    assert generation(api, namespace, "StatefulSet") == undone
    assert version_of(api, namespace) == second
    assert modes(cluster, api, namespace) == [{"one"}]


# -- kinds that do not -----------------------------------------------------------------------------------------------


def test_a_cron_job(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Its next Job gets the new content. A Job keeps its version while it runs, and not when it has finished."""
    spec = reading_pod_spec()
    ends = {"name": "app-cfg", "key": "EXIT", "optional": True}
    spec["containers"][0]["env"].append({"name": "EXIT", "valueFrom": {"configMapKeyRef": ends}})
    cron = workload("CronJob", spec=spec, successfulJobsHistoryLimit=10)
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one", "EXIT": "0"}, historyLimit=0))
    first = version_of(api, namespace)
    kubectl.create(namespace, cron)
    wait_at(api, namespace, first, cron)

    def run(job: str) -> None:
        kubectl("create", "job", "-n", namespace, job, "--from=cronjob/web")

    run("finished")
    kubectl("wait", "-n", namespace, "job/finished", "--for=condition=Complete", "--timeout=60s")
    edit(kubectl, namespace, data={"EXIT": None})
    second = version_of(api, namespace, besides=first)
    run("running")
    wait_until(lambda: [{"one"}] == modes(cluster, api, namespace), 30, "the Job runs")
    wait_users(api, namespace, second, pods=1, workloads=("CronJob/web", "Job/running"))
    # The finished Job refers to it, and that does not count.
    wait_gone(api, namespace, first)

    uid, number = generation(api, namespace, "CronJob")
    third = change(kubectl, api, namespace, "three", second)
    assert targets(api, namespace) == {"web": ("Updated", third)}
    assert generation(api, namespace, "CronJob") == (uid, number + 1)
    run("next")
    wait_until(lambda: {"three"} in modes(cluster, api, namespace), 30, "the next Job runs")
    wait_users(api, namespace, third, pods=1, workloads=("CronJob/web", "Job/next"))
    wait_users(api, namespace, second, pods=1, workloads=("Job/running",))
    assert names_in(template(api, namespace, "Job", "running")) == {second}
    assert names_in(template(api, namespace, "Job", "finished")) == {first}

    kubectl("delete", "-n", namespace, "job/running")
    wait_gone(api, namespace, second)
    assert versions(api, namespace) == {third}


def test_a_suspended_cron_job(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V15: its template moves; it stays suspended, and no Job is made though one is due every minute."""
    web = workload("CronJob", schedule="* * * * *", suspend=True)
    first = start(kubectl, api, namespace, web, historyLimit=0)
    before = get(api, namespace, "web", pykube.CronJob)["spec"]
    second = change(kubectl, api, namespace, "two", first)
    after = get(api, namespace, "web", pykube.CronJob)["spec"]
    assert after == json.loads(json.dumps(before).replace(first, second))
    assert after["suspend"] is True
    assert targets(api, namespace) == {"web": ("Updated", second)}
    # Nothing is left of the old one but the history, of which none is to be kept.
    wait_gone(api, namespace, first)
    assert fetch_all(api, pykube.Job, namespace) == []


def test_replica_sets(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    audit_log: Path,
) -> None:
    """One of nobody's is a target, whose pods are somebody else's to replace; one of a Deployment is never changed."""
    some = [workload("ReplicaSet", replicas=2), deployment("other", replicas=1)]
    first = start(kubectl, api, namespace, *some, historyLimit=0)
    assert modes(cluster, api, namespace) == [{"one"}] * 2
    writes = Writes(audit_log)

    second = change(kubectl, api, namespace, "two", first)
    wait_targets(api, namespace, {"web": ("Manual", second), "other": ("Updated", second)})
    assert names_in(template(api, namespace, "ReplicaSet")) == {second}
    assert modes(cluster, api, namespace) == [{"one"}] * 2
    wait_users(api, namespace, second, pods=1, revisions=1, workloads=("Deployment/other", "ReplicaSet/web"))

    one, other = pod_names(api, namespace)
    delete_pods(kubectl, api, namespace, one)
    assert sorted(map(str, modes(cluster, api, namespace))) == ["{'one'}", "{'two'}"]
    settle(kubectl, api, versions=True)
    assert targets(api, namespace)["web"] == ("Manual", second)
    delete_pods(kubectl, api, namespace, other)
    assert modes(cluster, api, namespace) == [{"two"}] * 2
    wait_targets(api, namespace, {"web": ("Updated", second), "other": ("Updated", second)})

    sets = fetch_all(api, pykube.ReplicaSet, namespace, {"app": "other"})
    named = [names_in(pod_spec(found)) for found in sets]
    assert {first} in named
    assert {second} in named
    ours = [line for line in writes.seen() if f"replicasets {namespace}/" in line]
    assert ours == [f"patch replicasets {namespace}/web: 200"]


def test_what_nobody_can_change_keeps_its_version(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path
) -> None:
    """V16: a bare Job and a bare Pod are told of, never written to, and hold while they are unfinished."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, historyLimit=0))
    first = version_of(api, namespace)
    writes = Writes(audit_log)
    jobs = [workload("Job", name, reading_pod_spec(first), suspend=True) for name in ("held-a", "held-b")]
    kubectl.create(
        namespace,
        *jobs,
        workload("Job", "bare", reading_pod_spec(first)),
        pod("alone", reading_pod_spec(first, restartPolicy="Never")),
    )
    kubectl("wait", "-n", namespace, "pod/alone", "--for=condition=Ready", "--timeout=60s")
    wait_users(api, namespace, first, pods=2, workloads=("Job/bare", "Job/held-a", "Job/held-b", "Pod/alone"))
    before = identity(api, namespace, "alone", pykube.Pod), generation(api, namespace, "Job", "bare")

    second = change(kubectl, api, namespace, "two", first)
    assert targets(api, namespace) == {}
    settle(kubectl, api, versions=True)
    # A suspended Job has no pods: it is the Job that holds.
    kubectl("delete", "-n", namespace, "job/held-a", "--cascade=foreground")
    wait_users(api, namespace, first, pods=2, workloads=("Job/bare", "Job/held-b", "Pod/alone"))
    assert (
        identity(api, namespace, "alone", pykube.Pod),
        generation(api, namespace, "Job", "bare"),
    ) == before
    assert versions(api, namespace) == {first, second}

    soon = json.dumps({"spec": {"activeDeadlineSeconds": 1}})
    for name in ("job/bare", "pod/alone"):
        kubectl("patch", "-n", namespace, name, "--type=merge", "-p", soon)
    kubectl("wait", "-n", namespace, "job/bare", "--for=condition=Failed", "--timeout=60s")
    wait_users(api, namespace, first, workloads=("Job/held-b",))
    assert versions(api, namespace) == {first, second}
    kubectl("delete", "-n", namespace, "job/held-b")
    wait_gone(api, namespace, first)
    assert fetch(api, pykube.Job, namespace, "bare"), "finished, and refers to what is gone"
    assert [line for line in writes.seen() if " jobs " in line or " pods " in line] == []


# -- files that are never refreshed ----------------------------------------------------------------------------------

FILE = "/etc/app/MODE"


def by_sub_path() -> Manifest:
    """A pod that mounts one file of app-cfg, and takes nothing else of it."""
    spec = reading_pod_spec()
    del spec["containers"][0]["env"]
    spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": FILE, "subPath": "MODE"}]
    return spec


def mounted(cluster: Cluster, api: pykube.HTTPClient, namespace: str) -> dict[str, Mapping[str, str]]:
    """What each pod mounts by subPath, by the pod's uid."""
    return {reading.uid: reading.sub_paths for reading in pods_read(cluster, api, namespace)}


def test_a_sub_path(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V19: a version is another name, so other pods mount the file anew."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(spec=by_sub_path(), replicas=2))
    wait_moved(kubectl, api, namespace, first)
    before = mounted(cluster, api, namespace)
    assert list(before.values()) == [{FILE: "one"}] * 2

    second = change(kubectl, api, namespace, "two", first)
    assert names_in(template(api, namespace, "Deployment")) == {second}
    after = mounted(cluster, api, namespace)
    assert list(after.values()) == [{FILE: "two"}] * 2
    assert not before.keys() & after.keys()


def test_a_sub_path_of_what_is_mutable(
    cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V19: without a version the volume follows, and the mount does not until the container starts again."""
    spec = by_sub_path()
    spec["containers"][0]["volumeMounts"].append({"name": "v", "mountPath": "/cfg"})
    kubectl.apply(namespace, config_map(data={"MODE": "one"}, immutable=False), pod("web", spec))
    kubectl("wait", "-n", namespace, "pod/web", "--for=condition=Ready", "--timeout=60s")

    def reads() -> tuple[str | None, Mapping[str, str]]:
        (reading,) = pods_read(cluster, api, namespace)
        return reading.files.get("v/MODE"), reading.sub_paths

    assert reads() == ("one", {FILE: "one"})
    kubectl.apply(namespace, config_map(data={"MODE": "two"}, immutable=False))
    wait_until(lambda: reads()[0] == "two", 120, "the volume follows")
    assert reads() == ("two", {FILE: "one"})

    kubectl("set", "image", "-n", namespace, "pod/web", "c=busybox:1")
    wait_until(lambda: reads() == ("two", {FILE: "two"}), 30, "the container starts again")


# -- which, and in what order ----------------------------------------------------------------------------------------


def test_only_the_targets_move(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """rollout.targets, by name and by selector; others that refer to the name stay as they are."""
    some = [
        {"kind": "Deployment", "name": "by-name"},
        {
            "kind": "StatefulSet",
            "selector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]},
        },
        {"kind": "CronJob", "selector": {"matchLabels": {"tier": "a"}}},
    ]

    def labelled(found: Manifest, tier: str) -> Manifest:
        return {**found, "metadata": {**found["metadata"], "labels": {"tier": tier}}}

    spec = unscheduled(reading_pod_spec())
    chosen = [
        deployment("by-name", spec, replicas=0),
        labelled(workload("StatefulSet", "labelled", spec, replicas=0), "b"),
        labelled(workload("CronJob", "cron", spec, suspend=True), "a"),
    ]
    left = [
        deployment("other", spec, replicas=0),
        labelled(deployment("of-another-kind", spec, replicas=0), "a"),
        labelled(workload("StatefulSet", "of-another-label", spec, replicas=0), "c"),
        workload("StatefulSet", "without-labels", spec, replicas=0),
        # The name of a target, and another kind.
        workload("ReplicaSet", "by-name", spec, replicas=0),
    ]
    kubectl.create(namespace, *left)
    before = [generation(api, namespace, one["kind"], one["metadata"]["name"]) for one in left]
    first = start(kubectl, api, namespace, *chosen, rollout={"targets": some})
    second = change(kubectl, api, namespace, "two", first)
    wait_at(api, namespace, second, *chosen)
    settle(kubectl, api, versions=True)
    assert resource(api, namespace)["status"]["targetsSummary"] == "3/3"
    assert {name: found[1] for name, found in targets(api, namespace).items()} == {
        one["metadata"]["name"]: second for one in chosen
    }
    assert [generation(api, namespace, one["kind"], one["metadata"]["name"]) for one in left] == before
    for one in left:
        assert names_in(template(api, namespace, one["kind"], one["metadata"]["name"])) == {"app-cfg"}

    # A label makes a target of it, and the lack of one no target any more.
    kubectl("label", "-n", namespace, "statefulset/without-labels", "tier=a")
    kubectl("label", "-n", namespace, "statefulset/labelled", "tier-")
    wait_until(
        lambda: names_in(template(api, namespace, "StatefulSet", "without-labels")) == {second},
        30,
        "it moves",
    )
    third = change(kubectl, api, namespace, "three", second)
    assert set(targets(api, namespace)) == {"by-name", "without-labels", "cron"}
    assert names_in(template(api, namespace, "StatefulSet", "without-labels")) == {third}
    assert names_in(template(api, namespace, "StatefulSet", "labelled")) == {second}


def test_what_a_controller_writes_is_left_to_it(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """It would put the name back. Who knows better lists it."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}), config_map("boss"))
    version_of(api, namespace)
    boss = get(api, namespace, "boss", pykube.ConfigMap)["metadata"]
    owned = deployment("owned", unscheduled(reading_pod_spec()), replicas=0)
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": boss["uid"], "controller": True}
    ]
    kubectl.create(namespace, owned)
    settle(kubectl, api, versions=True)
    assert names_in(template(api, namespace, "Deployment", "owned")) == {"app-cfg"}
    assert targets(api, namespace) == {}

    edit(kubectl, namespace, rollout={"targets": [{"kind": "Deployment", "name": "owned"}]})
    first = str(resource(api, namespace)["status"]["currentVersion"])
    wait_until(lambda: names_in(template(api, namespace, "Deployment", "owned")) == {first}, 30, "it moves")


def test_in_the_order_that_is_asked_for(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    audit_log: Path,
) -> None:
    """versionedconfig.io/order, whatever the kinds: the next ones move when those before are through."""
    orders = {
        "DaemonSet": ("a", None),
        "Deployment": ("z", "-1"),
        "CronJob": ("b", "10"),
        "StatefulSet": ("y", "-10"),
    }
    chosen = []
    for kind, (name, order) in orders.items():
        more: Manifest = {"replicas": 1} if kind in ("Deployment", "StatefulSet") else {}
        one = workload(kind, name, **more)
        if order is not None:
            one["metadata"]["annotations"] = {"versionedconfig.io/order": order}
        chosen.append(one)
    # Nothing keeps them apart but the order.
    first = start(kubectl, api, namespace, *chosen, rollout={"maxConcurrent": "100%"})
    writes = Writes(audit_log)
    second = change(kubectl, api, namespace, "two", first)
    wait_at(api, namespace, second, *chosen)
    plurals = {f"{kind.lower()}s" for kind in orders}
    found = [line.split() for line in writes.seen() if line.startswith("patch ")]
    moved = [what for _, what, where, _ in found if what in plurals and where.startswith(f"{namespace}/")]
    assert moved == ["statefulsets", "deployments", "daemonsets", "cronjobs"]
    # Each was through before the next one moved: its newest pod is no younger than the next one's.
    starts = [
        max(
            one["metadata"]["creationTimestamp"]
            for one in fetch_all(api, pykube.Pod, namespace, {"app": app})
        )
        for app in "yza"
    ]
    assert starts == sorted(starts)


# -- several VersionedConfigs ----------------------------------------------------------------------------------------


def spec_of_two(config: str, db: str) -> Manifest:
    """A pod with every kind of reference to this ConfigMap (four times) and this Secret (five times), and with one to a
    Secret `app-cfg` and to a ConfigMap `db`, which are nobody's."""
    spec = reading_pod_spec(config)
    spec["imagePullSecrets"] = [{"name": db}]
    spec["containers"][0]["envFrom"] = [
        {"secretRef": {"name": db}},
        {"configMapRef": {"name": config}, "prefix": "P_"},
        {"configMapRef": {"name": "db", "optional": True}},
    ]
    key = {"name": db, "key": "TOKEN"}
    spec["containers"][0]["env"].append({"name": "T", "valueFrom": {"secretKeyRef": key}})
    spec["containers"][0]["volumeMounts"] += [
        {"name": "s", "mountPath": "/s"},
        {"name": "p", "mountPath": "/p"},
    ]
    sources = [
        {"configMap": {"name": config, "items": [{"key": "MODE", "path": "m"}]}},
        {"secret": {"name": db, "items": [{"key": "TOKEN", "path": "t"}]}},
        {"secret": {"name": "app-cfg", "optional": True}},
    ]
    spec["volumes"] += [
        {"name": "s", "secret": {"secretName": db}},
        {"name": "p", "projected": {"sources": sources}},
    ]
    return spec


def test_two_kinds_changed_together_are_one_patch(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V1: a ConfigMap's and a Secret's VersionedConfig, in every field that takes one, for every kind of workload."""

    def apply(word: str) -> None:
        kubectl.apply(
            namespace,
            versioned_secret("db", {"TOKEN": f"t-{word}"}, rollout={"maxConcurrent": "100%"}),
            versioned_config("app-cfg", {"MODE": f"m-{word}"}, rollout={"maxConcurrent": "100%"}),
        )

    apply("one")
    old = {name: version_of(api, namespace, name) for name in ("app-cfg", "db")}
    spec, spec_of_versions = spec_of_two("app-cfg", "db"), spec_of_two(old["app-cfg"], old["db"])
    chosen = [
        workload("Deployment", "deploy", spec, replicas=1),
        workload("StatefulSet", "state", spec_of_versions, replicas=1),
        workload("DaemonSet", "daemon", spec),
        workload("CronJob", "cron", spec),
    ]
    kubectl.create(namespace, *chosen)
    for name, version in old.items():
        everywhere = {one["metadata"]["name"]: ("Updated", version) for one in chosen}
        wait_until(
            lambda name=name, all_=everywhere: targets(api, namespace, name) == all_,  # type: ignore[misc]
            60,
            f"all have {version}",
        )

    def state() -> dict[str, tuple[int, Manifest]]:
        return {
            one["kind"]: (
                generation(api, namespace, one["kind"], one["metadata"]["name"])[1],
                template(api, namespace, one["kind"], one["metadata"]["name"]),
            )
            for one in chosen
        }

    before = state()
    text = json.dumps(before["Deployment"][1])
    assert (text.count(f'"{old["app-cfg"]}"'), text.count(f'"{old["db"]}"')) == (4, 5)
    assert (text.count('"app-cfg"'), text.count('"db"')) == (1, 1)

    apply("two")
    new = {name: version_of(api, namespace, name, besides=old[name]) for name in old}
    for name in old:
        text = text.replace(f'"{old[name]}"', f'"{new[name]}"')
    for kind, (number, _) in before.items():
        found = state()[kind]
        assert found[0] == number + 1, kind
        rest = json.dumps(found[1])
        assert [rest.count(f'"{new[name]}"') for name in ("app-cfg", "db")] == [4, 5], kind
        assert not any(f'"{name}"' in rest for name in old.values()), kind
    assert json.loads(text) == state()["Deployment"][1]

    kubectl("create", "job", "-n", namespace, "job", "--from=cronjob/cron")
    # Files are there before the container starts.
    wait_until(
        lambda: any(one.environment for one in pods_read(cluster, api, namespace, "cron")), 30, "its Job runs"
    )
    for app in ("deploy", "state", "daemon", "cron"):
        readings = pods_read(cluster, api, namespace, app)
        assert len(readings) == (len(cluster.nodes) if app == "daemon" else 1)
        for reading in readings:
            environment = {"MODE": "m-two", "P_MODE": "m-two", "TOKEN": "t-two", "T": "t-two"}
            assert environment.items() <= reading.environment.items(), app
            files = {"v/MODE": "m-two", "s/TOKEN": "t-two", "p/m": "m-two", "p/t": "t-two"}
            assert files.items() <= reading.files.items(), app
