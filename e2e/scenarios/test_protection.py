"""An immutable object cannot vanish while a pod refers to it, and is free soon after.

Waits are on conditions. "It does not happen" is shown against something of the same age that does.
"""

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
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
    events,
    fetch,
    fetch_all,
    finalizers,
    live_pods,
    plain_pod_spec,
    pod,
    pods_read,
    reading_pod_spec,
    secret,
    settle,
    unscheduled,
    wait_for_rollout,
    wait_gone,
    wait_protected,
    wait_until,
)

BLOCKED_CONFIG_MAPS = 'versionedconfig_blocked_deletions{kind="ConfigMap"}'
KILLS = int(os.environ.get("E2E_KILLS", "3"))


def delete(kubectl: Kubectl, namespace: str, *what: str) -> str:
    """Ask for the deletion; what kubectl said on stderr."""
    return kubectl("delete", "-n", namespace, *what, "--wait=false").stderr


def assert_terminating(
    api: pykube.HTTPClient, namespace: str, name: str = "app-cfg", kind: type[Any] = pykube.ConfigMap
) -> None:
    """Deleted, and still there."""
    found = fetch(api, kind, namespace, name)
    assert found is not None, f"{name} vanished though it is in use"
    assert "deletionTimestamp" in found["metadata"]
    assert IN_USE in finalizers(found)


