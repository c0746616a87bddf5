"""Turns what is seen, as it arrives, into a history (history.py). Pure: the caller says what time it is.

What is seen of a pod's start and of an object's life carries timestamps of whole seconds; what is seen to end carries only
the time at which we heard. Each becomes a span that holds the truth.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from versionedconfig.staleness.history import (
    EVER,
    NEVER,
    NOT_YET,
    Container,
    History,
    Life,
    NodeHistory,
    Run,
    Span,
    Timing,
    Use,
    source_of,
)

_MOMENT: Final = 0.001
"""Seconds."""


class Consumer(NamedTuple):
    """A container that takes a config object's content when it starts."""

    container: str
    env: bool
    sub_path: bool
    required: bool


class Usage(NamedTuple):
    """How a pod spec uses one config object. The same for every pod of a template."""

    kind: str
    name: str
    reads: bool = False
    follows: bool = False
    pulls: bool = False
    required: bool = True
    fragile: bool = False
    consumers: tuple[Consumer, ...] = ()


class Start(NamedTuple):
    """What a pod's status says of one container."""

    container: str
    at: float
    """When it was started last, in whole seconds; 0 where it never was."""
    running: bool
    over: bool
    """It ended well and stays ended, as an init container."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A pod as it was seen."""

    uid: str
    name: str
    node: str
    scheduled: float
    """When it was bound to the node, in whole seconds."""
    set_up: float
    """When its volumes were mounted, in whole seconds; 0 where that is not known."""
    starts: tuple[Start, ...]
    ending: bool
    """Its deletion was asked for."""
    finished: bool
    """All its containers have ended, and its kubelet said so."""


