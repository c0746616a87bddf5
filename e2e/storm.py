"""A random storm against protection, and the proof that it held: every change that the API server tells is recorded, and
replayed in its own order afterwards.

Knows no operator but its process. `E2E_SEED` replays the steps; what the cluster makes of them is never quite the same.
"""

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pykube

from e2e.cluster.local import LocalCluster
from e2e.harness import (
    IN_USE,
    Kubectl,
    Manifest,
    Operator,
    config_map,
    deployment,
    persistent_volume,
    plain_pod_spec,
    pod,
    query,
    secret,
    unscheduled,
    wait_until,
)

NAMES: Final = ("a", "b", "c", "d")
GRACE_SECONDS: Final = 3.0
"""A pod that came so shortly before a release may have been missed: between a live list and the patch that follows it one
can always appear, in the in-tree controllers too (pvc_protection_controller.go)."""

KINDS: Final = (pykube.ConfigMap, pykube.Secret, pykube.Pod, pykube.PersistentVolume, pykube.Namespace)


# -- what happened ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One object as it was from a resource version on; `gone` from then on."""

    version: int
    seen: float
    """When we heard of it, monotonic."""
    kind: str
    namespace: str
    name: str
    uid: str
    gone: bool
    guarded: bool = False
    ending: bool = False
    """It has a deletionTimestamp."""
    refers_to: frozenset[tuple[str, str, str]] = frozenset()
    """(kind, namespace, name), of one that holds as it is."""


