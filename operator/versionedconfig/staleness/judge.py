"""What each pod is served, from a history of one key. Pure; the kubelet's rules are those of its watch-based manager
(k/k pkg/kubelet/util/manager/watch_based_manager.go):

- While some registered pod of a node names the object, the node keeps one cache entry for the name; the uid is no part of it.
- The first read that finds an immutable object pins it: every later read gives that one, until no registered pod names
  the object any more, or the kubelet restarts.
- Until then a read gives what is live, or nothing.

A node's time is cut into segments in which nothing changes, and each gets every answer that a read may have had there. An
answer that is missing is impossible; an answer that stands alone is certain.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from versionedconfig.staleness.history import (
    ABSENCE,
    EVER,
    NEVER,
    NOT_YET,
    NOTHING,
    Answers,
    Container,
    History,
    Life,
    NodeHistory,
    Run,
    Span,
    Timing,
    Use,
    Why,
)


class Kind(StrEnum):
    """The verdicts."""

    FRESH = "Fresh"
    STALE = "Stale"
    DELETED = "ServingDeleted"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """One way on which content reaches a pod."""

    how: str
    """`env`, `subPath`, `volume` or `pull`"""
    container: str
    """Empty for those of the whole pod."""
    answers: Answers
    kind: Kind


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one pod."""

    node: str
    pod: str
    """uid"""
    name: str
    kind: Kind
    serves: frozenset[str]
    """uids of the incarnations that it may be served and that are not the live one; NOTHING for none."""
    why: Why
    """Why no more can be said; CERTAIN where it can."""
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a node's time in which nothing changes."""

    start: float
    end: float
    pins: Answers
    """Which incarnations the cache may be pinned to; NOTHING for none."""
    reads: Answers
    """What a read may have given."""
    takes: frozenset[str]
    """Incarnations that an unpinned cache may have been pinned to here."""
    left: Answers
    """The pins at its end."""


def judge(history: History, now: float, timing: Timing) -> list[Verdict]:
    """A verdict on each pod that runs and names the object."""
    return [verdict for node in history.nodes for verdict in judge_node(history, node, now, timing).verdicts]


@dataclass(frozen=True, slots=True)
class OnNode:
    """What is known of one node."""

    verdicts: list[Verdict]
    new_pods: Kind | None
    """What one that came there now would be served; None where no pod uses the object."""
    over: bool
    """Nothing but what is live is served there, or ever will be."""


def judge_node(history: History, node: NodeHistory, now: float, timing: Timing) -> OnNode:
    """One node of it: a cluster can have many, and nobody should have to wait for all."""
    uses = [use for use in node.uses if use.released.latest > now]
    if not uses:
        return OnNode([], None, over=True)
    segments = timeline(history, node, now, timing)
    cut = any(cut.latest > now for cut in node.cuts)
    verdicts = []
    for use in uses:
        if use.set_up > now or use.released != NOT_YET:
            continue
        if parts := tuple(_parts(history, node, use, segments, now, timing)):
            verdict = _verdict(history.live, node.name, use, parts)
            verdicts.append(replace(verdict, kind=Kind.UNKNOWN, why=Why.CUT_OFF) if cut else verdict)
    return OnNode(
        verdicts,
        _kind(history, segments[-1].reads),
        over=not cut and _harmless(history, uses, segments, verdicts, now),
    )


def over(history: History, now: float, timing: Timing) -> bool:
    """Nobody is served anything but the live incarnation, or ever will be."""
    return heard_of(history, now, timing) and all(
        judge_node(history, node, now, timing).over for node in history.nodes
    )


def heard_of(history: History, now: float, timing: Timing) -> bool:
    """The last end of a life is so long ago that all that nodes did then is known. What one did just before it was cut off is
    not heard before it is known to be."""
    heard = now - timing.silence - timing.report - timing.watch_lag
    return not any(heard < life.ended.latest < NEVER for life in history.lives)


def _harmless(
    history: History, uses: list[Use], segments: list[Segment], verdicts: list[Verdict], now: float
) -> bool:
    """Another incarnation with the same content is another one: it stays when the live one is replaced again."""
    live = frozenset({history.live.uid} if history.live is not None else ())
    if not (live | {NOTHING}).issuperset(segments[-1].left):
        return False
    # A pod that is not known to run may run all the same, with what was there when it came.
    since = min((use.bound.earliest for use in uses if use.set_up > now), default=now)
    if not all((live | {NOTHING}).issuperset(one.reads) for one in segments if one.end > since):
        return False
    served = live or {NOTHING}
    return all(served.issuperset(part.answers) for verdict in verdicts for part in verdict.parts)


