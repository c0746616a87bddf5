"""What the conditions say of a rollout."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.resource import Condition, Status, TargetStatus, VersionStatus
from versionedconfig.rollout.plan import Plan, State
from versionedconfig.versions.conditions import (
    MAX_MESSAGE,
    Verdict,
    beside,
    conditions,
    refused,
    rolling,
    settling,
)

FAILED = VersionStatus("app-2", result="Failed", message="Deployment web: it crashes")
AT_TWO = Status(current_version="app-2", latest_version="app-2")
GAVE_UP = Status(current_version="app-1", latest_version="app-2", versions=[FAILED])


def told(*states: State, message: str = "") -> Plan:
    names = "abcdefgh"
    targets = tuple(
        TargetStatus("Deployment", names[i], "app-2", state, message=message)
        for i, state in enumerate(states)
    )
    return Plan(targets, {})


U, M, W, F = State.UPDATED, State.UPDATING, State.WAITING, State.FAILED


@pytest.mark.parametrize(
    ("name", "status", "steps", "options", "reason", "true", "words"),
    [
        ("nobody refers to it", AT_TWO, told(), {}, "UpToDate", {"Ready"}, "it has no target"),
        ("all are through", AT_TWO, told(U, U), {}, "UpToDate", {"Ready"}, "all 2 targets use app-2"),
        ("on the move", AT_TWO, told(U, M, W), {}, "RollingOut", {"Reconciling"}, "1 of 3"),
        ("paused", AT_TWO, told(U, W), {"paused": True}, "Paused", set(), "1 of 2"),
        ("paused, but one still moves", AT_TWO, told(M, W), {"paused": True}, "RollingOut", {"Reconciling"}, ""),
        ("failed", AT_TWO, told(U, F, message="it crashes"), {}, "TargetFailed", {"Degraded", "Stalled"}, "Deployment b does not get healthy with app-2: it crashes"),
        ("going back", GAVE_UP, told(M), {}, "RolledBack", {"Reconciling", "Degraded"}, "going back to app-1"),
        ("back", GAVE_UP, told(U), {}, "RolledBack", {"Stalled", "Degraded"}, "app-2 has failed (Deployment web: it crashes): everything is back at app-1"),
        ("a pin ends the blame", GAVE_UP, told(U), {"pinned": True}, "Pinned", {"Ready"}, "all 1"),
        ("pinned", AT_TWO, told(U), {"pinned": True}, "Pinned", {"Ready"}, "all 1 targets use app-2"),
        ("a fight", AT_TWO, told(U, State.CONFLICT), {}, "Conflict", {"Degraded", "Stalled"}, "keeps writing the logical name into b"),
        ("by hand", AT_TWO, told(U, State.OVERRIDDEN), {}, "UpToDate", {"Ready"}, "at another version by hand: b"),
        ("paused itself", AT_TWO, told(State.PAUSED), {}, "UpToDate", {"Ready"}, "paused themselves: a"),
        ("on delete", AT_TWO, told(State.MANUAL), {}, "UpToDate", {"Ready"}, "to replace their pods: a"),
    ],
)  # fmt: skip
def test_rolling(
    name: str, status: Status, steps: Plan, options: dict[str, bool], reason: str, true: set[str], words: str
) -> None:
    verdict = rolling(status, steps, paused=options.get("paused", False), pinned=options.get("pinned", False))
    found = conditions(verdict, (), generation=3, now="t")

    assert {c.type for c in found if c.status == "True"} == true, name
    assert next(c.reason for c in found if c.type == "Ready") == reason
    assert words in next(c.message for c in found if c.type == "Ready")


def test_a_refusal_and_a_wait() -> None:
    no, wait = refused("KeyMissing", ["a", "b"]), settling("app-2")

    assert (no.stalled, no.ready, no.reason, no.message) == (True, False, "KeyMissing", "a; b")
    assert (wait.reconciling, wait.stalled, wait.reason) == (True, False, "Settling")


def test_what_goes_on_beside_a_refusal_is_told_too() -> None:
    moving = rolling(AT_TWO, told(U, M), paused=False, pinned=False)
    done = rolling(AT_TWO, told(U), paused=False, pinned=False)
    broken = rolling(AT_TWO, told(F, message="it crashes"), paused=False, pinned=False)
    no = refused("KeyMissing", ["no key"])
    wait = settling("app-3")

    both = beside(moving, no, None)
    assert (both.reason, both.reconciling, both.stalled, both.ready) == ("KeyMissing", True, False, False)
    assert both.message == "no key; meanwhile: 1 of 2 targets are updated to app-2"
    assert beside(done, no, None) == no
    assert beside(broken, no, None).degraded
    assert beside(done, None, wait) == wait
    assert beside(moving, None, wait) == moving
    assert beside(broken, None, wait) == replace(wait, degraded=True)
    assert beside(done, None, None) == done


VERDICTS = st.builds(Verdict, st.sampled_from(["A", "B"]), st.text(max_size=2000), *[st.booleans()] * 4)


@given(VERDICTS, VERDICTS)
def test_a_transition_is_a_change_of_status(first: Verdict, then: Verdict) -> None:
    before = conditions(first, (), generation=1, now="early")
    after = conditions(then, before, generation=2, now="late")

    assert [c.type for c in after] == ["Ready", "Reconciling", "Stalled", "Degraded"]
    for old, new in zip(before, after, strict=True):
        assert (new.last_transition_time == "early") == (old.status == new.status)
        assert new.reason
        assert len(new.message) <= MAX_MESSAGE
        assert new.observed_generation == 2
    again: list[Condition] = conditions(then, after, generation=2, now="later")
    assert again == after
