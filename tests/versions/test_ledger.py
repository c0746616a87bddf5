"""What status writes say of versions that became current and of rollouts that ended."""

from datetime import UTC, datetime

import msgspec
import pytest

from versionedconfig.resource import Condition, Status, TargetStatus, VersionStatus
from versionedconfig.rollout.plan import State
from versionedconfig.versions.choose import FAILED, SUCCEEDED, Cause
from versionedconfig.versions.ledger import GRACE_SECONDS, Result, ended, failing, promotion, stuck

NOW = datetime(2026, 1, 1, 12, 10, tzinfo=UTC)
BEGAN = "2026-01-01T12:00:00Z"
LATER = "2026-01-01T12:09:00Z"


def at(
    version: str,
    *versions: VersionStatus,
    state: State | None = State.UPDATING,
    since: str = BEGAN,
    condition: Condition | None = None,
) -> Status:
    """A status with that version current, and one target unless `state` is None."""
    targets = [TargetStatus("Deployment", "web", version, state, since=since)] if state else []
    return Status(
        current_version=version,
        current_since=since,
        versions=list(versions),
        targets=targets,
        conditions=[condition] if condition else [],
    )


def one(name: str, result: str = "", cause: str = Cause.SPEC_CHANGE) -> VersionStatus:
    return VersionStatus(name, result=result, cause=cause)


ROLLING = at("app-1", one("app-1"))
DONE = at("app-1", one("app-1", SUCCEEDED), state=State.UPDATED)
BACK = one("app-0", cause=Cause.ROLLBACK)


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("it goes on", ROLLING, ROLLING, []),
        ("it is through", ROLLING, DONE, [(Result.SUCCEEDED, 600)]),
        ("told again", DONE, DONE, []),
        ("it failed", ROLLING, at("app-0", BACK, one("app-1", FAILED), since=LATER), [(Result.FAILED, 600)]),
        (
            "the way back is through",
            at("app-0", BACK),
            at("app-0", msgspec.structs.replace(BACK, result=SUCCEEDED)),
            [(Result.ROLLED_BACK, 600)],
        ),
        ("other content", ROLLING, at("app-2", one("app-2"), since=LATER), [(Result.SUPERSEDED, 600)]),
        (
            "other content after a failure that was not taken back",
            at("app-1", one("app-1"), state=State.FAILED),
            at("app-2", one("app-2"), since=LATER),
            [(Result.FAILED, 600)],
        ),
        ("other content after a success", DONE, at("app-2", one("app-2"), since=LATER), []),
        (
            "everything has it already",
            DONE,
            at("app-2", one("app-2", SUCCEEDED), state=State.UPDATED, since=LATER),
            [(Result.SUCCEEDED, 60)],
        ),
        ("the first one", Status(), ROLLING, []),
        ("no target", Status(), at("app-1", one("app-1", SUCCEEDED), state=None), []),
        ("gone", ROLLING, Status(), [(Result.SUPERSEDED, 600)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rollouts_that_ended(
    name: str, before: Status, after: Status, expected: list[tuple[Result, float]]
) -> None:
    assert list(ended(before, after, NOW)) == expected


def test_a_promotion_is_another_version_or_the_same_one_anew() -> None:
    assert promotion(Status(), ROLLING) == Cause.SPEC_CHANGE
    assert promotion(ROLLING, DONE) == ""
    assert promotion(ROLLING, at("app-0", BACK)) == Cause.ROLLBACK
    assert promotion(ROLLING, at("app-1", one("app-1", cause=Cause.UNPIN), since=LATER)) == Cause.UNPIN
    assert promotion(ROLLING, Status()) == ""


def condition(kind: str) -> Condition:
    return Condition(kind, "True", "Why")


@pytest.mark.parametrize(
    ("name", "status", "fails", "is_stuck"),
    [
        ("all is well", DONE, "", ""),
        ("failed", at("app-1", condition=condition("Degraded")), "Why", ""),
        ("refused", at("app-1", condition=condition("Stalled")), "", "Why"),
        ("on its way", at("app-1", condition=condition("Reconciling"), since=LATER), "", ""),
        ("no progress", at("app-1", condition=condition("Reconciling")), "", "Why"),
        (
            "settles, and every target is through",
            at("app-1", condition=condition("Reconciling"), state=State.UPDATED),
            "",
            "",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_what_is_wrong(name: str, status: Status, fails: str, is_stuck: str) -> None:
    assert failing(status) == fails
    assert stuck(status, status.targets, 600 - GRACE_SECONDS - 1, NOW) == is_stuck
    assert stuck(status, status.targets, 600, NOW) == (is_stuck if name == "refused" else "")
