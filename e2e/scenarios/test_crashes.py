"""The operator is killed at random moments, and everything ends as if it had not been.

E2E_SEED repeats the moments; E2E_CRASHES says how many. Stories go on in namespaces of their own all the while.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pykube
import pytest

from e2e import harness
from e2e.harness import (
    IN_USE,
    Cluster,
    Kubectl,
    Manifest,
    Operator,
    Writes,
    config_map,
    deployment,
    fetch,
    fetch_all,
    finalizers,
    pods_read,
    settle,
    versioned_config,
    wait_for_rollout,
    wait_gone,
    wait_until,
)

SEED: Final = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(2**32))
CRASHES: Final = int(os.environ.get("E2E_CRASHES", "20"))
LIFETIME: Final = (1.0, 5.0)
"""Seconds from a start to the next kill: from before it has listed anything to some time after it has caught up."""
PREFIX: Final = "crash"
PATIENCE: Final = 90.0
"""The operator may be killed a dozen times while one step is waited for."""

End = dict[str, Any]


@dataclass
class Story:
    """One namespace, and where in its story it is."""

    cluster: Cluster
    kubectl: Kubectl
    api: pykube.HTTPClient
    namespace: str
    step: str = "begins"

    def run(self, step: str, *args: str) -> None:
        """The next step, with kubectl."""
        self.step = step
        self.kubectl(*args, "-n", self.namespace)

    def wait(self, step: str, condition: Callable[[], object]) -> None:
        """The next step: something comes true."""
        self.step = f"waits until {step}"
        wait_until(condition, PATIENCE, f"{step} in {self.namespace}")

    def roll_out(self) -> None:
        """The next step: the Deployment's pods are all new."""
        self.step = "rolls out"
        wait_for_rollout(self.kubectl, self.namespace, timeout=PATIENCE)

    def config_map(self) -> Manifest | None:
        """The live one that the story is about."""
        return fetch(self.api, pykube.ConfigMap, self.namespace, "app-cfg")

    def versioned_config(self) -> Manifest:
        """The live one that the story is about."""
        return fetch(self.api, harness.versioned_configs(self.api), self.namespace, "app-cfg") or {}

    def referred(self) -> str:
        """What the Deployment's template refers to."""
        found = fetch(self.api, pykube.Deployment, self.namespace, "web") or {}
        return str(found["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"])


def protection(story: Story) -> End:
    """Delete an object in use, restart its pods, delete them, use the name again."""
    story.kubectl.create(story.namespace, config_map(), deployment(replicas=2))
    story.roll_out()
    story.wait("it is protected", lambda: IN_USE in finalizers(story.config_map()))
    uid = (story.config_map() or {})["metadata"]["uid"]

    story.run("deletes it", "delete", "configmap/app-cfg", "--wait=false")
    story.wait(
        "an Event tells", lambda: harness.events(story.api, story.namespace, "app-cfg", "DeletionBlocked")
    )
    story.run("restarts the pods", "rollout", "restart", "deployment/web")
    story.roll_out()
    kept = story.config_map()
    assert kept is not None, "it vanished under its pods"
    assert kept["metadata"]["uid"] == uid
    reading = {mode for pod in pods_read(story.cluster, story.api, story.namespace) for mode in pod.mode()}

    story.run("deletes the pods", "delete", "deployment/web")
    story.step = "waits for the name"
    wait_gone(story.api, story.namespace, timeout=PATIENCE)
    pods_left = harness.live_pods(story.api, story.namespace)
    story.kubectl.create(story.namespace, config_map(data={"MODE": "green"}), deployment(replicas=1))
    story.roll_out()
    story.wait("the new one is protected", lambda: IN_USE in finalizers(story.config_map()))
    (reader,) = pods_read(story.cluster, story.api, story.namespace)
    return {"old": reading, "pods left": pods_left, "new": reader.mode()}


def versions(story: Story) -> End:
    """Edit, roll out, undo."""
    story.kubectl.create(
        story.namespace, versioned_config("app-cfg", {"MODE": "one"}), deployment(replicas=1)
    )
    story.wait("the first version is used", lambda: story.referred() != "app-cfg")
    first = story.referred()
    story.roll_out()
    patch = '{"spec":{"data":{"MODE":"two"}}}'
    story.run("edits", "patch", "vcfg/app-cfg", "--type=merge", "-p", patch)
    story.wait("the second version is used", lambda: story.referred() != first)
    story.roll_out()
    story.run("undoes", "rollout", "undo", "deployment/web")
    story.wait("the undo is told", lambda: "Overridden" in str(story.versioned_config().get("status")))
    story.roll_out()
    return versions_end(story)