def settle(history: History, at: float, now: float, timing: Timing) -> History:
    """The same history, with what was before that time replaced by what came of it, so that it does not grow."""
    # What a node did while it was cut off is heard afterwards.
    at = min((at, *(cut.earliest for node in history.nodes for cut in node.cuts if cut.latest > at)))
    nodes = tuple(_settled(history, node, at, now, timing) for node in history.nodes)
    named = {uid for node in nodes for uid in node.pins}
    for node in nodes:
        for use in node.uses:
            named.update(use.held or ())
            for run in (run for one in use.containers for run in one.runs):
                named.update(run.took or (), run.mounted or ())
    return History(
        lives=tuple(life for life in history.lives if life.ended.latest >= at or life.uid in named),
        nodes=nodes,
        unseen=tuple(span for span in history.unseen if span.latest > at),
    )


def _settled(history: History, node: NodeHistory, at: float, now: float, timing: Timing) -> NodeHistory:
    segments = timeline(history, node, now, timing, (at,))

    def settled(run: Run, one: Container, use: Use) -> Run:
        if _read_for(use, run, timing) > at:
            return run
        return replace(
            run,
            took=_took(use, segments, run, one.required, timing) if one.env else None,
            mounted=_mounted(node, use, segments, run, timing) if one.sub_path else None,
        )

    uses = tuple(
        replace(
            use,
            containers=tuple(
                replace(one, runs=tuple(settled(run, one, use) for run in one.runs if run.ended.latest > at))
                for one in use.containers
            ),
            held=_volume(node, use, segments, at, timing) if use.bound.earliest < at else None,
        )
        for use in node.uses
        if use.released.latest > at
    )
    pins = next((one.left for one in segments if one.end == at), node.pins)
    restarts = tuple(one for one in node.restarts if one.latest + timing.resync > at)
    cuts = tuple(one for one in node.cuts if one.latest > at)
    return NodeHistory(node.name, uses, restarts, cuts, max(at, node.since), pins)


def _verdict(live: Life | None, node: str, use: Use, parts: tuple[Part, ...]) -> Verdict:
    kinds = {part.kind for part in parts}
    # Certainly old in one part is old, whatever the others are.
    kind = next(kind for kind in (Kind.STALE, Kind.DELETED, Kind.UNKNOWN, Kind.FRESH) if kind in kinds)
    telling = [part for part in parts if part.kind is kind]
    serves = frozenset(
        answer
        for part in telling
        for answer in part.answers
        if kind is not Kind.FRESH and (live is None or answer != live.uid)
    )
    why = Why.CERTAIN
    if kind is Kind.UNKNOWN:
        why = max(Why.FOLLOWING, *(why for part in telling for why in part.answers.values()))
    return Verdict(node, use.pod, use.name, kind, serves, why, parts)


def _parts(
    history: History,
    node: NodeHistory,
    use: Use,
    segments: list[Segment],
    now: float,
    timing: Timing,
) -> Iterator[Part]:
    def part(how: str, container: str, answers: Answers) -> Part:
        return Part(how, container, answers, _kind(history, answers))

    for one in use.containers:
        run = one.run
        if run is None or run.ended != NOT_YET or one.over:
            continue
        if one.env:
            yield part("env", one.name, _took(use, segments, run, one.required, timing))
        if one.sub_path:
            yield part("subPath", one.name, _mounted(node, use, segments, run, timing))
    if use.follows:
        yield part("volume", "", _volume(node, use, segments, now, timing))
    if use.pulls:
        yield part("pull", "", segments[-1].reads)


def _kind(history: History, answers: Answers) -> Kind:
    live = history.live
    if live is None:
        # Whoever is served nothing of what is not there is served the truth.
        states = {answer == NOTHING for answer in answers}
        old = Kind.DELETED
    else:
        states = set()
        for answer in answers:
            states |= _same(history, answer, live)
        old = Kind.STALE
    return Kind.UNKNOWN if len(states) > 1 else Kind.FRESH if states == {True} else old