class Recorder:
    """Follows every kind that matters until it is closed."""

    def __init__(self, api: pykube.HTTPClient, namespaces: set[str]) -> None:
        self.changes: list[Change] = []
        self._api = api
        self._namespaces = namespaces
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in KINDS]

    def __enter__(self) -> "Recorder":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(40)

    def _follow(self, kind: type[Any]) -> None:
        known: dict[tuple[str, str], Change] = {}
        while not self._closed.is_set():
            with contextlib.suppress(Exception):  # the API server is restarted: list again
                namespaced = issubclass(kind, pykube.objects.NamespacedAPIObject)
                where = {"namespace": pykube.all} if namespaced else {}
                listing = query(self._api, kind, **where)
                response = listing.response
                version = int(response["metadata"]["resourceVersion"])
                there = set()
                for found in response["items"]:
                    found.setdefault("kind", kind.kind)
                    change = self._add(found, known, gone=False)
                    there.add((change.namespace, change.name))
                for key in known.keys() - there:
                    before = known.pop(key)
                    self.changes.append(
                        Change(version, time.monotonic(), before.kind, *key, before.uid, gone=True)
                    )
                for event in listing.watch(since=str(version), params={"timeoutSeconds": 20}):
                    self._add(event.object.obj, known, gone=event.type == "DELETED")
                    if self._closed.is_set():
                        return
            time.sleep(0.1)

    def _add(self, found: Manifest, known: dict[tuple[str, str], Change], *, gone: bool) -> Change:
        meta = found["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        kind = found["kind"]
        holds = kind in ("Pod", "PersistentVolume") and not gone
        holds = holds and found.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        change = Change(
            version=int(meta["resourceVersion"]),
            seen=time.monotonic(),
            kind=kind,
            namespace=key[0],
            name=key[1],
            uid=meta["uid"],
            gone=gone,
            guarded=not gone and IN_USE in meta.get("finalizers", ()),
            ending="deletionTimestamp" in meta,
            refers_to=frozenset(references(found)) if holds else frozenset(),
        )
        if gone:
            known.pop(key, None)
        else:
            known[key] = change
        if not key[0] or key[0] in self._namespaces:
            self.changes.append(change)
        return change


def references(found: Manifest) -> Iterator[tuple[str, str, str]]:
    """What our own pods and volumes refer to; written apart from the operator's rules."""
    spec, namespace = found["spec"], found["metadata"].get("namespace", "")
    for volume in spec.get("volumes", ()):
        if "configMap" in volume:
            yield "ConfigMap", namespace, volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", namespace, volume["secret"]["secretName"]
    if "csi" in spec:
        reference = spec["csi"].get("nodeStageSecretRef", {})
        yield "Secret", reference.get("namespace", ""), reference.get("name", "")


def losses(changes: list[Change]) -> list[str]:
    """Every moment in which a guarded object lost its guard, or went, while something held it that was there before and
    went on being there. In the order of resource versions, which one etcd gives to all kinds."""
    found: list[str] = []
    objects: dict[tuple[str, str, str], Change] = {}
    holders: dict[tuple[str, str, str], tuple[Change, float]] = {}
    """With when each began to be there."""
    ending: set[str] = set()
    for change in sorted(changes, key=lambda change: change.version):
        key = (change.kind, change.namespace, change.name)
        if change.kind == "Namespace":
            # It wins over everything but its own pods.
            (ending.add if change.ending else ending.discard)(change.name)
            continue
        if change.kind in ("Pod", "PersistentVolume"):
            if not change.refers_to:
                holders.pop(key, None)
            else:
                _, since = holders.get(key, (change, change.seen))
                holders[key] = change, since
            continue
        before = objects.get(key)
        if before is not None and before.guarded and not (change.guarded and change.uid == before.uid):
            found += [
                f"{change.kind} {change.namespace}/{change.name} at {change.version}, held by {holder.kind} {holder.name}"
                for holder, since in holders.values()
                if key in holder.refers_to
                and since < change.seen - GRACE_SECONDS
                and (holder.kind == "Pod" or change.namespace not in ending)
            ]
        objects[key] = change
        if change.gone:
            del objects[key]
    return found


# -- what is done ----------------------------------------------------------------------------------------------------


@dataclass
class Storm:
    """Steps that change a cluster at random. Everything it does may fail: somebody else was faster."""

    cluster: LocalCluster
    kubectl: Kubectl
    api: pykube.HTTPClient
    operator: Operator
    namespaces: list[str]
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    _serial: int = 0

    def step(self) -> None:
        """One thing, chosen at random."""
        weights = {
            self.create_object: 20,
            self.delete_object: 14,
            self.create_pod: 18,
            self.delete_pod: 14,
            self.force_delete_pod: 5,
            self.turn_immutable: 5,
            self.scale: 6,
            self.volume: 4,
            self.annotate: 6,
            self.end_namespace: 1,
            self.kill_operator: 2,
            self.restart_api_server: 0.5,
        }
        (what,) = self.rng.choices(list(weights), list(weights.values()))
        what()
        self.done[what.__name__] += 1

    def place(self) -> tuple[str, str]:
        """A namespace and a name."""
        return self.rng.choice(self.namespaces), self.rng.choice(NAMES)

    def create_object(self) -> None:
        """Mostly immutable; the name may be taken."""
        namespace, name = self.place()
        make = self.rng.choice([config_map, secret])
        data = {"MODE": str(self.rng.random())}
        self._create(namespace, make(name, data, immutable=self.rng.random() < 0.8))

    def delete_object(self) -> None:
        """Without waiting."""
        namespace, name = self.place()
        self._do(
            "delete", "-n", namespace, f"{self.rng.choice(['configmap', 'secret'])}/{name}", "--wait=false"
        )

    def turn_immutable(self) -> None:
        """Under running pods."""
        namespace, name = self.place()
        self._do("patch", "-n", namespace, f"configmap/{name}", "--type=merge", "-p", '{"immutable":true}')

    def annotate(self) -> None:
        """Somebody else's changes of the same objects."""
        namespace, name = self.place()
        self._do("annotate", "-n", namespace, f"configmap/{name}", f"x={self.rng.random()}", "--overwrite")

    def create_pod(self) -> None:
        """Half of them run on a node; all refer to something that may not be there."""
        namespace, _ = self.place()
        self._serial += 1
        spec = self._spec()
        self._create(
            namespace, pod(f"p{self._serial}", spec if self.rng.random() < 0.5 else unscheduled(spec))
        )

    def delete_pod(self) -> None:
        """With its time to end."""
        self._delete_some_pod()

    def force_delete_pod(self) -> None:
        """Without."""
        self._delete_some_pod("--force", "--grace-period=0")

    def scale(self) -> None:
        """A Deployment, made where there is none."""
        namespace, _ = self.place()
        replicas = self.rng.randrange(4)
        if self._do("scale", "-n", namespace, "deployment/web", f"--replicas={replicas}") != 0:
            self._create(namespace, deployment("web", self._spec(), replicas=replicas))

    def volume(self) -> None:
        """A PersistentVolume, made where there is none and else deleted."""
        namespace, name = self.place()
        manifest = persistent_volume(f"storm-{namespace}-{name}", namespace, name)
        if self._create("default", manifest) != 0:
            self._do("delete", "persistentvolume", f"storm-{namespace}-{name}", "--wait=false")

    def end_namespace(self) -> None:
        """Another one takes its place."""
        namespace = self.rng.choice(self.namespaces)
        self._do("delete", "namespace", namespace, "--wait=false")
        self._serial += 1
        another = f"{namespace.split('.')[0].rsplit('-x', 1)[0]}-x{self._serial}"
        self._do("create", "namespace", another)
        self.namespaces[self.namespaces.index(namespace)] = another

    def kill_operator(self) -> None:
        """At whatever it is."""
        self.operator.kill()
        time.sleep(self.rng.random())
        self.operator.start(*self.operator.options)

    def restart_api_server(self) -> None:
        """Everybody's watches break."""
        self.cluster.restart("kube-apiserver")
        wait_until(lambda: self._do("get", "--raw", "/readyz") == 0, 60, "the API server is back")

    def _spec(self) -> Manifest:
        kinds = self.rng.sample(
            [("ConfigMap", name) for name in NAMES] + [("Secret", name) for name in NAMES], 2
        )
        volumes = [
            {"name": f"v{i}", "configMap": {"name": name, "optional": True}}
            if kind == "ConfigMap"
            else {"name": f"v{i}", "secret": {"secretName": name, "optional": True}}
            for i, (kind, name) in enumerate(kinds)
        ]
        return plain_pod_spec(volumes=volumes)

    def _delete_some_pod(self, *how: str) -> None:
        namespace, _ = self.place()
        names = self.kubectl("get", "pods", "-n", namespace, "-o", "name", check=False).stdout.split()
        if names:
            self._do("delete", "-n", namespace, self.rng.choice(sorted(names)), "--wait=false", *how)

    def _create(self, namespace: str, manifest: Manifest) -> int:
        done = self.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest), check=False)
        return done.returncode

    def _do(self, *command: str) -> int:
        return self.kubectl(*command, check=False).returncode
