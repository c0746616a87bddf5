"""Waiting for further changes."""

from versionedconfig.versions.settle import PATIENCE, Settling, seconds_to_wait


def test_every_change_starts_the_wait_anew() -> None:
    assert seconds_to_wait(Settling("d", first=0, last=5), now=5, settle_seconds=2) == 2


def test_a_source_that_never_rests_is_not_waited_for_for_ever() -> None:
    now = PATIENCE * 2.0

    assert seconds_to_wait(Settling("d", first=0, last=now), now=now, settle_seconds=2) == 0


def test_no_settling_time_is_no_wait() -> None:
    assert seconds_to_wait(Settling("d", first=7, last=7), now=7, settle_seconds=0) == 0