def _same(history: History, answer: str, live: Life) -> set[bool]:
    """Whether an answer is what is live: one of the two, or both where that is not known."""
    if answer == live.uid:
        return {True}
    life = next((life for life in history.lives if life.uid == answer), None)
    if life is None:
        return {False}
    if not life.digests or not live.digest:
        # Not seen. That it is the same is not likely: people create an object again since something is to change.
        return {False}
    return life.equals(live)


def _took(use: Use, segments: list[Segment], run: Run, required: bool, timing: Timing) -> Answers:
    """What a container took at its start."""
    if run.took is not None:
        return run.took
    return _successful(_all(segment.reads for segment in _at_start(use, segments, run, timing)), required)


def _mounted(node: NodeHistory, use: Use, segments: list[Segment], run: Run, timing: Timing) -> Answers:
    """What the volume held when a container was started: the kubelet brings it up to date just before."""
    if run.mounted is not None:
        return run.mounted
    before = _files(node, use, segments, _read_for(use, run, timing), timing)
    during = (segment.reads for segment in _at_start(use, segments, run, timing))
    return _successful(_all((before, *during)), use.required)


def _at_start(use: Use, segments: list[Segment], run: Run, timing: Timing) -> Iterator[Segment]:
    """Those in which the kubelet may have read what the container was to be started with."""
    earliest = _read_for(use, run, timing)
    for segment in segments:
        if segment.start <= run.started.latest and segment.end > earliest:
            yield segment


def _read_for(use: Use, run: Run, timing: Timing) -> float:
    """When the kubelet may have read for that start at the earliest."""
    return max(run.started.earliest - timing.start, use.bound.earliest)


def _volume(node: NodeHistory, use: Use, segments: list[Segment], at: float, timing: Timing) -> Answers:
    """What the files of the pod's volume hold at that time."""
    return _successful(_files(node, use, segments, at, timing), use.required)


def _files(node: NodeHistory, use: Use, segments: list[Segment], at: float, timing: Timing) -> dict[str, Why]:
    """What the last sync before that time may have read, if there was one. One that finds nothing fails and leaves the
    files as they are (pkg/volume/configmap/configmap.go, SetUpAt)."""
    found: dict[str, Why] = {}
    synced = 0.0
    last = _last_read(node, use, timing)
    for segment in reversed(segments):
        if segment.start >= at or segment.start >= last:
            continue
        if segment.end <= use.bound.earliest:
            break
        for answer, why in segment.reads.items():
            # What is only in the past of what is certain may be gone, and may not.
            weaker = max(why, Why.FOLLOWING) if synced else why
            found[answer] = min(found.get(answer, Why.UNSEEN), weaker)
        end = min(segment.end, at, last)
        certain = not use.required or NOTHING not in segment.reads
        if certain and not use.fragile and _synced(node, use, segment, timing):
            synced += end - segment.start
            if synced >= timing.sync:
                break
        else:
            synced = 0.0
    else:
        found = _all((found, use.held or {}))
    return found


def _synced(node: NodeHistory, use: Use, segment: Segment, timing: Timing) -> bool:
    """The kubelet goes round with this pod then."""
    return (
        use.set_up <= segment.start
        and segment.end <= min(use.ending.earliest, use.released.earliest)
        and not any(
            restart.earliest < segment.end and segment.start < restart.latest + timing.resync
            for restart in node.restarts
        )
        and not any(cut.earliest < segment.end and segment.start < cut.latest for cut in node.cuts)
    )


def _all(several: Iterable[Answers]) -> dict[str, Why]:
    together: dict[str, Why] = {}
    for answers in several:
        for answer, why in answers.items():
            together[answer] = min(why, together.get(answer, why))
    return together


def _successful(answers: Answers, required: bool) -> Answers:
    """Those with which what has happened could happen: without a required object nothing is set up and nothing starts."""
    if not required:
        return answers
    possible = {answer: why for answer, why in answers.items() if answer != NOTHING}
    # None: then something is wrong with our times, and nothing can be said.
    return possible or dict.fromkeys((*answers, NOTHING, ABSENCE), Why.UNSEEN)


