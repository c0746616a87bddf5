"""Random sequences of what people, tools and mishaps do to a VersionedConfig and its workloads, and what must hold in the
end: what the status claims is what every pod reads.

`E2E_SEED` replays the steps; what the cluster makes of them is never quite the same.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pykube

from e2e import harness
from e2e.harness import (
    Cluster,
    CommandFailed,
    Kubectl,
    Manifest,
    config_map,
    deployment,
    fetch,
    fetch_all,
    pods_read,
    reading_pod_spec,
    versioned_config,
    wait_until,
)
from e2e.stories import rolled_out

LIMIT: Final = 2
"""historyLimit: little, so that something is collected."""

MODES: Final = ("one", "two", "three", "four")
"""Few, so that earlier content comes back."""

PATIENCE: Final = 150.0
"""Seconds for the end: a rollout may have to be taken back first."""


def workloads() -> list[Manifest]:
    """Two Deployments and a DaemonSet, with the logical name, as people apply them."""
    crash = {"name": "app-cfg", "key": "CRASH", "optional": True}
    spec = reading_pod_spec()
    spec["containers"][0]["env"].append({"name": "CRASH", "valueFrom": {"configMapKeyRef": crash}})
    daemons = deployment("d", spec)
    del daemons["spec"]["replicas"]
    return [
        deployment("a", spec, replicas=2),
        deployment("b", spec, replicas=1),
        {**daemons, "kind": "DaemonSet"},
    ]


@dataclass
class Sequence:
    """One namespace, one VersionedConfig, one random sequence."""

    cluster: Cluster
    kubectl: Kubectl
    api: pykube.HTTPClient
    namespace: str
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def begin(self) -> None:
        """What there is at first."""
        rollout = {"minReadySeconds": 4, "maxConcurrent": self.rng.choice([1, "100%"]), "settleSeconds": 0}
        resource = versioned_config(
            "app-cfg",
            {},
            historyLimit=LIMIT,
            rollout=rollout,
            **{"from": [{"kind": "ConfigMap", "name": "source"}]},
        )
        source = config_map("source", {"MODE": "one"}, immutable=False)
        self.kubectl.create(self.namespace, source, resource)
        wait_until(lambda: self.status().get("currentVersion"), 30, "the first version is there")
        self.kubectl.create(self.namespace, *workloads())

    def step(self) -> None:
        """One thing, chosen at random. It may fail: somebody else was faster."""
        weights: dict[Callable[[], None], int] = {
            self.edit: 20,
            self.edit_source: 15,
            self.fail: 8,
            self.undo: 10,
            self.pin: 6,
            self.unpin: 8,
            self.pause: 4,
            self.resume: 6,
            self.scale: 8,
            self.apply: 10,
            self.restart: 5,
            self.look: 20,
        }
        (action,) = self.rng.choices(list(weights), list(weights.values()))
        try:
            action()
        except CommandFailed:
            self.done["refused"] += 1
        else:
            self.done[action.__name__] += 1

    def edit(self) -> None:
        """The VersionedConfig's own content, which wins over the source's."""
        mode = self.rng.choice([None, *MODES])
        self._patch("vcfg/app-cfg", {"spec": {"data": {"MODE": mode, "CRASH": None}}})

    def edit_source(self) -> None:
        self._patch("configmap/source", {"data": {"MODE": self.rng.choice(MODES)}})

    def fail(self) -> None:
        """Content with which no pod lives."""
        self._patch("vcfg/app-cfg", {"spec": {"data": {"CRASH": "1"}}})

    def undo(self) -> None:
        target = self.rng.choice(["deployment/a", "deployment/b", "daemonset/d"])
        self.kubectl("rollout", "undo", "-n", self.namespace, target)

    def pin(self) -> None:
        kept = [version["hash"] for version in self.status().get("versions", [])]
        if kept:
            self._patch("vcfg/app-cfg", {"spec": {"pin": self.rng.choice(kept)}})

    def unpin(self) -> None:
        self._patch("vcfg/app-cfg", {"spec": {"pin": None}})

    def pause(self) -> None:
        self._patch("vcfg/app-cfg", {"spec": {"rollout": {"paused": True}}})

    def resume(self) -> None:
        self._patch("vcfg/app-cfg", {"spec": {"rollout": {"paused": None}}})

    def scale(self) -> None:
        name, replicas = self.rng.choice("ab"), self.rng.randrange(4)
        self.kubectl("scale", "-n", self.namespace, f"deployment/{name}", f"--replicas={replicas}")

    def apply(self) -> None:
        """The manifests as they are in git, with the logical name."""
        self.kubectl.apply(self.namespace, *workloads())

    def restart(self) -> None:
        target = self.rng.choice(["deployment/a", "deployment/b", "daemonset/d"])
        self.kubectl("rollout", "restart", "-n", self.namespace, target)

    def look(self) -> None:
        """Nothing, until the operator has come somewhere."""
        harness.settle(self.kubectl, self.api, versions=True)

    def end(self) -> None:
        """Content that works, a little more, and everything comes to rest. Without it a target might stay for ever with a
        version that fails, since somebody went back to it."""
        data = {"CRASH": None, "MODE": f"end-{self.rng.randrange(1000)}"}
        self._patch("vcfg/app-cfg", {"spec": {"pin": None, "rollout": {"paused": None}, "data": data}})
        for action in self.rng.sample([self.scale, self.apply, self.restart], 2):
            action()
        wait_until(lambda: not self.unrest(), PATIENCE, f"{self.namespace} comes to rest")

    def unrest(self) -> list[str]:
        """What is not as it will stay."""
        found = []
        resource = self.resource()
        conditions = {c["type"]: c for c in resource.get("status", {}).get("conditions", [])}
        ready = conditions.get("Ready", {})
        if ready.get("observedGeneration") != resource["metadata"]["generation"]:
            found.append("the status is about something older")
        if conditions.get("Reconciling", {}).get("status") != "False" or ready.get("status") != "True":
            found.append(f"{ready.get('reason')}: {ready.get('message')}")
        for kind, names in ((pykube.Deployment, "ab"), (pykube.DaemonSet, "d")):
            for name in names:
                workload = fetch(self.api, kind, self.namespace, name)
                if workload is None or not at_rest(workload):
                    found.append(f"{kind.kind} {name} rolls out")
        pods = fetch_all(self.api, pykube.Pod, self.namespace)
        found += [f"pod {p['metadata']['name']} ends" for p in pods if "deletionTimestamp" in p["metadata"]]
        return found

    def faults(self) -> Iterator[str]:
        """What must not be, when it has come to rest."""
        status = self.status()
        objects = {
            found["metadata"]["name"]: found["data"]
            for found in fetch_all(self.api, pykube.ConfigMap, self.namespace)
            if found["metadata"]["name"].startswith("app-cfg-")
        }
        told = {target["name"]: target for target in status["targets"]}
        if told.keys() != {"a", "b", "d"}:
            yield f"targets are {sorted(told)}"
        used = {status["currentVersion"], status["latestVersion"], status["stableVersion"]}
        for name, target in sorted(told.items()):
            version = target["version"]
            used.add(version)
            if version not in objects:
                yield f"{name} is said to be at {version}, which is not there"
                continue
            if target["state"] not in ("Updated", "Overridden"):
                yield f"{name} is {target['state']}"
            for pod in pods_read(self.cluster, self.api, self.namespace, name):
                if pod.mode() != {objects[version]["MODE"]}:
                    yield f"{pod.pod} of {name} reads {pod.mode()}, and {version} has {objects[version]['MODE']}"
        revisions = [
            *fetch_all(self.api, pykube.ReplicaSet, self.namespace),
            *fetch_all(
                self.api, pykube.object_factory(self.api, "apps/v1", "ControllerRevision"), self.namespace
            ),
        ]
        for found in revisions:
            used |= {name for name in objects if f'"{name}"' in json.dumps(found)}
            used |= set(names_of(found))
        used.discard("app-cfg")
        if missing := used - objects.keys():
            yield f"{sorted(missing)} are used and not there"
        if (listed := {version["name"] for version in status["versions"]}) != objects.keys():
            yield f"the status tells of {sorted(listed)}, and there are {sorted(objects)}"
        if len(spare := objects.keys() - used) > LIMIT:
            yield f"more than {LIMIT} unused versions are left: {sorted(spare)}"

    def resource(self) -> Manifest:
        return fetch(self.api, harness.versioned_configs(self.api), self.namespace, "app-cfg") or {}

    def status(self) -> Manifest:
        return dict(self.resource().get("status", {}))

    def _patch(self, name: str, patch: Manifest) -> None:
        self.kubectl("patch", "-n", self.namespace, name, "--type=merge", "-p", json.dumps(patch))


def names_of(found: Manifest) -> Iterator[str]:
    """The versions that an old revision's template refers to."""
    data: dict[str, Any] = found.get("data") or found
    spec = data.get("spec", {}).get("template", {}).get("spec", {})
    for volume in spec.get("volumes", ()):
        yield volume["configMap"]["name"]


def at_rest(found: Manifest) -> bool:
    """As `kubectl rollout status` has it."""
    if found["kind"] == "DaemonSet":
        status = found.get("status", {})
        if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
            return False
        wanted = status.get("desiredNumberScheduled", 0)
        return bool(
            status.get("updatedNumberScheduled", 0) >= wanted and status.get("numberAvailable", 0) >= wanted
        )
    return rolled_out(found)
