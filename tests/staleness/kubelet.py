"""A model of the kubelet's cache and of the pods it runs, in simulated time, with an operator that hears of it late.

Written from the kubelet's code (pkg/kubelet/util/manager/watch_based_manager.go, pkg/kubelet/kubelet.go), and knows nothing
of how the judge thinks. One object name; several nodes.
"""

import functools
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from versionedconfig.staleness.history import ABSENCE, EVER, NEVER, NOT_YET, Life, Span, Timing
from versionedconfig.staleness.judge import Kind, Verdict, judge, over, settle
from versionedconfig.staleness.record import Case, Consumer, Sight, Start, Usage

ENV = Usage("ConfigMap", "app", consumers=(Consumer("c", env=True, sub_path=False, required=True),))
OPTIONAL_ENV = Usage("ConfigMap", "app", consumers=(Consumer("c", env=True, sub_path=False, required=False),))
VOLUME = Usage("ConfigMap", "app", reads=True, follows=True)
OPTIONAL_VOLUME = Usage("ConfigMap", "app", reads=True, follows=True, required=False)
SUB_PATH = Usage("ConfigMap", "app", reads=True, consumers=(Consumer("c", False, True, required=False),))
BOTH = Usage(
    "ConfigMap", "app", reads=True, follows=True, consumers=(Consumer("c", True, False, required=True),)
)
PULL = Usage("ConfigMap", "app", reads=True, pulls=True, required=False)
UNREAD = Usage("ConfigMap", "app")
USAGES = (ENV, OPTIONAL_ENV, VOLUME, OPTIONAL_VOLUME, SUB_PATH, BOTH, PULL, UNREAD)


@dataclass(eq=False)
class Thing:
    """The object as it is in the API."""

    uid: str
    content: str
    immutable: bool
    created: float


@dataclass(eq=False)
class RunningPod:
    uid: str
    node: str
    usage: Usage
    bound: float
    registered: bool = False
    mounted: bool = False
    set_up: float = 0
    files: Thing | None = None
    env: Thing | None = None
    sub_path: Thing | None = None
    started: float = 0
    """In the moment's whole seconds, as the status says."""
    running: bool = False
    deleting: bool = False
    """In the API."""
    ending: bool = False
    """As the kubelet knows it."""
    finished: bool = False
    gone: bool = False
    dead: bool = False
    """Nothing of it runs."""
    told: tuple[float, float, bool, bool] = (0, 0, False, False)
    """What its status says: set_up, started, running, finished."""