class Case:
    """One key that needs watching, as long as it does."""

    def __init__(self, lives: Iterable[Life], unseen_until: float, timing: Timing) -> None:
        """
        Args:
            lives: what is known of them.
            unseen_until: when a pod that names the key left last, or when it was begun to look: who left is forgotten,
                and what it did in a node's cache may be there still.
        """
        self._timing = timing
        self._lives = list(lives)
        self._nodes: dict[str, NodeHistory] = {}
        self._uses: dict[str, dict[str, Use]] = {}
        """By node and uid."""
        self._unseen = [Span(EVER, unseen_until)]
        self.changes = 0
        """Goes up with everything that is told."""

    def history(self) -> History:
        """All of it."""
        return History(
            lives=tuple(self._lives),
            nodes=tuple(
                replace(self._nodes.get(name) or NodeHistory(name), uses=tuple(uses.values()))
                for name, uses in self._uses.items()
                if uses
            ),
            unseen=tuple(self._unseen),
        )

    def replace(self, history: History) -> None:
        """Go on from there (judge.settle)."""
        self._lives = list(history.lives)
        self._nodes = {node.name: replace(node, uses=()) for node in history.nodes}
        self._uses = {node.name: {use.pod: use for use in node.uses} for node in history.nodes}
        self._unseen = list(history.unseen)

    def born(self, life: Life) -> None:
        """A new incarnation, or another state of the live one."""
        self.changes += 1
        if self._lives and self._lives[-1].uid == life.uid:
            known, new = self._lives[-1], life.digest
            fixed = known.immutable != NOT_YET
            life = replace(
                life,
                created=known.created,
                immutable=known.immutable if fixed else life.immutable,
                digests=known.digests
                if life.digest == known.digest or fixed
                else (*known.digests, *life.digests),
                also=known.also if fixed or new == known.digest else "",
            )
            if known.digest and source_of(new) != source_of(known.digest):
                # The same content as far as anyone knows, called something else since a restart of ours.
                life = replace(life, digests=(*known.digests[:-1], new), also=known.digest)
            self._lives[-1] = life
        else:
            self._lives.append(life)

    def died(self, uid: str, within: Span) -> None:
        """The live one is gone."""
        self.changes += 1
        if self._lives and self._lives[-1].uid == uid and self._lives[-1].ended == NOT_YET:
            self._lives[-1] = replace(self._lives[-1], ended=within)

    def seen(self, sight: Sight, usage: Usage, at: float, *, since: float | None = None) -> None:
        """A pod came or changed.

        Args:
            at: when that was heard.
            since: what is new of it happened then at the earliest, as in a list, where nothing was heard for a while (EVER:
                it may always have been so). None: it was heard when it happened.
        """
        self.changes += 1
        if not sight.node:
            return
        uses = self._uses.setdefault(sight.node, {})
        before = uses.get(sight.uid)
        if before is None:
            bound = self._stamped(sight.scheduled, at, since is not None)
            for uid, other in uses.items() if since is None else ():
                # Pods come in the order in which they changed: whoever had left was let go of before this one came. So
                # there was a moment with neither, however the timestamps overlap.
                if other.left and bound.earliest <= other.released.latest:
                    end = bound.earliest - _MOMENT
                    uses[uid] = replace(other, released=Span(min(other.released.earliest, end), end))
            before = Use(
                pod=sight.uid,
                name=sight.name,
                bound=bound,
                reads=usage.reads,
                follows=usage.follows,
                pulls=usage.pulls,
                required=usage.required,
                fragile=usage.fragile,
            )
        uses[sight.uid] = self._updated(before, sight, usage, at, since)

    def gone(self, sight: Sight, at: float) -> None:
        """A pod left the API; its last state."""
        self.changes += 1
        uses = self._uses.get(sight.node, {})
        if (use := uses.get(sight.uid)) is None:
            return
        heard = self._reported(sight.node, at) if sight.finished else self._heard(at)
        if sight.finished:
            # The kubelet lets go before it deletes (status_manager.go, podIsFinished).
            earliest = max(min(use.released.earliest, heard.earliest), use.outlived)
            uses[sight.uid] = replace(use, released=Span(earliest, min(use.released.latest, at)), left=True)
        elif use.released == NOT_YET:
            uses[sight.uid] = replace(use, released=Span(heard.earliest, NEVER), taken=True)

    def let_go(self, node: str, at: float) -> None:
        """The node's kubelet is alive and has long heard of every pod that was taken from it."""
        self.changes += 1
        for uid, use in self._uses.get(node, {}).items():
            if use.taken and use.released.latest > at:
                self._uses[node][uid] = replace(use, released=Span(use.released.earliest, at))

    def restarted(self, node: str, within: Span) -> None:
        """The node's kubelet did."""
        self.changes += 1
        known = self._nodes.get(node) or NodeHistory(node)
        self._nodes[node] = replace(known, restarts=(*known.restarts, within))

    def cut_off(self, node: str, within: Span) -> None:
        """The node was without the API server, as far as is known, from then to then; NEVER while it is."""
        self.changes += 1
        known = self._nodes.get(node) or NodeHistory(node)
        before = tuple(cut for cut in known.cuts if cut.earliest != within.earliest)
        self._nodes[node] = replace(known, cuts=(*before, within))

    def absent(self, present: frozenset[str], since: float, at: float) -> None:
        """Pods that are not among these (uids) went at some time between."""
        self.changes += 1
        for uses in self._uses.values():
            for uid, use in uses.items():
                if uid not in present and not use.taken and use.released.latest > at:
                    uses[uid] = replace(use, released=Span(min(since, use.released.earliest), at))

    @property
    def set_up(self) -> float:
        """By when all pods that were seen to run were set up; EVER for none."""
        found = (use.set_up for uses in self._uses.values() for use in uses.values())
        return max((one for one in found if one < NEVER), default=EVER)

    def lost(self, sight: Sight, since: float, at: float) -> None:
        """A pod is gone, and nobody saw how, at some time between."""
        self.changes += 1
        if (use := self._uses.get(sight.node, {}).get(sight.uid)) is not None and use.released.latest > at:
            released = Span(min(since, use.released.earliest), at)
            self._uses[sight.node][sight.uid] = replace(use, released=released)

    def missed(self, since: float, at: float) -> None:
        """Nobody looked from then to then."""
        self.changes += 1
        self._unseen.append(Span(since, at))

    def _updated(self, use: Use, sight: Sight, usage: Usage, at: float, since: float | None) -> Use:
        set_up = use.set_up
        starts = {one.container: one for one in sight.starts}
        for stamp in (sight.set_up, *(one.at for one in sight.starts)):
            if stamp:
                set_up = min(set_up, self._stamped(stamp, at, True).latest)
        known = {one.name: one for one in use.containers}
        containers = tuple(
            self._container(
                known.get(consumer.container)
                or Container(consumer.container, consumer.env, consumer.sub_path, consumer.required),
                starts.get(consumer.container),
                sight.node,
                at,
            )
            for consumer in usage.consumers
        )
        ending, released, outlived = use.ending, use.released, use.outlived
        reported = Span(since, at) if since is not None else self._reported(sight.node, at)
        if ending == NOT_YET and (sight.ending or sight.finished):
            ending = self._heard(at) if sight.ending and since is None else reported
            if sight.ending and since is None:
                others = (other.set_up for other in self._uses[sight.node].values() if other.pod != use.pod)
                outlived = max((one for one in others if one <= at), default=EVER)
        if released == NOT_YET and sight.finished:
            earliest = max(reported.earliest, outlived)
            if sight.ending:
                earliest = max(earliest, ending.earliest)
            released = Span(earliest, at + self._timing.release)
        return replace(
            use, set_up=set_up, containers=containers, ending=ending, outlived=outlived, released=released
        )

    def _container(self, one: Container, start: Start | None, node: str, at: float) -> Container:
        if start is None:
            return one
        runs = one.runs
        last = runs[-1] if runs else None
        if start.at:
            started = self._stamped(start.at, at, True)
            if last is None or last.started.earliest < started.earliest:
                if last is not None and last.ended == NOT_YET:
                    end = max(last.started.latest, started.earliest - self._timing.start)
                    runs = (*runs[:-1], replace(last, ended=Span(end, started.latest)))
                last = Run(started)
                runs = (*runs, last)
        if last is not None and not start.running and not start.over and last.ended == NOT_YET:
            heard = self._reported(node, at).earliest
            runs = (*runs[:-1], replace(last, ended=Span(max(last.started.latest, heard), at)))
        return replace(one, runs=runs, over=start.over)

    def _heard(self, at: float) -> Span:
        return Span(at - self._timing.watch_lag, at)

    def _reported(self, node: str, at: float) -> Span:
        """When something happened on a node that a status tells of; heard at that time."""
        earliest = at - self._timing.watch_lag - self._timing.report
        for cut in self._nodes[node].cuts if node in self._nodes else ():
            if cut.latest > earliest - self._timing.silence:
                earliest = min(earliest, cut.earliest)
        return Span(earliest, at)

    def _stamped(self, stamp: float, at: float, listed: bool) -> Span:
        """When something happened that carries a timestamp: it has whole seconds and is of another clock."""
        skew = self._timing.clock_skew
        earliest = stamp - skew if listed else max(stamp - skew, at - self._timing.watch_lag)
        return Span(min(earliest, at), min(stamp + 1 + skew, at))