def wait_blocked(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg") -> str:
    """Until the Event says who holds it; its message."""
    found = wait_until(
        lambda: events(api, namespace, name, "DeletionBlocked"), 15, f"an Event tells who holds {name}"
    )
    assert len(found) == 1
    assert found[0]["type"] == "Warning"
    return str(found[0]["message"])


def test_deletion_of_an_object_in_use_waits_for_its_pods(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G1"""
    kubectl.create(namespace, config_map(), deployment(replicas=7))
    wait_for_rollout(kubectl, namespace)
    wait_protected(api, namespace)

    warning = delete(kubectl, namespace, "configmap/app-cfg")
    assert "Warning:" in warning
    assert "in use" in warning

    second = kubectl(
        *("create", "configmap", "app-cfg", "-n", namespace, "--from-literal=MODE=green"), check=False
    )
    assert second.returncode != 0
    assert "already exists" in second.stderr

    message = wait_blocked(api, namespace)
    names = [found["metadata"]["name"] for found in live_pods(api, namespace)]
    assert len(names) == 7
    assert "7 pods" in message
    assert all(name in message for name in names[:5])
    assert not any(name in message for name in names[5:])
    assert "and 2 more" in message
    # Namespaces of earlier tests may be on their way out still.
    wait_until(lambda: operator.metrics()[BLOCKED_CONFIG_MAPS] == 1, 30, "the metric counts it, alone")
    assert_terminating(api, namespace)

    delete(kubectl, namespace, "deployment/web")
    wait_gone(api, namespace)
    assert live_pods(api, namespace) == []
    wait_until(lambda: operator.metrics()[BLOCKED_CONFIG_MAPS] == 0, 15, "the metric counts none")
    kubectl.create(namespace, config_map(data={"MODE": "green"}))


def test_what_is_pruned_before_the_rollout_stays_for_its_pods(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V18: the old generated ConfigMap is deleted first. Pods that restart meanwhile start, nothing fails, and it goes
    with the last pod, whatever the old ReplicaSet names."""
    old, new = config_map("app-cfg-old"), config_map("app-cfg-new", {"MODE": "green"})
    kubectl.apply(namespace, old, deployment(spec=reading_pod_spec("app-cfg-old"), replicas=2))
    wait_for_rollout(kubectl, namespace)
    wait_protected(api, namespace, "app-cfg-old")

    kubectl("delete", "-n", namespace, "--wait=false", "configmap/app-cfg-old")
    kubectl("delete", "-n", namespace, "pods", "-l", "app=web")
    wait_for_rollout(kubectl, namespace)
    assert [one.mode() for one in pods_read(cluster, api, namespace)] == [{"blue"}, {"blue"}]
    assert_terminating(api, namespace, "app-cfg-old")

    kubectl.apply(namespace, new, deployment(spec=reading_pod_spec("app-cfg-new"), replicas=2))
    wait_for_rollout(kubectl, namespace)
    wait_gone(api, namespace, "app-cfg-old")
    assert [one.mode() for one in pods_read(cluster, api, namespace)] == [{"green"}, {"green"}]


def test_a_finished_job_does_not_hold(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G5: its pod stays for an hour, the object need not."""
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["true"],
        "envFrom": [{"configMapRef": {"name": "app-cfg"}}],
    }
    template = {"metadata": {"labels": {"app": "once"}}, "spec": plain_pod_spec(restartPolicy="Never")}
    template["spec"]["containers"] = [container]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"ttlSecondsAfterFinished": 3600, "template": template},
    }
    kubectl.create(namespace, config_map(), job)
    kubectl("wait", "-n", namespace, "--for=condition=Complete", "job/once", "--timeout=60s")

    delete(kubectl, namespace, "configmap/app-cfg")
    wait_gone(api, namespace)
    (finished,) = fetch_all(api, pykube.Pod, namespace, {"app": "once"})
    assert finished["status"]["phase"] == "Succeeded"


def test_a_pod_that_takes_long_to_end_holds_to_the_last(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G6: a deletion timestamp on the pod is not its end."""
    stubborn = reading_pod_spec(terminationGracePeriodSeconds=12)
    stubborn["containers"][0]["env"].append({"name": "IGNORE_TERM", "value": "1"})
    kubectl.create(
        namespace,
        config_map(),
        config_map("control"),
        pod("stubborn", stubborn),
        pod("control", unscheduled(reading_pod_spec("control"))),
    )
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/stubborn", "--timeout=60s")
    wait_protected(api, namespace)
    wait_protected(api, namespace, "control")

    delete(kubectl, namespace, "pod/stubborn", "pod/control")
    delete(kubectl, namespace, "configmap/app-cfg", "configmap/control")
    # The control's pod ended when the other one began to: when it is free, the other would be.
    wait_gone(api, namespace, "control")
    terminating = fetch(api, pykube.Pod, namespace, "stubborn")
    assert terminating is not None
    assert "deletionTimestamp" in terminating["metadata"]
    assert_terminating(api, namespace)

    wait_gone(api, namespace)


def test_a_pod_without_a_node_holds(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G8: it would fail to start if the object went before it found one."""
    kubectl.create(namespace, config_map(), pod("waits", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    delete(kubectl, namespace, "configmap/app-cfg")
    assert "waits" in wait_blocked(api, namespace)
    assert_terminating(api, namespace)
    delete(kubectl, namespace, "pod/waits")
    wait_gone(api, namespace)


def test_an_init_container_holds_after_it_has_ended(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G9"""
    key = {"name": "app-cfg", "key": "MODE"}
    init = {
        "name": "i",
        "image": "busybox",
        "command": ["true"],
        "env": [{"name": "M", "valueFrom": {"configMapKeyRef": key}}],
    }
    kubectl.create(
        namespace, config_map(), deployment(spec=plain_pod_spec(initContainers=[init]), replicas=1)
    )
    wait_for_rollout(kubectl, namespace)
    wait_protected(api, namespace)
    delete(kubectl, namespace, "configmap/app-cfg")
    (holder,) = live_pods(api, namespace)
    assert holder["metadata"]["name"] in wait_blocked(api, namespace)
    assert_terminating(api, namespace)


def test_an_ephemeral_container_holds(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G10: no workload's template says anything of it."""
    kubectl.create(namespace, secret("dbg"), pod("plain", plain_pod_spec()))
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/plain", "--timeout=60s")
    settle(kubectl, api)
    assert finalizers(fetch(api, pykube.Secret, namespace, "dbg")) == []

    debugger = {"name": "debugger", "image": "busybox", "envFrom": [{"secretRef": {"name": "dbg"}}]}
    patch = json.dumps({"spec": {"ephemeralContainers": [debugger]}})
    kubectl("patch", "-n", namespace, "pod/plain", "--subresource=ephemeralcontainers", "-p", patch)
    wait_protected(api, namespace, "dbg", pykube.Secret)


def test_an_optional_reference_holds_what_appears_later(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G11: and the other sources of a projected volume refer to nothing."""
    sources = [
        {"configMap": {"name": "app-cfg", "items": [{"key": "MODE", "path": "m"}]}},
        {"secret": {"name": "maybe", "optional": True}},
        {"serviceAccountToken": {"path": "tok"}},
        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    spec = plain_pod_spec(volumes=[{"name": "p", "projected": {"sources": sources}}])
    spec["containers"][0]["volumeMounts"] = [{"name": "p", "mountPath": "/p"}]
    kubectl.create(namespace, config_map(), pod("projects", spec))
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/projects", "--timeout=60s")
    wait_protected(api, namespace)

    kubectl.create(namespace, secret("maybe"))
    wait_protected(api, namespace, "maybe", pykube.Secret)
    # Every pod mounts it; it is mutable.
    assert finalizers(fetch(api, pykube.ConfigMap, namespace, "kube-root-ca.crt")) == []


def test_an_object_that_turns_immutable_in_use_is_protected(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G29"""
    kubectl.create(namespace, config_map(immutable=False), pod("reads", reading_pod_spec()))
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/reads", "--timeout=60s")
    settle(kubectl, api)
    assert finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg")) == []

    kubectl("patch", "-n", namespace, "configmap/app-cfg", "-p", '{"immutable":true}')
    wait_protected(api, namespace)


def test_nobody_else_takes_the_protection_off_without_a_reason(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A PUT without the finalizer would drop it silently; the annotation is for emergencies."""
    kubectl.create(namespace, config_map(), pod("waits", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)

    def replace(manifest: harness.Manifest) -> str:
        command = ("replace", "-n", namespace, "-f", "-")
        return kubectl(*command, stdin=harness.as_list([manifest]), check=False).stderr

    assert "versionedconfig.io/in-use" in replace(config_map())
    assert IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))
    assert replace(config_map(annotations={harness.RELEASE: "its node is gone for good"})) == ""


def test_what_was_there_before_the_operator_is_protected(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Back-fill at the start."""
    waits = unscheduled(reading_pod_spec())
    waits["volumes"].append({"name": "s", "secret": {"secretName": "token"}})
    kubectl.create(namespace, config_map(), secret("token"), pod("waits", waits))
    stopped_operator.start()
    wait_protected(api, namespace)
    wait_protected(api, namespace, "token", pykube.Secret)


def test_what_is_not_ours_is_never_written_to(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Immutable objects that nobody refers to, that say so, or that belong to the system."""
    ignored = config_map("ignored", annotations={harness.IGNORE: "true"})
    of_system = config_map(f"versionedconfig-{namespace}")
    name = of_system["metadata"]["name"]
    kubectl.create(
        namespace,
        config_map("unreferenced"),
        ignored,
        config_map("mutable", immutable=False),
        pod("one", unscheduled(reading_pod_spec("ignored"))),
        pod("two", unscheduled(reading_pod_spec("mutable"))),
    )
    try:
        kubectl.create("kube-system", of_system, pod(name, unscheduled(reading_pod_spec(name))))
        objects = [(namespace, "unreferenced"), (namespace, "ignored"), (namespace, "mutable")]
        objects.append(("kube-system", name))

        def versions() -> list[str]:
            found = [fetch(api, pykube.ConfigMap, *where) for where in objects]
            return [str(one["metadata"]["resourceVersion"]) for one in found if one is not None]

        before = versions()
        settle(kubectl, api)
        operator.stop()
        operator.start()  # the back-fill must leave them alone as well
        settle(kubectl, api)
        assert versions() == before
        assert len(before) == 4
    finally:
        delete(kubectl, "kube-system", f"configmap/{name}", f"pod/{name}")


def test_a_killed_operator_takes_up_what_it_left(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """SIGKILL while a deletion waits; meanwhile the object stays, and the last holder goes unseen."""
    kubectl.create(namespace, config_map(), pod("waits", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    delete(kubectl, namespace, "configmap/app-cfg")
    wait_blocked(api, namespace)

    operator.kill()
    assert_terminating(api, namespace)
    operator.start()
    settle(kubectl, api)
    assert_terminating(api, namespace)
    (event,) = events(api, namespace, "app-cfg", "DeletionBlocked")
    assert event["count"] == 1, "the same Event was written again"

    operator.kill()
    kubectl("delete", "-n", namespace, "pod/waits")
    assert_terminating(api, namespace)
    operator.start()
    wait_gone(api, namespace)


@pytest.mark.parametrize("moment", range(KILLS))
def test_killed_at_any_moment_the_end_is_the_same(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, moment: int
) -> None:
    """E2E_KILLS says how often. The name is taken as long as a pod is there, and free afterwards."""
    kubectl.create(namespace, config_map(), deployment(spec=unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    uid = (fetch(api, pykube.ConfigMap, namespace, "app-cfg") or {})["metadata"]["uid"]

    def story() -> None:
        delete(kubectl, namespace, "configmap/app-cfg")
        kubectl("rollout", "restart", "-n", namespace, "deployment/web")
        kubectl("scale", "-n", namespace, "deployment/web", "--replicas=1")
        # Pods without a node never get ready: the old one stays beside the new one.
        harness.wait_for_pods(api, namespace, 2)
        found = fetch(api, pykube.ConfigMap, namespace, "app-cfg")
        assert found is not None
        assert found["metadata"]["uid"] == uid
        delete(kubectl, namespace, "deployment/web")

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(story)
        time.sleep(random.Random(moment).uniform(0, 2))
        operator.kill()
        operator.start()
        told.result()
    wait_gone(api, namespace)


def test_a_start_with_nothing_to_do_writes_nothing(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path
) -> None:
    """Protected objects, a deletion that waits, its Event: all of it is as it should be already."""
    kubectl.create(
        namespace,
        config_map(),
        config_map("other"),
        pod("one", unscheduled(reading_pod_spec())),
        pod("two", unscheduled(reading_pod_spec("other"))),
    )
    wait_protected(api, namespace)
    wait_protected(api, namespace, "other")
    delete(kubectl, namespace, "configmap/other")
    wait_blocked(api, namespace, "other")
    harness.wait_for_others_to_end(api)

    for end in (operator.stop, operator.kill):
        end()
        writes = Writes(audit_log)
        operator.start()
        settle(kubectl, api)
        assert writes.seen(), "the audit log shows nothing at all"
        assert writes.seen(without=lambda where: where.startswith("settle-")) == []