@dataclass(eq=False)
class ModelNode:
    name: str
    view: Thing | None = None
    """Of the cache that follows the API."""
    pinned: Thing | str | None = None
    refs: set[str] = field(default_factory=set)
    cut_since: float = 0
    healed: float = 0
    unready: bool = False
    """As the API says."""
    cut: Span | None = None
    """As it was heard; the last one."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """What the kubelet hears, and what is heard of it, when it is connected again."""


class World:
    """The cluster, the kubelets and what the operator hears."""

    def __init__(self, rng: random.Random, timing: Timing, nodes: int = 2) -> None:
        self.now = 1_000_000.0
        self.rng = rng
        self.timing = timing
        self.nodes = {f"n{i}": ModelNode(f"n{i}") for i in range(nodes)}
        self.thing: Thing | None = None
        self.pods: dict[str, RunningPod] = {}
        self.case: Case | None = None
        self.log: list[str] = []
        self._mirror: dict[str, Sight] = {}
        self._departed: deque[tuple[float, Sight, bool]] = deque()
        self._usages: dict[str, Usage] = {}
        self._life: Life | None = None
        self._views: dict[str, float] = {}
        self._left = EVER
        self._restarts: dict[str, Span] = {}
        self._ids = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._pod_stream = 0.0
        self._thing_stream = 0.0
        self._truth: dict[str, tuple[str, list[str | None], float]] = {}

    # --- time

    def later(self, least: float, most: float, what: Callable[[], None]) -> None:
        at = self.now + self.rng.uniform(least, most)
        heapq.heappush(self._queue, (at, next(self._ids), what))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            self._note_truth()
        self.now = end
        self._note_truth()

    def say(self, text: str) -> None:
        self.log.append(f"{self.now:.2f} {text}")

    # --- the API

    def create(self, content: str, immutable: bool) -> None:
        self.thing = Thing(f"uid{next(self._ids)}", content, immutable, self.now)
        self.say(f"create {self.thing}")
        self._thing_changed()

    def delete(self) -> None:
        self.say("delete")
        self.thing = None
        self._thing_changed()

    def flip(self) -> None:
        assert self.thing is not None
        self.say("flip")
        self.thing = replace(self.thing, immutable=True)
        self._thing_changed()

    def _thing_changed(self) -> None:
        state = self.thing
        for node in self.nodes.values():

            def deliver(node: ModelNode = node) -> None:
                node.view = state

            self._deliver(node, deliver)
        at = self._thing_stream = max(
            self._thing_stream, self.now + self.rng.uniform(0, self.timing.watch_lag * 0.95)
        )
        heapq.heappush(self._queue, (at, next(self._ids), lambda: self._hear_thing(state)))

    def _deliver(self, node: ModelNode, deliver: Callable[[], None]) -> None:
        at = self.now + self.rng.uniform(0, self.timing.cache_lag * 0.95)
        at = self._views[node.name] = max(self._views.get(node.name, 0), at)
        heapq.heappush(self._queue, (at, next(self._ids), lambda: self._connected(node, deliver)))

    def _connected(self, node: ModelNode, what: Callable[[], None]) -> None:
        """Now, or when the node can be reached again."""
        if node.cut_since:
            node.waiting.append(what)
        else:
            what()

    def cut(self, name: str) -> None:
        """The node from the API server."""
        node = self.nodes[name]
        if node.cut_since:
            return
        self.say(f"cut {name}")
        since = node.cut_since = self.now

        def unready() -> None:
            if node.cut_since == since:
                node.unready = True
                earliest = self.now - self.timing.watch_lag - self.timing.silence
                self._heard_cut(node, Span(earliest, NEVER))

        self.later(self.timing.silence * 0.8, self.timing.silence, unready)

    def _heard_cut(self, node: ModelNode, within: Span) -> None:
        node.cut = within
        if self.case is not None:
            self.case.cut_off(node.name, within)

    def heal(self, name: str) -> None:
        """It is connected again."""
        node = self.nodes[name]
        if not node.cut_since:
            return
        self.say(f"heal {name}")
        node.cut_since = 0
        node.healed = self.now
        waiting, node.waiting = node.waiting, []
        for what in waiting:
            what()

        def ready() -> None:
            if node.unready and not node.cut_since:
                node.unready = False
                assert node.cut is not None
                self._heard_cut(node, Span(node.cut.earliest, self.now))

        self.later(self.timing.report * 1.1, self.timing.report * 2, ready)

    # --- the kubelets

    def get(self, node: ModelNode) -> Thing | None:
        if node.pinned is not None:
            return None if isinstance(node.pinned, str) else node.pinned
        found = node.view
        if found is not None and found.immutable:
            if found.uid != (self.thing.uid if self.thing else "") and self.rng.random() < 0.2:
                node.pinned = ABSENCE
            else:
                node.pinned = found
        return found

    def start_pod(self, usage: Usage, node: str) -> RunningPod:
        pod = RunningPod(f"pod{next(self._ids)}", node, usage, self.now)
        self.say(f"pod {pod.uid} on {node}: {usage}")
        self.pods[pod.uid] = pod
        self._tell(pod)
        self.later(0, 1.5, lambda: self._connected(self.nodes[node], lambda: self._sync(pod)))
        return pod

    def _register(self, node: ModelNode, pod: RunningPod) -> None:
        if not node.refs:
            node.pinned = None
            if not node.cut_since:
                node.view = self.thing
        node.refs.add(pod.uid)
        pod.registered = True

    def _release(self, pod: RunningPod) -> None:
        node = self.nodes[pod.node]
        node.refs.discard(pod.uid)
        pod.registered = False
        if not node.refs:
            node.pinned = None

    def _sync(self, pod: RunningPod) -> None:
        if pod.ending or pod.dead:
            return
        node = self.nodes[pod.node]
        if not pod.registered:
            self._register(node, pod)
        ready = self._sync_volume(pod)
        again: tuple[float, float] = (1, 3)
        if ready and not pod.running:
            if not pod.set_up:
                pod.set_up = math.floor(self.now)
            if self._start(pod):
                again = (self.timing.sync * 0.5, self.timing.sync * 0.95)
        elif ready:
            again = (self.timing.sync * 0.5, self.timing.sync * 0.95)
        elif pod.running:
            again = (5, 20)
        self.later(*again, lambda: self._sync(pod))

    def _sync_volume(self, pod: RunningPod) -> bool:
        if not pod.usage.reads:
            return True
        found = self.get(self.nodes[pod.node])
        if found is None and pod.usage.required and not pod.usage.pulls:
            return False
        if not pod.usage.pulls:
            pod.files = found
        pod.mounted = True
        return True

    def _start(self, pod: RunningPod) -> bool:
        for consumer in pod.usage.consumers:
            if consumer.env:
                found = self.get(self.nodes[pod.node])
                if found is None and consumer.required:
                    return False
                pod.env = found
            if consumer.sub_path:
                pod.sub_path = pod.files
        pod.running = True

        def started() -> None:
            if pod.running:
                pod.started = math.floor(self.now)
                self.later(0, self.timing.report * 0.9, lambda: self._report(pod))

        self.later(0, self.timing.start * 0.9, started)
        return True

    def crash(self, pod: RunningPod) -> None:
        self.say(f"crash {pod.uid}")
        pod.running = False
        self.later(0, self.timing.report * 0.9, lambda: self._report(pod))
        self.later(0.1, 15, lambda: self._sync(pod))

    def restart_kubelet(self, name: str) -> None:
        self.say(f"kubelet restart {name}")
        node = self.nodes[name]
        node.refs.clear()
        node.pinned = None
        for pod in self.pods.values():
            if pod.node == name and not pod.dead:
                pod.registered = False
                if not pod.ending:
                    # It knows its pods from the API alone.
                    self._connected(node, functools.partial(self._resync, pod))
        stamp, skew = math.floor(self.now), self.timing.clock_skew
        self._restarts[name] = Span(stamp - skew, stamp + 1 + skew)
        if self.case is not None:
            self.case.restarted(name, self._restarts[name])

    def _resync(self, pod: RunningPod) -> None:
        self.later(0, self.timing.resync * 0.9, lambda: self._sync(pod))

    def finish(self, pod: RunningPod) -> None:
        """It ends by itself."""
        self.say(f"finish {pod.uid}")
        pod.ending = True
        self._stop(pod, removes=False)

    def remove(self, pod: RunningPod) -> None:
        """Gracefully."""
        self.say(f"remove {pod.uid}")
        pod.deleting = True
        self._tell(pod)

        def heard() -> None:
            pod.ending = True
            self.later(0, 6, lambda: self._stop(pod, removes=True))

        self.later(0, self.timing.cache_lag * 0.95, lambda: self._connected(self.nodes[pod.node], heard))

    def _stop(self, pod: RunningPod, *, removes: bool) -> None:
        if pod.dead:
            return
        pod.dead, pod.running = True, False
        status, release = self.rng.uniform(0, 2), self.rng.uniform(0, 3)

        def finished() -> None:
            if not pod.gone:
                pod.finished = True
                self._report(pod)

        self.later(status, status, finished)
        self.later(release, release, lambda: self._release(pod))
        if removes:
            self.later(max(status, release) + 0.01, max(status, release) + 1, lambda: self._leave(pod))

    def _leave(self, pod: RunningPod) -> None:
        def leave() -> None:
            if not pod.gone:
                pod.gone = True
                self._tell(pod)

        self._connected(self.nodes[pod.node], leave)

    def take(self, pod: RunningPod) -> None:
        """Force-deleted."""
        self.say(f"take {pod.uid}")
        node = self.nodes[pod.node]
        pod.deleting = pod.gone = True
        self._tell(pod)

        def heard() -> None:
            pod.ending = True
            self.later(0, 30, lambda: self._stop(pod, removes=False))

        self.later(0, self.timing.cache_lag * 0.95, lambda: self._connected(node, heard))

        def alive() -> None:
            if node.unready or node.cut_since:
                self.later(90, 95, alive)
            elif self.case is not None:
                self.case.let_go(pod.node, self.now)

        self.later(90, 95, alive)

    # --- the operator

    def _report(self, pod: RunningPod) -> None:
        """The kubelet writes the pod's status."""

        def report() -> None:
            pod.told = (pod.set_up, pod.started, pod.running, pod.finished)
            self._tell(pod)

        self._connected(self.nodes[pod.node], report)

    def _tell(self, pod: RunningPod) -> None:
        """A pod event on its way; they arrive in order."""
        self._usages[pod.uid] = pod.usage
        set_up, started, running, finished = pod.told
        gone = pod.gone
        sight = Sight(
            uid=pod.uid,
            name=pod.uid,
            node=pod.node,
            scheduled=math.floor(pod.bound),
            set_up=set_up,
            starts=(Start("c", started, running, over=False),),
            ending=pod.deleting,
            finished=finished,
        )
        at = self._pod_stream = max(
            self._pod_stream, self.now + self.rng.uniform(0, self.timing.watch_lag * 0.95)
        )
        heapq.heappush(self._queue, (at, next(self._ids), lambda: self._hear_pod(sight, gone)))

    def _hear_pod(self, sight: Sight, gone: bool) -> None:
        if gone or sight.finished:
            self._mirror.pop(sight.uid, None)
            self._left = self.now
            self._departed.append((self.now, sight, gone))
        else:
            self._mirror[sight.uid] = sight
        if self.case is not None:
            if gone:
                self.case.gone(sight, self.now)
            else:
                self.case.seen(sight, self._usages[sight.uid], self.now)

    def _hear_thing(self, thing: Thing | None) -> None:
        if thing is None:
            assert self._life is not None
            if self.case is None:
                self._open(self._life)
            assert self.case is not None
            self.case.died(self._life.uid, Span(self.now - self.timing.watch_lag, self.now))
            self._life = None
            return
        stamp, skew = math.floor(thing.created), self.timing.clock_skew
        created = Span(stamp - skew, min(stamp + 1 + skew, self.now))
        known = self._life
        immutable = NOT_YET
        if thing.immutable:
            if known is None:
                immutable = created
            elif known.immutable == NOT_YET:
                immutable = Span(self.now - self.timing.watch_lag, self.now)
            else:
                immutable = known.immutable
        self._life = Life(thing.uid, created, immutable=immutable, digests=(thing.content,))
        if self.case is not None:
            self.case.born(self._life)

    def _open(self, life: Life) -> None:
        self.say("case opened")
        self.case = Case([life], self._left, self.timing)
        for name, within in self._restarts.items():
            self.case.restarted(name, within)
        for node in self.nodes.values():
            if node.cut is not None:
                self.case.cut_off(node.name, node.cut)
        for sight in self._mirror.values():
            self.case.seen(sight, self._usages[sight.uid], self.now, since=EVER)
        for at, sight, gone in self._departed:
            if at > self.now - self.timing.release - 10 or (gone and not sight.finished):
                if sight.uid not in self._mirror:
                    self.case.seen(sight, self._usages[sight.uid], at, since=EVER)
                if gone:
                    self.case.gone(sight, at)

    def tidy(self) -> None:
        """Settle what is old, and close what is over."""
        if self.case is None:
            return
        history = self.case.history()
        if over(history, self.now, self.timing):
            self.say("case closed")
            self.case = None
        else:
            self.say("settled")
            self.case.replace(settle(history, self.now - 300, self.now, self.timing))

    # --- what is compared

    def _serves(self, pod: RunningPod) -> list[Thing | None]:
        parts: list[Thing | None] = []
        if pod.running and pod.started:
            for consumer in pod.usage.consumers:
                parts += [pod.env] if consumer.env else [pod.sub_path]
        if pod.usage.follows and pod.mounted:
            parts.append(pod.files)
        if pod.usage.pulls and pod.registered:
            node = self.nodes[pod.node]
            found = node.view if node.pinned is None else node.pinned
            parts.append(None if isinstance(found, str) else found)
        return parts

    def _note_truth(self) -> None:
        live = self.thing.content if self.thing else None
        for pod in self.pods.values():
            if pod.dead or pod.gone:
                self._truth.pop(pod.uid, None)
                continue
            contents = [part.content if part else None for part in self._serves(pod)]
            states = {"live" if one == live else "nothing" if one is None else "old" for one in contents}
            worst = max(states, key=("live", "nothing", "old").index, default="live")
            before = self._truth.get(pod.uid)
            if before is None or before[:2] != (worst, contents):
                self._truth[pod.uid] = (worst, contents, self.now)

    def steady(self) -> dict[str, str]:
        """Pods of which it is long so, and heard, with what is worst of what they read."""
        heard = self.timing.watch_lag + self.timing.report + self.timing.cache_lag + self.timing.start
        return {
            uid: state
            for uid, (state, _, since) in self._truth.items()
            if self.now - since > heard
            and not self.pods[uid].gone
            and self._told_of(self.nodes[self.pods[uid].node], heard)
        }

    def _told_of(self, node: ModelNode, heard: float) -> bool:
        """What happens on a node that is cut off, and not known to be, nobody can know."""
        return not (node.cut_since and not node.unready) and self.now - node.healed > heard

    def verdicts(self) -> dict[str, Verdict]:
        if self.case is None:
            return {}
        return {verdict.pod: verdict for verdict in judge(self.case.history(), self.now, self.timing)}

    def check(self) -> tuple[int, int]:
        """Verdicts given and unknown ones among them.

        Raises:
            AssertionError: one is wrong.
        """
        verdicts = self.verdicts()
        for uid, state in self.steady().items():
            verdict = verdicts.get(uid)
            if verdict is None:
                assert self.case is not None or state != "old", f"{uid} reads old content and nobody looks"
                continue
            if verdict.kind is Kind.FRESH:
                assert state == "live", f"{uid} reads {state} and is called fresh: {verdict}"
            if verdict.kind in (Kind.STALE, Kind.DELETED):
                assert state != "live", f"{uid} is called {verdict.kind}: {verdict}"
        return len(verdicts), sum(one.kind is Kind.UNKNOWN for one in verdicts.values())
