"""Random histories of one name that is used again, and whether what the operator says of each pod is what the pod really
reads: on its disk, in its environment, where it mounts by `subPath`.

Knows nothing of how the operator comes to its verdicts. `E2E_SEED` replays the steps; what the cluster makes of them is never
quite the same.
"""

import base64
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pykube

from e2e.harness import (
    IN_USE,
    RELEASE,
    Cluster,
    CommandFailed,
    Kubectl,
    Manifest,
    config_map,
    deployment,
    fetch,
    fetch_all,
    finalizers,
    pod,
    secret,
    wait_until,
)

NAME: Final = "app-cfg"
KEY: Final = "MODE"
VALUES: Final = ("red", "green", "blue")
"""Few, so that the same content comes back."""

PHASE_SECONDS: Final = 30.0
"""Pauses between the steps before everybody is quiet, and looked at."""

QUIET_SECONDS: Final = 20.0
PERSISTS_SECONDS: Final = 10.0
"""Pods and verdicts are both on their way for a moment: only what stays wrong for so long is wrong."""

PATIENCE: Final = 60.0

UNTOLD: Final = "Fresh, untold"
"""There is no StaleConfig, or it does not name the pod."""

WAYS: Final[Mapping[str, int]] = {
    "env": 10,
    "optional env": 5,
    "volume": 10,
    "optional volume": 6,
    "projected": 5,
    "subPath": 6,
    "pull": 4,
    "unread": 2,
}
"""How content reaches a pod, and how often. Only Secrets pull. `unread` is a volume that no container mounts: the node's
kubelet counts it all the same."""


# -- what pods use ---------------------------------------------------------------------------------------------------


def pod_spec(kind: str, ways: Iterable[str], node: str, rng: random.Random) -> Manifest:
    """A pod that uses the object in each of these ways, on that node."""
    containers: list[Manifest] = [
        {"name": name, "image": "busybox", "command": ["sleep", "1000000"], "env": [], "volumeMounts": []}
        for name in ("c", "d")[: rng.choice([1, 1, 2])]
    ]
    volumes: list[Manifest] = []
    spec: Manifest = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": containers,
        "volumes": volumes,
    }
    named, by = ("name", "configMap") if kind == "ConfigMap" else ("secretName", "secret")
    for way in ways:
        container = rng.choice(containers)
        if way in ("env", "optional env"):
            key = {"name": NAME, "key": KEY, "optional": way != "env"}
            container["env"] = [{"name": KEY, "valueFrom": {f"{by}KeyRef": key}}]
        elif way == "pull":
            spec["imagePullSecrets"] = [{"name": NAME}]
        elif way == "projected":
            source = {"name": NAME, "optional": rng.random() < 0.3}
            volumes.append({"name": "projected", "projected": {"sources": [{by: source}]}})
            container["volumeMounts"].append({"name": "projected", "mountPath": "/projected"})
        else:
            volume = way.replace(" ", "-").lower()
            optional = way == "optional volume" or (way == "subPath" and rng.random() < 0.3)
            volumes.append({"name": volume, by: {named: NAME, "optional": optional}})
            mount = {"name": volume, "mountPath": f"/{volume}"}
            if way == "subPath":
                mount = {**mount, "mountPath": f"/{volume}/{KEY}", "subPath": KEY}
            if way != "unread":
                container["volumeMounts"].append(mount)
    return spec


def draw_ways(kind: str, rng: random.Random) -> list[str]:
    """One of them or several."""
    known = {way: weight for way, weight in WAYS.items() if way != "pull" or kind == "Secret"}
    drawn = rng.choices(list(known), list(known.values()), k=rng.choice([1, 1, 1, 2, 2, 3]))
    return list(dict.fromkeys(drawn))


# -- what is compared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A running pod: what it reads, and what is said of it."""

    pod: str
    uid: str
    node: str
    reads: Mapping[str, str | None]
    """Way to content; None for nothing."""
    state: str
    """Of what it reads, the worst: `old`, `nothing` although there is something, `live`."""
    verdict: str
    reason: str

    def faults(self, live: str | None) -> Iterator[str]:
        """What is wrong with the verdict."""
        kind = self.verdict.partition(",")[0]
        right = "ServingDeleted" if live is None else "Stale"
        if self.state == "old" and kind not in (right, "Unknown"):
            yield f"reads old content, and is called {self.verdict}"
        if self.state == "live" and kind not in ("Fresh", "Unknown"):
            yield f"reads what is live, and is called {self.verdict}"
        if kind == "Unknown" and not self.reason:
            yield "is called Unknown for no reason"


def state_of(reads: Iterable[str | None], live: str | None) -> str:
    """The worst that is among them."""
    states = {"live" if one == live else "nothing" if one is None else "old" for one in reads}
    return max(states, key=("live", "nothing", "old").index)


