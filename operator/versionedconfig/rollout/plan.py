"""Where each target of a VersionedConfig stands, which may move next, and whether the rollout has failed. Pure.

Nothing here remembers: every answer follows from the workloads, their revisions and the status that was written last,
so that another process can go on from the same place.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from versionedconfig.model import WorkloadKey, timestamp
from versionedconfig.resource import TargetStatus, max_concurrent
from versionedconfig.workload import REPLICA_SET, STATEFUL_SET, Health, Revision, Workload


class State(StrEnum):
    """A target's place in a rollout."""

    WAITING = "Waiting"
    UPDATING = "Updating"
    UPDATED = "Updated"
    FAILED = "Failed"
    PAUSED = "Paused"
    MANUAL = "Manual"
    OVERRIDDEN = "Overridden"
    CONFLICT = "Conflict"


MOVED: Final = frozenset({State.UPDATING, State.FAILED})
"""At the current version and not healthy with it."""

UNFINISHED: Final = frozenset({State.WAITING, *MOVED})
"""The rollout waits for it; of the others nothing more is to be expected."""

RECOVERY_SECONDS: Final = 10
"""So long a target that has failed has to be healthy at least: more than a container runs between two crashes."""

MOST_REVERTS: Final = 3
"""So often in a row the logical name is written back before it is left alone."""

REVERT_SECONDS: Final = 900
"""A logical name that comes back later than this is somebody's new start, and no fight. Tools reconcile every few minutes
(Argo CD three, Flux ten)."""

