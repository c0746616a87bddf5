"""What two states of a VersionedConfig's status, one after the other, say of versions and rollouts. Pure.

Counting goes by what was written, so that what is tried again is counted once.
"""

from collections.abc import Collection, Iterator
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from versionedconfig.resource import Status, TargetStatus
from versionedconfig.rollout.plan import UNFINISHED, State
from versionedconfig.versions.choose import FAILED, Cause


class Result(StrEnum):
    """How a rollout ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """Another version became current before it was through."""
    ROLLED_BACK = "rolled_back"
    """It led back from a version that had failed, and is through."""


class Ended(NamedTuple):
    """A rollout that is over."""

    result: Result
    seconds: float


def promotion(before: Status, after: Status) -> str:
    """Why another version became current; empty where none did."""
    if not after.current_version or _turn(before) == _turn(after):
        return ""
    return after.version(after.current_version).cause


def ended(before: Status, after: Status, now: datetime) -> Iterator[Ended]:
    """The rollouts that ended in between; those without a target are none."""
    replaced = _turn(before) != _turn(after)
    running = bool(before.current_version) and not before.version(before.current_version).result
    if running and before.targets:
        result = _result(before, after) if replaced else _through(after)
        if result is not None:
            yield Ended(result, seconds_since(before.current_since, now))
    if replaced and after.targets and (result := _through(after)) is not None:
        yield Ended(result, seconds_since(after.current_since, now))


def failing(status: Status) -> str:
    """Why the version failed, or what is fought about; empty where all is well."""
    return _reason(status, "Degraded")


def stuck(
    status: Status, targets: Collection[TargetStatus], progress_deadline_seconds: float, now: datetime
) -> str:
    """Why it goes no further, though no version failed; empty where it does, or need not."""
    if failing(status):
        return ""
    if reason := _reason(status, "Stalled"):
        return reason
    reason = _reason(status, "Reconciling")
    if not reason or not any(target.state in UNFINISHED for target in targets):
        return ""
    last = min(seconds_since(since, now) for since in (status.current_since, *(t.since for t in targets)))
    return reason if last > progress_deadline_seconds + GRACE_SECONDS else ""


GRACE_SECONDS = 60
"""A target that takes too long fails by itself, a moment after its deadline."""


def seconds_since(text: str | None, now: datetime) -> float:
    """0 where it is not told."""
    try:
        return max(0.0, (now - datetime.fromisoformat(text or "")).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _turn(status: Status) -> tuple[str, str | None]:
    return status.current_version, status.current_since


def _result(before: Status, after: Status) -> Result:
    """Of a rollout whose version is not current any more."""
    had_failed = any(target.state == State.FAILED for target in before.targets)
    if had_failed or after.version(before.current_version).result == FAILED:
        return Result.FAILED
    return Result.SUPERSEDED


def _through(status: Status) -> Result | None:
    """Of the rollout to the current version; None while it goes on."""
    entry = status.version(status.current_version)
    if not entry.result:
        return None
    if entry.result == FAILED:
        return Result.FAILED
    return Result.ROLLED_BACK if entry.cause == Cause.ROLLBACK else Result.SUCCEEDED


def _reason(status: Status, kind: str) -> str:
    return next((one.reason for one in status.conditions if (one.type, one.status) == (kind, "True")), "")