@dataclass
class Told:
    """Verdicts that were compared."""

    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By verdict and by what the pod reads."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of the unknown ones."""
    steps: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Told") -> None:
        self.verdicts += other.verdicts
        self.reasons += other.reasons
        self.steps += other.steps

    def total(self, state: str = "") -> int:
        return sum(number for (_, found), number in self.verdicts.items() if state in ("", found))

    def unknown(self, state: str = "") -> float:
        """Their share."""
        of_them = sum(
            n
            for (verdict, found), n in self.verdicts.items()
            if verdict == "Unknown" and state in ("", found)
        )
        return of_them / max(1, self.total(state))

    def table(self) -> str:
        """For people."""
        states = ("live", "nothing", "old")
        lines = [f"{'verdict':16}" + "".join(f"{state:>9}" for state in states)]
        for verdict in ("Fresh", UNTOLD, "Stale", "ServingDeleted", "Unknown"):
            lines.append(f"{verdict:16}" + "".join(f"{self.verdicts[verdict, state]:9}" for state in states))
        lines.append(f"{'unknown':16}" + "".join(f"{self.unknown(state):9.1%}" for state in states))
        lines.append(f"{self.total()} verdicts, {self.unknown():.1%} unknown:")
        lines += [f"{number:5} {reason}" for reason, number in self.reasons.most_common()]
        lines.append(str(dict(self.steps.most_common())))
        return "\n".join(lines)


# -- what is done ----------------------------------------------------------------------------------------------------