def versions_end(story: Story) -> End:
    """What a VersionedConfig, its versions and its workload look like, without times and names of the day."""
    story.wait("it is ready", lambda: ready(story.versioned_config()))
    status = story.versioned_config()["status"]
    made = fetch_all(story.api, pykube.ConfigMap, story.namespace)
    sets = fetch_all(story.api, pykube.ReplicaSet, story.namespace)
    used = [one["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] for one in sets]
    return {
        "current": status["currentVersion"],
        "versions": {(one["name"], one["state"]) for one in status["versions"]},
        "targets": [(one["name"], one["state"], one["version"]) for one in status["targets"]],
        "conditions": {(c["type"], c["status"], c["reason"]) for c in status["conditions"]},
        "objects": {
            (one["metadata"]["name"], one.get("immutable"), one["data"].get("MODE"))
            for one in made
            if one["metadata"]["name"] != "kube-root-ca.crt"
        },
        # The first one refers to the logical name, if the Deployment's controller was faster than the operator.
        "replica sets": sorted(name for name in used if name != "app-cfg"),
        "read": [pod.mode() for pod in pods_read(story.cluster, story.api, story.namespace)],
    }


def ready(found: Manifest) -> bool:
    conditions = {c["type"]: c for c in found["status"]["conditions"]}
    about = conditions["Ready"]["observedGeneration"]
    return bool(conditions["Ready"]["status"] == "True" and about == found["metadata"]["generation"])


STORIES: Final = (protection, versions)


@pytest.mark.timeout(120 + 12 * CRASHES, func_only=True)
def test_killed_at_any_moment_it_ends_the_same(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    audit_log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each end is that of a story that nobody disturbed, and a start with nothing left to do writes nothing."""
    print(f"E2E_SEED={SEED}")
    rng = random.Random(SEED)
    enough = threading.Event()
    running: dict[int, Story] = {}
    with ExitStack() as namespaces:
        lock = threading.Lock()

        def tell(number: int) -> tuple[Story, End]:
            with lock:
                name = namespaces.enter_context(harness.temporary_namespace(kubectl, api, PREFIX))
            story = running[number] = Story(cluster, kubectl, api, name)
            return story, STORIES[number % len(STORIES)](story)

        def tell_again(number: int) -> list[tuple[Story, End]]:
            told = []
            while not enough.is_set():
                told.append(tell(number))
            return told

        with ThreadPoolExecutor(2 * len(STORIES)) as pool:
            undisturbed = [end for _, end in pool.map(tell, range(len(STORIES)))]
            assert undisturbed[0] == {"old": {"blue"}, "pods left": [], "new": {"green"}}
            assert undisturbed[1]["read"] == [{"one"}]

            disturbed = [pool.submit(tell_again, number) for number in range(2 * len(STORIES))]
            try:
                for crash in range(1, CRASHES + 1):
                    time.sleep(rng.uniform(*LIFETIME))
                    moments = [
                        f"{STORIES[n % len(STORIES)].__name__} {story.step}"
                        for n, story in sorted(running.items())
                    ]
                    operator.kill()
                    print(f"kill {crash}: {'; '.join(moments)}")
                    with monkeypatch.context() as hurry:
                        hurry.setattr(operator, "wait_ready", lambda: None)
                        operator.start()
                operator.wait_ready()
            finally:
                enough.set()
            told = [(number, found) for number, future in enumerate(disturbed) for found in future.result()]

        settle(kubectl, api, versions=True)
        assert len(told) >= 2 * len(STORIES)
        for number, (story, end) in told:
            which = number % len(STORIES)
            assert end == undisturbed[which], f"E2E_SEED={SEED}, {story.namespace}"
            if STORIES[which] is versions:
                assert versions_end(story) == undisturbed[which], f"E2E_SEED={SEED}, {story.namespace}, later"

        harness.wait_for_others_to_end(api)
        for end_it in (operator.stop, operator.kill):
            end_it()
            writes = Writes(audit_log)
            operator.start()
            settle(kubectl, api, versions=True)
            assert writes.seen(), "the audit log shows nothing at all"
            assert writes.seen(without=lambda where: where.startswith("settle-")) == []
