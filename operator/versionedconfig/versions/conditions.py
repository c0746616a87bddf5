"""Conditions of a VersionedConfig in the kstatus convention (Ready, Reconciling, Stalled) and Degraded. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from versionedconfig.resource import Condition, Status
from versionedconfig.rollout.plan import Plan, State
from versionedconfig.versions.choose import FAILED

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence about the whole: what goes into the conditions."""

    reason: str
    message: str
    ready: bool = False
    reconciling: bool = False
    stalled: bool = False
    degraded: bool = False


def settling(version: str) -> Verdict:
    """The content changed a moment ago; more changes may follow."""
    return Verdict("Settling", f"waiting for further changes before {version} is made", reconciling=True)


def refused(reason: str, problems: Iterable[str]) -> Verdict:
    """Nothing is done until the user changes something."""
    return Verdict(reason, "; ".join(problems), stalled=True)


def beside(rollout: Verdict, refusal: Verdict | None, settling: Verdict | None) -> Verdict:
    """Other content is refused, or waits, while the rollout to what is current goes on: both are told."""
    if refusal is not None:
        meanwhile = f"; meanwhile: {rollout.message}" if not rollout.ready else ""
        return replace(
            rollout,
            reason=refusal.reason,
            message=refusal.message + meanwhile,
            ready=False,
            stalled=not rollout.reconciling,
        )
    if settling is not None and (rollout.ready or rollout.stalled):
        return replace(settling, degraded=rollout.degraded)
    return rollout


def rolling(
    status: Status, plan: Plan, *, paused: bool, pinned: bool, stays: str = "", amiss: str = ""
) -> Verdict:
    """Where the rollout to the current version stands.

    Args:
        stays: why a version that has failed is not taken back.
        amiss: what else to know about the targets.
    """
    current, total = status.current_version, len(plan.targets)
    by_state = {state: [t.name for t in plan.targets if t.state == state] for state in State}
    latest = status.version(status.latest_version)
    gave_up = latest.name != current and latest.result == FAILED and not pinned
    reached = f"{plan.updated} of {total} targets are updated to {current}"
    if by_state[State.FAILED]:
        failed = next(target for target in plan.targets if target.state == State.FAILED)
        return Verdict(
            "TargetFailed",
            f"{failed.kind} {failed.name} does not get healthy with {current}: {failed.message}; "
            f"{plan.updated} of {total} targets are updated; {stays or 'correct the content, or roll back'}",
            stalled=not by_state[State.UPDATING],
            degraded=True,
        )
    if gave_up:
        back = "going back to" if not plan.finished else "everything is back at"
        return Verdict(
            "RolledBack",
            f"{latest.name} has failed ({latest.message}): {back} {current}, until the content changes",
            reconciling=not plan.finished,
            stalled=plan.finished,
            degraded=True,
        )
    if by_state[State.UPDATING] or by_state[State.WAITING]:
        reason = "Paused" if paused and not by_state[State.UPDATING] else "RollingOut"
        return Verdict(reason, reached, reconciling=reason != "Paused")
    if fought := by_state[State.CONFLICT]:
        return Verdict(
            "Conflict",
            f"somebody keeps writing the logical name into {', '.join(fought[:5])}: let the tool that applies it ignore "
            "the reference (see README, Applying a manifest again), then put the version's name in by hand or change the "
            f"content; it is tried again every ten minutes; {reached}",
            stalled=True,
            degraded=True,
        )
    parts = [f"all {total} targets use {current}" if total else f"{current} is there; it has no target"]
    if plan.updated < total:
        parts = [reached]
    for state, words in (
        (State.OVERRIDDEN, "at another version by hand"),
        (State.PAUSED, "paused themselves"),
        (State.MANUAL, "waiting for somebody to replace their pods"),
    ):
        if names := by_state[state]:
            parts.append(f"{words}: {', '.join(names[:5])}")
    if amiss:
        parts.append(amiss)
    return Verdict("Pinned" if pinned else "UpToDate", "; ".join(parts), ready=True)


def conditions(
    verdict: Verdict, previous: Sequence[Condition], *, generation: int, now: str
) -> list[Condition]:
    """The four conditions; lastTransitionTime moves only where a condition's status does."""
    before = {condition.type: condition for condition in previous}
    written = []
    for kind, true in (
        ("Ready", verdict.ready),
        ("Reconciling", verdict.reconciling),
        ("Stalled", verdict.stalled),
        ("Degraded", verdict.degraded),
    ):
        status = "True" if true else "False"
        old = before.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else now
        told = true or kind == "Ready"
        written.append(
            Condition(
                type=kind,
                status=status,
                reason=verdict.reason if told else f"Not{kind}",
                message=verdict.message[:MAX_MESSAGE] if told else "",
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return written
