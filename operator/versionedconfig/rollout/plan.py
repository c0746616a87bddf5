"""Where each target of a VersionedConfig stands, and which may move next. Pure.

Nothing here remembers: every answer follows from the workloads, their revisions and the status that was written last,
so that another process can go on from the same place.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from versionedconfig.model import timestamp
from versionedconfig.resource import TargetStatus, max_concurrent
from versionedconfig.workload import Health, Revision, Workload


class State(StrEnum):
    """A target's place in a rollout."""

    WAITING = "Waiting"
    UPDATING = "Updating"
    UPDATED = "Updated"
    FAILED = "Failed"
    PAUSED = "Paused"
    OVERRIDDEN = "Overridden"


MOVED = frozenset({State.UPDATING, State.FAILED})
"""At the current version and not healthy with it."""


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
    max_concurrent: int | str = "25%"
    progress_deadline_seconds: int = 600
    paused: bool = False

    def names(self, workload: Workload) -> frozenset[str]:
        """Which of this VersionedConfig's names the workload refers to."""
        return frozenset(
            ref.name
            for ref in workload.references
            if ref.kind == self.kind and (ref.name == self.name or ref.name in self.versions)
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Targets as they go into the status, in name order, and the workloads that may be rewritten now."""

    targets: tuple[TargetStatus, ...]
    granted: frozenset[str]

    @property
    def updated(self) -> int:
        """How many targets are through."""
        return sum(target.state == State.UPDATED for target in self.targets)


def plan(
    aim: Aim,
    workloads: Iterable[Workload],
    *,
    revisions: Collection[Revision],
    previous: Mapping[str, TargetStatus],
    promoted: bool,
    in_flight: Collection[str],
    refusals: Mapping[str, str],
    logical_exists: bool,
    now: datetime,
) -> Plan:
    """Assess every target and grant the free slots.

    Args:
        workloads: the targets.
        revisions: ReplicaSets that refer to the current version.
        previous: the targets of the status written last, by name.
        promoted: the current version has just become current; what `previous` says was about another one.
        in_flight: workloads with a patch of ours under way, sent or not shown by the mirror yet. Where they stand is
            not known, and what the mirror shows of them is no evidence of anything.
        refusals: why the API server keeps refusing a workload's patch, by name; empty where it does not.
        logical_exists: there is an object with the logical name itself. Where there is none, pods of a template with
            the logical name cannot even start, so nothing is gained by rationing them.
        now: aware, for `since` and the progress deadline.
    """
    reached: dict[str, int] = {}
    for revision in revisions:
        reached[revision.owner_uid] = max(revision.revision, reached.get(revision.owner_uid, 0))
    targets = []
    retried: set[str] = set()
    stuck: set[str] = set()
    for workload in sorted(workloads, key=lambda item: item.name):
        before = previous.get(workload.name)
        if promoted or before is None:
            # What changed before the promotion and was not seen by its controller yet must not look like a move after
            # it: each such change gives at most one revision.
            unseen = workload.pending + (workload.name in in_flight)
            from_revision = workload.revision + unseen if promoted else 0
            moved = not promoted and reached.get(workload.uid, 0) > 0
        else:
            from_revision = before.from_revision
            moved = (
                before.version == aim.current
                or before.state == State.OVERRIDDEN
                or reached.get(workload.uid, 0) > from_revision
            )
        if workload.name in in_flight:
            state, message, version = State.UPDATING, "", ""
        else:
            state, message, version = _assess(aim, workload, moved)
            if state is State.WAITING and (refusal := refusals.get(workload.name)):
                state, message = State.FAILED, f"its template cannot be changed: {refusal}"
                retried.add(workload.name)
            elif state is State.WAITING and not logical_exists and aim.name in aim.names(workload):
                stuck.add(workload.name)
        since = timestamp(now)
        if before is not None and not promoted and _same_phase(before.state, state):
            since = before.since
        if state is State.UPDATING and now - _time(since) > timedelta(seconds=aim.progress_deadline_seconds):
            state, message = State.FAILED, f"not healthy for more than {aim.progress_deadline_seconds} s"
        targets.append(
            TargetStatus(
                kind="Deployment",
                name=workload.name,
                version=version,
                state=state,
                from_revision=from_revision,
                since=since,
                message=message,
            )
        )
    states = [target.state for target in targets]
    free = max_concurrent(aim.max_concurrent, len(targets)) - states.count(State.UPDATING)
    failed = next((target.name for target in targets if target.state == State.FAILED), "")
    if failed or aim.paused:
        # onFailure: Pause. What made one target fail would make the next ones fail too.
        free = 0
    waiting = [
        target.name for target in targets if target.state == State.WAITING and target.name not in stuck
    ]
    granted = stuck | set(waiting[: max(0, free)])
    if not aim.paused:
        # What was refused may be allowed by now: it is tried again, however slowly.
        granted |= retried
    why = "the rollout is paused" if aim.paused else f"{failed} has failed" if failed else ""
    return Plan(
        tuple(
            msgspec.structs.replace(target, message=why)
            if why and target.state == State.WAITING and target.name not in granted
            else target
            for target in targets
        ),
        frozenset(granted),
    )


def _assess(aim: Aim, workload: Workload, moved: bool) -> tuple[State, str, str]:
    """State, message and the name that the template shows, for one target."""
    others = sorted(aim.names(workload) - {aim.current})
    if not others:
        states = {
            Health.DONE: State.UPDATED,
            Health.PROGRESSING: State.UPDATING,
            Health.FAILED: State.FAILED,
            Health.PAUSED: State.PAUSED,
        }
        return states[workload.health], workload.message, aim.current
    version = others[0]
    if moved and aim.name not in others:
        return (
            State.OVERRIDDEN,
            f"{version} was chosen after {aim.current} had become current; kept until the content changes",
            version,
        )
    return State.WAITING, "", version


def _same_phase(before: str, now: State) -> bool:
    """Updating and failed are one phase: `since` counts from the move, so that a deadline once passed stays so."""
    return before == now or (before in MOVED and now in MOVED)


def _time(text: str) -> datetime:
    """Somebody may have emptied it in the status: then the wait begins anew."""
    return datetime.fromisoformat(text) if text else datetime.now(UTC)