@dataclass
class History:
    """One namespace, one name, one random history."""

    cluster: Cluster
    kubectl: Kubectl
    api: pykube.HTTPClient
    namespace: str
    rng: random.Random
    told: Told = field(default_factory=Told)
    log: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _serial: int = 0
    _kind: type[Any] = pykube.ConfigMap
    _stale_kind: type[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._kind = self.rng.choice([pykube.ConfigMap, pykube.Secret])
        self._stale_kind = pykube.object_factory(self.api, "versionedconfig.io/v1alpha1", "StaleConfig")

    def note(self, text: str) -> None:
        """What is done, or happens to it, and when."""
        self.log.append(f"{datetime.now(UTC):%H:%M:%S.%f}"[:-4] + f" {text}")

    # --- steps

    def begin(self) -> None:
        """What there is at first: mostly an object, and some who use it."""
        if self.rng.random() < 0.85:
            self.create()
        for _ in range(self.rng.randrange(1, 4)):
            self.start_pod()
        if self.rng.random() < 0.5:
            self.deploy()

    def go_on(self) -> None:
        """Some steps, each after a pause."""
        left = PHASE_SECONDS
        while left > 0:
            pause = self.rng.uniform(0.05, 1) if self.rng.random() < 0.15 else self.rng.triangular(3, 15, 3)
            left -= pause
            time.sleep(pause)
            self.step()

    def step(self) -> None:
        """One thing that can be done, chosen at random. It may fail: somebody else was faster."""
        weights: dict[Callable[[], None], int] = {
            self.create: 30,
            self.vanish: 8,
            self.reuse: 12,
            self.ask: 2,
            self.flip: 8,
            self.start_pod: 18,
            self.remove_pod: 10,
            self.force_pod: 4,
            self.deploy: 5,
            self.scale: 6,
            self.restart: 6,
            self.move: 5,
        }
        feasible = self._feasible()
        actions = [action for action in weights if action.__name__ in feasible]
        (action,) = self.rng.choices(actions, [weights[action] for action in actions])
        try:
            action()
        except (CommandFailed, pykube.exceptions.HTTPError) as error:
            self.note(f"{action.__name__} was refused: {error}")
            self.told.steps["refused"] += 1
        else:
            self.told.steps[action.__name__] += 1

    def _feasible(self) -> set[str]:
        found = {"start_pod"}
        live = self.live()
        if live is None:
            found |= {"create"}
        else:
            found |= {"vanish", "reuse"}
            if "deletionTimestamp" not in live["metadata"]:
                found |= {"ask"} if IN_USE in finalizers(live) else set()
                found |= set() if live.get("immutable") else {"flip"}
        if self._bare_pods():
            found |= {"remove_pod", "force_pod"}
        there = fetch(self.api, pykube.Deployment, self.namespace, "web") is not None
        return found | ({"scale", "restart", "move"} if there else {"deploy"})

    def create(self) -> None:
        """Mostly immutable."""
        value, immutable = self.rng.choice(VALUES), self.rng.random() < 0.75
        make = config_map if self._kind is pykube.ConfigMap else secret
        manifest = make(NAME, {KEY: value}, immutable=immutable)
        manifest["metadata"]["namespace"] = self.namespace
        made = self._kind(self.api, manifest)
        made.create()
        self.note(f"create {'immutable' if immutable else 'mutable'} {value} {made.obj['metadata']['uid']}")

    def vanish(self) -> None:
        """Although it is in use."""
        how = self.rng.choice(["release", "strip", "late"])
        found = self._kind(self.api, self.live() or {})
        self.note(f"vanish ({how})")
        if how == "late":
            found.delete()
            time.sleep(self.rng.uniform(0.1, 4))
        annotation = {"metadata": {"annotations": {RELEASE: "a test"}}}
        if how == "strip":
            found.patch({"metadata": {**annotation["metadata"], "finalizers": None}})
        elif self.live() is not None:
            found.patch(annotation)
        found.delete()
        try:
            wait_until(lambda: self.live() is None, 3, "it is released")
        except AssertionError:
            # No operator is there.
            found.patch({"metadata": {"finalizers": None}})
            wait_until(lambda: self.live() is None, 10, "it is gone")
        self.note("gone")

    def reuse(self) -> None:
        """In one go, or nearly."""
        self.vanish()
        time.sleep(self.rng.choice([0, 0, 0.3, 1.5]))
        self.create()

    def ask(self) -> None:
        """For its deletion: it stays as long as it is in use."""
        self.note("delete, protected")
        self._kind(self.api, self.live() or {}).delete()

    def flip(self) -> None:
        """Make it immutable under running pods."""
        self.note("flip")
        self._kind(self.api, self.live() or {}).patch({"immutable": True})

    def start_pod(self) -> None:
        """On some node."""
        self._serial += 1
        ways = draw_ways(self._kind.kind, self.rng)
        self._start(f"p{self._serial}", ways, self.rng.choice(self.cluster.nodes))

    def remove_pod(self) -> None:
        """With its time to end."""
        name = self.rng.choice(self._bare_pods())
        self.note(f"remove {name}")
        self._delete_pod(name)

    def force_pod(self) -> None:
        """Without."""
        name = self.rng.choice(self._bare_pods())
        self.note(f"force {name}")
        self._delete_pod(name, gracePeriodSeconds=0)

    def deploy(self) -> None:
        """A Deployment of which all pods are on one node."""
        ways, node = draw_ways(self._kind.kind, self.rng), self.rng.choice(self.cluster.nodes)
        replicas = self.rng.randrange(1, 4)
        manifest = deployment(spec=pod_spec(self._kind.kind, ways, node, self.rng), replicas=replicas)
        manifest["metadata"]["namespace"] = self.namespace
        pykube.Deployment(self.api, manifest).create()
        self.note(f"deploy {replicas} on {node}: {', '.join(ways)}")

    def scale(self) -> None:
        replicas = self.rng.randrange(4)
        self.note(f"scale to {replicas}")
        self._web().patch({"spec": {"replicas": replicas}})

    def restart(self) -> None:
        self.note("rollout restart")
        self.kubectl("rollout", "restart", "-n", self.namespace, "deployment/web")

    def move(self) -> None:
        """To a node, which may be the same."""
        node = self.rng.choice(self.cluster.nodes)
        self.note(f"move to {node}")
        selector = {"kubernetes.io/hostname": node}
        self._web().patch({"spec": {"template": {"spec": {"nodeSelector": selector}}}})

    def live(self) -> Manifest | None:
        """The object as it is."""
        return fetch(self.api, self._kind, self.namespace, NAME)

    def pods(self) -> list[Manifest]:
        """Those that nobody asked to end."""
        found = fetch_all(self.api, pykube.Pod, self.namespace)
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def _ending(self) -> bool:
        pods = fetch_all(self.api, pykube.Pod, self.namespace)
        return any("deletionTimestamp" in one["metadata"] for one in pods)

    def _bare_pods(self) -> list[str]:
        names = (one["metadata"]["name"] for one in self.pods() if "ownerReferences" not in one["metadata"])
        return sorted(names)

    def _web(self) -> Any:
        return pykube.Deployment(self.api, fetch(self.api, pykube.Deployment, self.namespace, "web") or {})

    def _start(self, name: str, ways: list[str], node: str) -> None:
        manifest = pod(name, pod_spec(self._kind.kind, ways, node, self.rng))
        manifest["metadata"]["namespace"] = self.namespace
        pykube.Pod(self.api, manifest).create()
        self.note(f"pod {name} on {node}: {', '.join(ways)}")

    def _delete_pod(self, name: str, **options: int) -> None:
        body = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", **options})
        answer = self.api.delete(version="v1", namespace=self.namespace, url=f"pods/{name}", data=body)
        self.api.raise_for_status(answer)

    # --- looking

    def check(self) -> None:
        """Be quiet, then compare what is said with what is."""
        wait_until(lambda: not self._ending(), PATIENCE, "no pod is about to end")
        # What a node pulls with shows in no file. Another pod there is served the same.
        pulling = [one["spec"].get("nodeName") for one in self.pods() if "imagePullSecrets" in one["spec"]]
        probes = [f"probe-{node}" for node in sorted(filter(None, set(pulling)))]
        for name in probes:
            self._start(name, ["optional volume"], name.removeprefix("probe-"))
        self.note("quiet")
        time.sleep(QUIET_SECONDS)
        self._compare()
        for name in probes:
            self._delete_pod(name)

    def _compare(self) -> None:
        since: dict[tuple[str, str], float] = {}
        deadline = time.monotonic() + PATIENCE
        while True:
            live, found = self.look()
            now = time.monotonic()
            wrong = {(one.uid, fault): one for one in found for fault in one.faults(live)}
            since = {key: since.get(key, now) for key in wrong}
            lasting = [key for key in wrong if now - since[key] > PERSISTS_SECONDS]
            if lasting or not wrong or now > deadline:
                break
            time.sleep(1)
        self.note(f"compared {len(found)} pods")
        for one in found:
            self.told.verdicts[one.verdict, one.state] += 1
            if one.verdict == "Unknown":
                self.told.reasons[one.reason] += 1
                self.note(f"{one.pod} on {one.node} reads {one.reads}: unknown, {one.reason}")
        for uid, fault in lasting:
            one = wrong[uid, fault]
            self.faults.append(
                f"{one.pod} on {one.node} {fault} ({one.reason}): {dict(one.reads)}, live: {live}"
            )
            self.note(f"FAULT {self.faults[-1]}")
        if lasting:
            self.log.append(self._evidence())

    def look(self) -> tuple[str | None, list[Found]]:
        """The live content, and each running pod that reads it in some way that can be seen."""
        object_ = self.live()
        live = self._content(object_)
        pods = self.pods()
        status = self._status()
        told = {pod["uid"]: pod for node in status.get("nodes", ()) for pod in node.get("pods", ())}
        served = {
            one["spec"]["nodeName"]: self._files(one).get(f"optional-volume/{KEY}")
            for one in pods
            if one["metadata"]["name"].startswith("probe-") and running(one)
        }
        found = []
        for one in pods:
            meta, node = one["metadata"], one["spec"].get("nodeName", "")
            if not running(one):
                continue
            reads = dict(self._reads(one))
            if "imagePullSecrets" in one["spec"]:
                if node not in served:
                    continue
                reads["pull"] = served[node]
            if reads:
                verdict = told.get(meta["uid"], {"verdict": UNTOLD})
                state = state_of(reads.values(), live)
                reason = verdict.get("reason", "")
                found.append(Found(meta["name"], meta["uid"], node, reads, state, verdict["verdict"], reason))
        return live, found

    def _reads(self, one: Manifest) -> Iterator[tuple[str, str | None]]:
        node, uid = one["spec"]["nodeName"], one["metadata"]["uid"]
        for container in one["spec"]["containers"]:
            name = container["name"]
            if name not in running(one):
                continue
            if container.get("env"):
                yield f"env of {name}", (self.cluster.environment(node, uid, name) or {}).get(KEY)
            if any("subPath" in mount for mount in container["volumeMounts"]):
                content = self.cluster.sub_paths(node, uid, name).get(f"/subpath/{KEY}")
                yield f"subPath of {name}", content.decode() if content is not None else None
        files = self._files(one)
        for volume in ("volume", "optional-volume", "projected"):
            if any(volume == found["name"] for found in one["spec"].get("volumes", ())):
                yield volume, files.get(f"{volume}/{KEY}")

    def _files(self, one: Manifest) -> dict[str, str]:
        files = self.cluster.files(one["spec"]["nodeName"], one["metadata"]["uid"])
        return {path: content.decode() for path, content in files.items() if not path.startswith("kube-api-")}

    def _content(self, found: Manifest | None) -> str | None:
        if found is None:
            return None
        value: str = found["data"][KEY]
        return base64.b64decode(value).decode() if self._kind is pykube.Secret else value

    def _status(self) -> dict[str, Any]:
        name = f"{self._kind.kind.lower()}-{NAME}"
        found = fetch(self.api, self._stale_kind, self.namespace, name)
        return dict(found.get("status", {})) if found is not None else {}

    def _evidence(self) -> str:
        pods = fetch_all(self.api, pykube.Pod, self.namespace)
        shown = [
            {"name": one["metadata"]["name"], "uid": one["metadata"]["uid"], "status": one["status"]}
            for one in pods
        ]
        return json.dumps({"status": self._status(), "pods": shown})


def running(found: Manifest) -> set[str]:
    """Names of its containers that run."""
    statuses = found.get("status", {}).get("containerStatuses", ())
    return {one["name"] for one in statuses if "running" in one["state"]}
