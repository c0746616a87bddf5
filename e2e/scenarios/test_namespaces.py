"""Namespaces that go end in bounded time, whatever refers to what is in them (G18); and two writers lose nothing to us."""

import json
import random
import threading
import time
from typing import Any

import pykube

from e2e.harness import (
    IN_USE,
    Kubectl,
    Operator,
    Writes,
    config_map,
    deployment,
    fetch,
    finalizers,
    persistent_volume,
    pod,
    reading_pod_spec,
    secret,
    unscheduled,
    versioned_config,
    wait_for_rollout,
    wait_protected,
    wait_versioned,
)


def test_a_namespace_goes_whatever_refers_to_it(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Its own pods are waited for, one of them takes its time; a volume from outside would keep it for ever."""
    volume = persistent_volume(f"pv-{namespace}", namespace, "stage")
    slow = {**reading_pod_spec(), "terminationGracePeriodSeconds": 8}
    slow["containers"] = [{**slow["containers"][0], "env": [{"name": "IGNORE_TERM", "value": "1"}]}]
    kubectl.create(
        namespace, config_map(), secret("stage"), deployment(replicas=2), pod("slow", slow), volume
    )
    kubectl.create(namespace, versioned_config("app", {"MODE": "blue"}))
    try:
        wait_for_rollout(kubectl, namespace)
        kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/slow", "--timeout=60s")
        wait_protected(api, namespace)
        wait_protected(api, namespace, "stage", kind=pykube.Secret)
        wait_versioned(api, namespace, "app")

        kubectl("delete", "namespace", namespace, "--wait=false")
        seen = 0
        while True:
            guarded = IN_USE in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))
            running = fetch(api, pykube.Pod, namespace, "slow")
            if running is None or running["status"]["phase"] != "Running":
                break
            assert guarded, "its own pod was still running after it had been released"
            seen += 1
            time.sleep(0.2)
        assert seen > 10

        kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=60s")
    finally:
        kubectl("delete", "persistentvolume", f"pv-{namespace}")


def test_nothing_is_added_in_a_namespace_that_goes(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Any
) -> None:
    slow = {**reading_pod_spec("other"), "terminationGracePeriodSeconds": 6}
    slow["containers"] = [{**slow["containers"][0], "env": [{"name": "IGNORE_TERM", "value": "1"}]}]
    kubectl.create(namespace, config_map("other"), config_map("late", immutable=False), pod("slow", slow))
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/slow", "--timeout=60s")
    wait_protected(api, namespace, "other")
    kubectl("patch", "-n", namespace, "pod/slow", "-p", '{"metadata":{"finalizers":["example.com/stay"]}}')
    kubectl("delete", "namespace", namespace, "--wait=false")
    writes = Writes(audit_log)

    kubectl("patch", "-n", namespace, "configmap/late", "-p", '{"immutable":true}')
    kubectl("annotate", "-n", namespace, "configmap/other", "a=b")
    kubectl.strip(namespace, "pod/slow")

    kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=60s")
    assert not [write for write in writes.seen() if f"{namespace}/late" in write]


ROUNDS = 500
"""Of each of the two."""


def test_two_writers_lose_nothing_to_us(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Any
) -> None:
    """Both change finalizers and annotations of one object all the time, one with PUT and one with PATCH, and look whether
    what they wrote is there, while ours comes and goes with a pod."""
    operator = stopped_operator
    operator.start("--linger-seconds", "0")
    kubectl.create(namespace, config_map())
    writes = Writes(audit_log)
    faults: list[str] = []
    going = threading.Event()

    def url() -> dict[str, Any]:
        return {"version": "v1", "namespace": namespace, "url": "configmaps/app-cfg"}

    def read() -> Any:
        return api.get(**url()).json()["metadata"]

    def check(who: str, number: int, wanted: bool) -> None:
        meta = read()
        if meta.get("annotations", {}).get(f"example.com/{who}") != str(number):
            faults.append(f"{who}: annotation {number} is lost")
        if (f"example.com/{who}" in meta.get("finalizers", [])) != wanted:
            faults.append(f"{who}: finalizer of round {number} is not as written")

    def put(number: int, wanted: bool) -> None:
        while True:
            body = api.get(**url()).json()
            meta = body["metadata"]
            meta.setdefault("annotations", {})["example.com/put"] = str(number)
            others = [name for name in meta.get("finalizers", []) if name != "example.com/put"]
            meta["finalizers"] = [*others, *(["example.com/put"] if wanted else [])]
            if api.put(**url(), data=json.dumps(body)).status_code != 409:
                return

    def patch(number: int, wanted: bool) -> None:
        finalizer = (
            {"finalizers": ["example.com/patch"]}
            if wanted
            else {"$deleteFromPrimitiveList/finalizers": ["example.com/patch"]}
        )
        body = {"metadata": {"annotations": {"example.com/patch": str(number)}, **finalizer}}
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        api.raise_for_status(api.patch(**url(), data=json.dumps(body), headers=headers))

    def write(who: str, how: Any) -> None:
        for number in range(ROUNDS):
            wanted = number % 2 == 0
            how(number, wanted)
            check(who, number, wanted)

    def come_and_go() -> None:
        while going.is_set():
            kubectl.create(namespace, pod("holder", unscheduled(reading_pod_spec())))
            time.sleep(random.random() * 0.3)
            kubectl("delete", "-n", namespace, "pod/holder", "--force", "--grace-period=0")
            time.sleep(random.random() * 1.5)

    going.set()
    holder = threading.Thread(target=come_and_go)
    writers = [
        threading.Thread(target=write, args=arguments) for arguments in (("put", put), ("patch", patch))
    ]
    for thread in (holder, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    going.clear()
    holder.join()

    assert faults == []
    ours = [write for write in writes.seen() if write == f"patch configmaps {namespace}/app-cfg: 200"]
    assert len(ours) >= 10, "ours hardly took part"
    kubectl(
        "patch",
        "-n",
        namespace,
        "configmap/app-cfg",
        "-p",
        '{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/put","example.com/patch"]}}',
    )
    operator.stop()