def timeline(
    history: History, node: NodeHistory, now: float, timing: Timing, also: Iterable[float] = ()
) -> list[Segment]:
    """The node's time until now, cut into segments, also at given times; at least one."""
    segments: list[Segment] = []
    pins = dict(node.pins)
    proofs = list(_proofs(history, node, now, timing))
    needs = list(_needs(node, now, timing))
    born_immutable = {life.uid for life in history.lives if life.immutable == life.created}
    for start, end in pairwise(_cuts(history, node, proofs, now, timing, also)):
        middle = (start + end) / 2
        lag = _lag(node, middle, timing)
        unseen = any(span.earliest <= middle <= span.latest for span in history.unseen)
        counted = [use for use in node.uses if use.bound.earliest <= middle <= use.released.latest]
        takes: dict[str, Why] = {}
        if not counted:
            pins = {NOTHING: Why.CERTAIN}
        else:
            if (why := _may_be_dropped(node, counted, middle, now, timing)) is not None:
                pins.setdefault(NOTHING, why)
            if unseen or any(_may_read(node, use, middle, now, timing) for use in counted):
                takes = dict(_may_take(history.lives, middle, unseen, lag))
            if NOTHING in pins:
                for uid, why in takes.items():
                    pins.setdefault(uid, max(why, pins[NOTHING]))
        during = dict(pins)
        if any(uid in pins and span.latest == end for span, uid in proofs):
            pins.pop(NOTHING, None)
        for restart in node.restarts:
            if restart.latest == end:
                # Whatever was pinned before is forgotten; what was read since is not.
                since = {uid for one in segments if one.end > restart.earliest for uid in one.takes}
                pins = {NOTHING: Why.CERTAIN} | dict.fromkeys(since | takes.keys(), Why.RESTARTED)
        reads = _reads(history.lives, during, middle, lag)
        segments.append(Segment(start, end, during, reads, frozenset(takes), dict(pins)))
        for span in needs:
            if span.latest == end:
                answers = set(_all(one.reads for one in segments if one.end > span.earliest)) - {NOTHING}
                if len(answers) == 1 and answers <= born_immutable:
                    # It read, and there was nothing else to be read.
                    pins.pop(NOTHING, None)
                    pins.setdefault(answers.pop(), Why.RACE)
                    segments[-1] = replace(segments[-1], left=dict(pins))
    return segments


def _lag(node: NodeHistory, moment: float, timing: Timing) -> float:
    """How old what the kubelet's cache knows may be then."""
    return timing.cache_lag + max(
        (
            moment - cut.earliest
            for cut in node.cuts
            if cut.earliest <= moment <= cut.latest + timing.cache_lag
        ),
        default=0,
    )


def _cuts(
    history: History,
    node: NodeHistory,
    proofs: Iterable[tuple[Span, str]],
    now: float,
    timing: Timing,
    also: Iterable[float],
) -> list[float]:
    cuts: set[float] = {now, now - timing.watch_lag, now - timing.watch_lag - timing.report, *also}
    for life in history.lives:
        for span in (life.created, life.ended, life.immutable):
            cuts.update((*span, span.latest + timing.cache_lag))
    for use in node.uses:
        cuts.update(
            (*use.bound, use.set_up, *use.ending, use.ending.latest + timing.cache_lag, *use.released)
        )
        for container in use.containers:
            for run in container.runs:
                cuts.update((_read_for(use, run, timing), *run.started, *run.ended))
    for restart in node.restarts:
        cuts.update((*restart, restart.latest + timing.resync))
    for span in (*history.unseen, *node.cuts):
        cuts.update((*span, span.latest + timing.cache_lag))
    for span, _ in proofs:
        cuts.update(span)
    inside = sorted(cut for cut in cuts if node.since < cut <= now)
    return [node.since if node.since > EVER else inside[0] - 1, *inside]


def _may_be_dropped(
    node: NodeHistory, counted: list[Use], moment: float, now: float, timing: Timing
) -> Why | None:
    """Why the kubelet may have had no registered pod then, or may have just started; None if it cannot."""
    for restart in node.restarts:
        if restart.earliest <= moment <= restart.latest + timing.resync:
            return Why.RESTARTED
    for use in counted:
        # A pod that ends may be through, and we have not heard.
        released = now - timing.watch_lag if use.ending != NOT_YET and use.released == NOT_YET else NEVER
        if use.set_up <= moment <= min(use.released.earliest, released):
            return None
    return Why.TAKEN if any(use.taken for use in counted) else Why.RACE


def _last_read(node: NodeHistory, use: Use, timing: Timing) -> float:
    heard = use.ending.latest
    for cut in node.cuts:
        if cut.earliest <= use.ending.latest and use.ending.earliest <= cut.latest:
            heard = max(heard, cut.latest)
    return min(use.released.latest, heard + timing.cache_lag)