CONFLICT_SECONDS: Final = 600
"""Then it is tried once more."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What one VersionedConfig wants of its targets."""

    kind: str
    name: str
    """The logical name."""
    current: str
    """The version that targets should refer to."""
    versions: frozenset[str]
    """Every version that exists, the current one included."""
    lost: frozenset[str] = frozenset()
    """Those of them that are not there any more: pods of a template that refers to one cannot start."""
    max_concurrent: int | str = "25%"
    progress_deadline_seconds: int = 600
    min_ready_seconds: int = 0
    paused: bool = False
    roll_back: bool = False
    """A failure is to be undone, not waited for."""
    rolling_back: bool = False
    """The current version became current because another one failed."""

    def names(self, workload: Workload) -> frozenset[str]:
        """Which of this VersionedConfig's names the workload refers to."""
        return frozenset(
            ref.name
            for ref in workload.references
            if ref.kind == self.kind and (ref.name == self.name or ref.name in self.versions)
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A target that does not get healthy with the current version."""

    target: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Targets as they go into the status, sorted by kind and name, and the workloads that may be rewritten now."""

    targets: tuple[TargetStatus, ...]
    granted: Mapping[WorkloadKey, str]
    """With the version that they are to get."""
    urgent: frozenset[WorkloadKey] = frozenset()
    """Those of them that wait for nobody: they go back, or their pods cannot start before."""
    waiting: frozenset[WorkloadKey] = frozenset()
    """They get their turn later: whoever else wants to move one waits for it, so that one patch does for both."""
    failure: Failure | None = None
    """The version has failed, and what it moved is to go back."""
    stuck: tuple[WorkloadKey, ...] = ()
    """StatefulSets whose controller waits for a pod that will not start before it is replaced."""
    look_again: float | None = None
    """In so many seconds something is due that no event will tell."""

    @property
    def updated(self) -> int:
        """How many targets are through."""
        return sum(target.state == State.UPDATED for target in self.targets)

    @property
    def finished(self) -> bool:
        """Nothing of the rollout is left to do."""
        proved = self.updated > 0
        return not any(_unfinished(target, proved) for target in self.targets)

    @property
    def succeeded(self) -> bool:
        """It is finished, and somebody runs the version, or nobody wants it."""
        states = {target.state for target in self.targets}
        ran = not states or bool(states & {State.UPDATED, State.MANUAL})
        return self.finished and ran and State.PAUSED not in states


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known beside the workloads themselves."""

    revisions: Collection[Revision] = ()
    """Old and present revisions that refer to the current version."""
    latest: Mapping[str, int] = field(default_factory=dict)
    """The highest revision of a workload by its uid, as far as its kind does not count on the object. At promotions."""
    in_flight: Collection[WorkloadKey] = ()
    """Workloads with a patch of ours under way, sent or not shown by the mirror yet. Where they stand is not known, and
    what the mirror shows of them is no evidence of anything."""
    refusals: Mapping[WorkloadKey, str] = field(default_factory=dict)
    """Why the API server keeps refusing a workload's patch."""
    troubles: Mapping[WorkloadKey, str] = field(default_factory=dict)
    """Why a pod that refers to the current version does not start."""
    sick: Mapping[WorkloadKey, str] = field(default_factory=dict)
    """The same of a pod that does not refer to it."""
    restarted: Mapping[WorkloadKey, str] = field(default_factory=dict)
    """When a container of a pod that refers to the current version was started again last. A kubelet does so at once the
    first time, and the pod may count as ready all the while."""
    behind: Collection[WorkloadKey] = ()
    """ReplicaSets with pods that refer to another version than their template."""
    logical_exists: bool = True
    """There is an object with the logical name itself. Where there is none, pods of a template with the logical name cannot
    even start, so nothing is gained by rationing them."""


def plan(
    aim: Aim,
    workloads: Iterable[Workload],
    *,
    scene: Scene,
    previous: Mapping[WorkloadKey, TargetStatus],
    promoted: bool,
    now: datetime,
) -> Plan:
    """Assess every target and grant the free slots.

    Args:
        workloads: the targets.
        previous: what was told of each before.
        promoted: the current version has just become current; what `previous` says was about another one.
        now: aware, for `since` and the deadlines.
    """
    reached: dict[str, int] = {}
    for revision in scene.revisions:
        reached[revision.owner_uid] = max(revision.revision, reached.get(revision.owner_uid, 0))
    ordered = sorted(workloads, key=lambda w: (w.kind, w.name))
    told = {
        w.key: _Target(
            aim, scene, w, _of(w, previous.get(w.key)), promoted, reached.get(w.uid, 0), now
        ).told()
        for w in ordered
    }
    failed = [key for key, target in told.items() if target.state == State.FAILED]
    failure = None
    if aim.roll_back and not aim.rolling_back:
        # A target that was not healthy before proves nothing about the version, and has nothing to go back to.
        failure = next(
            (
                Failure(f"{key.kind} {key.name}", told[key].message)
                for key in failed
                if told[key].previous and key not in scene.refusals
            ),
            None,
        )
    by_key = {w.key: w for w in ordered}
    granted, urgent, waiting = _granted(aim, scene, by_key, told, failed)
    why = ""
    if aim.paused:
        why = "the rollout is paused"
    elif failed and not aim.rolling_back:
        why = f"{failed[0].name} has failed"
    targets = tuple(
        msgspec.structs.replace(target, message=why)
        if why and target.state == State.WAITING and key not in granted
        else target
        for key, target in told.items()
    )
    return Plan(
        targets,
        {key: told[key].wanted or aim.current for key in granted},
        frozenset(urgent),
        frozenset(waiting),
        failure,
        tuple(
            key
            for key, target in told.items()
            if key.kind == STATEFUL_SET and key in scene.sick and target.state in MOVED and target.version
        ),
        _look_again(aim, targets, now),
    )


def _granted(
    aim: Aim,
    scene: Scene,
    workloads: Mapping[WorkloadKey, Workload],
    told: Mapping[WorkloadKey, TargetStatus],
    failed: list[WorkloadKey],
) -> tuple[set[WorkloadKey], set[WorkloadKey], list[WorkloadKey]]:
    """Who may move, who of them waits for nobody, and whose turn comes later."""
    waiting = [key for key, target in told.items() if target.state == State.WAITING]
    # Their pods cannot start before: holding them back protects nobody.
    nowhere = aim.lost | ({aim.name} if not scene.logical_exists else set())
    granted = {key for key in waiting if nowhere & aim.names(workloads[key])}
    if not aim.paused:
        # What was refused may be allowed by now: it is tried again, however slowly.
        granted.update(key for key in failed if key in scene.refusals)
    if aim.rolling_back:
        # Back in one step.
        granted |= set(waiting)
    proved = any(target.state == State.UPDATED for target in told.values())
    if aim.rolling_back or aim.paused or any(_unfinished(told[key], proved) for key in failed):
        # What made one target fail would make the next ones fail too.
        return granted, granted, []
    free = max_concurrent(aim.max_concurrent, len(told))
    free -= sum(target.state == State.UPDATING for target in told.values())
    front = min(
        (workloads[key].order for key, target in told.items() if _unfinished(target, proved)), default=0
    )

    def turn(key: WorkloadKey) -> tuple[bool, str, str]:
        # Those that are broken already come last: they tell nothing about the version.
        # The same for every VersionedConfig, so that two of them never wait for each other.
        return key in scene.sick or key in scene.troubles, key.name, key.kind

    due = sorted((key for key in waiting if key not in granted and workloads[key].order == front), key=turn)
    in_turn = set(due[: max(0, free)])
    return granted | in_turn, granted, [key for key in waiting if key not in granted | in_turn]


def _of(workload: Workload, before: TargetStatus | None) -> TargetStatus | None:
    """What was told of this very workload, and not of one of the same name that is gone."""
    return before if before is not None and before.uid in ("", workload.uid) else None


def _unfinished(target: TargetStatus, proved: bool) -> bool:
    """The rollout waits for it. One that was never healthy says nothing about a version that others run."""
    if target.state == State.FAILED and proved and not target.previous:
        return False
    return target.state in UNFINISHED


def _look_again(aim: Aim, targets: Iterable[TargetStatus], now: datetime) -> float | None:
    """When a deadline passes."""
    due = []
    for target in targets:
        if target.state in MOVED and target.healthy_since:
            due.append(_time(target.healthy_since) + timedelta(seconds=_soak(aim, target)))
        elif target.state == State.UPDATING:
            due.append(_time(target.since) + timedelta(seconds=aim.progress_deadline_seconds + 1))
        elif target.state == State.CONFLICT:
            due.append(_time(target.since) + timedelta(seconds=CONFLICT_SECONDS + 1))
    return max(0.1, (min(due) - now).total_seconds()) if due else None


def _soak(aim: Aim, before: TargetStatus) -> int:
    """Seconds of health that count. What has failed crashes again and again, and is well in between."""
    return max(aim.min_ready_seconds, RECOVERY_SECONDS if before.state == State.FAILED else 0)


@dataclass(slots=True)
class _Target:
    """One target's assessment."""

    aim: Aim
    scene: Scene
    workload: Workload
    before: TargetStatus | None
    promoted: bool
    reached: int
    """The highest of its revisions that refer to the current version."""
    now: datetime

    def told(self) -> TargetStatus:
        """It, as it goes into the status."""
        before = self.before or TargetStatus()
        wanted = self._wanted(before)
        from_revision, moved = self._moved(before)
        healthy_since = ""
        reverts = 0 if self.promoted else before.reverts
        if self.workload.key in self.scene.in_flight:
            state, message, version = State.UPDATING, "", ""
        else:
            state, message, version = self._assess(wanted or self.aim.current, moved)
            if self._reverted(before, version):
                reverts = reverts + 1 if self._age(before.since) < REVERT_SECONDS else 1
            if state is State.WAITING:
                state, message, reverts = self._held_back(before, version, reverts)
            elif state is State.UPDATED:
                state, healthy_since = self._settled(before, version)
        if state is State.UPDATING and self._failed_before(before, version):
            # Until it has proved the contrary.
            state, message = State.FAILED, before.message
        since = timestamp(self.now)
        if not self.promoted and self.before is not None and _same_phase(before.state, state):
            since = before.since or since
        if state is State.UPDATING and not healthy_since:
            limit = self.aim.progress_deadline_seconds
            if trouble := self.scene.troubles.get(self.workload.key):
                state, message = State.FAILED, trouble
            elif self._age(since) > limit:
                state, message = State.FAILED, f"not healthy for more than {limit} s"
            elif self.workload.kind == STATEFUL_SET and (sick := self.scene.sick.get(self.workload.key)):
                message = (
                    f"{sick}, and its controller waits for that pod: delete it (kubernetes/kubernetes#67250)"
                )
        return TargetStatus(
            kind=self.workload.kind,
            name=self.workload.name,
            uid=self.workload.uid,
            version=version,
            state=state,
            from_revision=from_revision,
            previous=self._previous(before),
            wanted=wanted,
            healthy_since=healthy_since,
            reverts=reverts,
            since=since,
            message=message,
        )

    def _assess(self, goal: str, moved: bool) -> tuple[State, str, str]:
        """State, message and the name that the template shows."""
        aim, workload = self.aim, self.workload
        others = sorted(aim.names(workload) - {goal})
        if not others:
            if goal != aim.current:
                return State.OVERRIDDEN, f"kept at {goal}, which it had before", goal
            health = workload.health
            if workload.kind == REPLICA_SET and workload.key in self.scene.behind:
                health = Health.MANUAL
            states = {
                Health.DONE: State.UPDATED,
                Health.PROGRESSING: State.UPDATING,
                Health.FAILED: State.FAILED,
                Health.PAUSED: State.PAUSED,
                Health.MANUAL: State.MANUAL,
            }
            message = workload.message
            if health is Health.MANUAL:
                message = "its pods get the version when somebody deletes them"
            if self._through(goal):
                return State.UPDATED, "", goal
            return states[health], message, goal
        version = others[0]
        if moved and aim.name not in others and version not in aim.lost:
            return (
                State.OVERRIDDEN,
                f"{version} was chosen after {aim.current} had become current; kept until the content changes",
                version,
            )
        return State.WAITING, "", version

    def _failed_before(self, before: TargetStatus, version: str) -> bool:
        return (
            not self.promoted and (before.state, before.version) == (State.FAILED, version) and bool(version)
        )

    def _through(self, goal: str) -> bool:
        """It was healthy with this version: what comes later is no news about the version."""
        before = self.before
        return (
            not self.promoted
            and before is not None
            and (before.state, before.version) == (State.UPDATED, goal)
            and self.workload.health not in (Health.PAUSED, Health.MANUAL)
        )

    def _settled(self, before: TargetStatus, version: str) -> tuple[State, str]:
        """Healthy for long enough, or since when."""
        needed = self.aim.min_ready_seconds if self.promoted else _soak(self.aim, before)
        if self._through(version) or not needed or not self.workload.running:
            return State.UPDATED, ""
        since = "" if self.promoted or before.version != version else before.healthy_since
        since = max(since or timestamp(self.now), self.scene.restarted.get(self.workload.key, ""))
        if self._age(since) < needed:
            return State.UPDATING, since
        return State.UPDATED, ""

    def _held_back(self, before: TargetStatus, version: str, reverts: int) -> tuple[State, str, int]:
        if refusal := self.scene.refusals.get(self.workload.key):
            return State.FAILED, f"its template cannot be changed: {refusal}", reverts
        if reverts < MOST_REVERTS or version != self.aim.name:
            return State.WAITING, "", reverts
        if before.state == State.CONFLICT and self._age(before.since) > CONFLICT_SECONDS:
            return State.WAITING, "", MOST_REVERTS - 1
        return (
            State.CONFLICT,
            f"somebody writes {self.aim.name} back each time: let the tool that applies it ignore this field",
            reverts,
        )

    def _reverted(self, before: TargetStatus, version: str) -> bool:
        """It had the current version, and has the logical name again."""
        return not self.promoted and version == self.aim.name and before.version == self.aim.current

    def _moved(self, before: TargetStatus) -> tuple[int, bool]:
        """Its revision when the current version became current, and whether it had that version since."""
        workload = self.workload
        if self.promoted or self.before is None:
            # One that is seen for the first time outside a promotion cannot be told from one that was undone: it moves.
            # What changed before the promotion and was not seen by its controller yet must not look like a move after
            # it: each such change gives at most one revision.
            unseen = workload.pending + (workload.key in self.scene.in_flight)
            return max(workload.revision, self.scene.latest.get(workload.uid, 0)) + unseen, False
        moved = (
            before.version == self.aim.current
            or (before.state == State.OVERRIDDEN and not before.wanted)
            or self.reached > before.from_revision
        )
        return before.from_revision, moved

    def _previous(self, before: TargetStatus) -> str:
        """The version that it was last healthy with before the current one."""
        if not self.promoted or self.aim.rolling_back:
            return before.previous
        if not before.version or before.version == self.aim.name:
            return before.previous
        sick = self.workload.health is Health.FAILED or self.workload.key in self.scene.sick
        healthy = "" if sick else before.version
        if before.state in MOVED:
            # It had not proved itself yet: better than nothing.
            return before.previous or (healthy if before.healthy_since else "")
        return healthy

    def _wanted(self, before: TargetStatus) -> str:
        """The version that it is to have; empty where that is the current one."""
        if not self.promoted:
            return before.wanted
        if not self.aim.rolling_back:
            return ""
        # What had another version than most keeps it, or gets it back.
        had = before.version if before.state in (State.WAITING, State.OVERRIDDEN) else before.previous
        return had if had not in ("", self.aim.current, self.aim.name) else ""

    def _age(self, text: str) -> float:
        return (self.now - _time(text)).total_seconds()


def _same_phase(before: str, now: State) -> bool:
    """Updating and failed are one phase: `since` counts from the move, so that a deadline once passed stays so."""
    return before == now or (before in MOVED and now in MOVED)


def _time(text: str) -> datetime:
    """Somebody may have emptied it in the status: then the wait begins anew."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC)