def _may_read(node: NodeHistory, use: Use, moment: float, now: float, timing: Timing) -> bool:
    if moment > _last_read(node, use, timing):
        return False
    return use.reads or any(
        container.env and not _quiet(container, moment, now, timing) for container in use.containers
    )


def _quiet(container: Container, moment: float, now: float, timing: Timing) -> bool:
    """It ran then, so that nothing was read for it."""
    if container.over and container.runs and moment > container.runs[-1].started.latest:
        return True
    unheard = now - timing.watch_lag - timing.report
    return any(run.started.latest <= moment <= min(run.ended.earliest, unheard) for run in container.runs)


def _may_take(lives: tuple[Life, ...], moment: float, unseen: bool, lag: float) -> Iterator[tuple[str, Why]]:
    """What a read may have pinned then."""
    for life in lives:
        if life.immutable == NOT_YET or not (
            max(life.immutable.earliest, life.created.earliest) <= moment <= life.ended.latest + lag
        ):
            continue
        certain = life.immutable.latest + lag <= moment <= life.ended.earliest
        if unseen:
            yield life.uid, Why.GONE
        elif certain:
            yield life.uid, Why.CERTAIN
        else:
            yield life.uid, Why.FLIP if life.immutable.earliest > life.created.latest else Why.RACE
        if life.ended.earliest <= moment:
            yield ABSENCE, Why.RACE


def _reads(lives: tuple[Life, ...], pins: Answers, moment: float, lag: float) -> Answers:
    """What a read may have given then."""
    reads = {(NOTHING if pin == ABSENCE else pin): why for pin, why in pins.items() if pin != NOTHING}
    if (unpinned := pins.get(NOTHING)) is None:
        return reads
    there = False
    for life in lives:
        if not life.created.earliest <= moment <= life.ended.latest + lag:
            continue
        certain = life.created.latest + lag <= moment <= life.ended.earliest
        there = there or certain
        why = unpinned if certain else max(unpinned, Why.RACE)
        reads[life.uid] = min(why, reads.get(life.uid, why))
    if not there:
        reads.setdefault(NOTHING, max(unpinned, Why.RACE) if reads else unpinned)
    return reads


def _proofs(history: History, node: NodeHistory, now: float, timing: Timing) -> Iterator[tuple[Span, str]]:
    """Spans within which the object was certainly read while it was certainly immutable, with its uid, and through
    whose end the pod that read it was certainly registered."""
    for life in history.lives:
        if life.immutable == NOT_YET:
            continue
        since = max(life.immutable.latest, life.created.latest) + timing.cache_lag
        until = life.ended.earliest
        for use in node.uses:
            for span in _certain_reads(node, use, since, now, timing):
                if (
                    since <= span.earliest
                    and span.latest <= min(until, use.released.earliest, now)
                    and not any(
                        restart.earliest < span.latest and span.earliest < restart.latest
                        for restart in (*node.restarts, *node.cuts)
                    )
                ):
                    yield span, life.uid


def _needs(node: NodeHistory, now: float, timing: Timing) -> Iterator[Span]:
    """Spans within which a read found the object, since a pod needed it and was started."""
    for use in node.uses:
        spans = [Span(use.bound.earliest, use.set_up)] if use.reads and use.required else []
        spans += (
            Span(_read_for(use, run, timing), run.started.latest)
            for one in use.containers
            if one.env and one.required
            for run in one.runs
        )
        for span in spans:
            if (
                node.since < span.earliest
                and span.latest <= min(use.released.earliest, now)
                and not any(
                    gap.earliest < span.latest and span.earliest < gap.latest
                    for gap in (*node.restarts, *node.cuts)
                )
            ):
                yield span


def _certain_reads(node: NodeHistory, use: Use, since: float, now: float, timing: Timing) -> Iterator[Span]:
    if use.reads and use.set_up != NOT_YET.earliest:
        yield Span(use.bound.earliest, use.set_up)
        for start in (max(use.set_up, since), *(restart.latest for restart in node.restarts)):
            # After a restart all pods are synced again, and until then none may be.
            wait = timing.resync if any(restart.latest == start for restart in node.restarts) else timing.sync
            if start >= max(use.set_up, since) and start + wait <= min(use.ending.earliest, now):
                yield Span(start, start + wait)
    for container in use.containers:
        if container.env:
            for run in container.runs:
                yield Span(_read_for(use, run, timing), run.started.latest)
