"""Which versions are kept."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.resource import Status, Users, VersionStatus
from versionedconfig.versions.history import History, history

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def version(name: str, created: int, **fields: Any) -> Incarnation:
    life = Incarnation(ConfigKey("ConfigMap", "n", name), f"uid-{name}", "1", created=f"{created:04}")
    return replace(life, **fields)


def look(
    versions: list[Incarnation], *, current: str, in_use: Any = (), limit: int, told: Any = ()
) -> History:
    """With versions that have been unused for long."""
    long_unused = [replace(v, unused_since="2026-01-01T00:00:00Z") for v in versions]
    status = Status(current_version=current, versions=list(told))
    return history(
        long_unused,
        status=status,
        needed=in_use,
        users=lambda _: Users(),
        limit=limit,
        unused_seconds=600,
        now=NOW,
    )


def test_current_and_used_are_kept_whatever_the_limit() -> None:
    versions = [version("a", 1), version("b", 2), version("c", 3), version("d", 4)]

    result = look(versions, current="b", in_use={"c"}, limit=0)

    assert [(v.name, v.state) for v in result.kept] == [("c", "InUse"), ("b", "Current")]
    assert [v.key.name for v in result.collectable] == ["d", "a"]


def test_the_newest_unused_are_kept() -> None:
    result = look([version(n, i) for i, n in enumerate("abcd")], current="d", in_use=(), limit=2)

    assert [(v.name, v.state) for v in result.kept] == [("d", "Current"), ("c", "Unused"), ("b", "Unused")]
    assert [v.key.name for v in result.collectable] == ["a"]


def test_what_carries_the_finalizer_is_not_collected() -> None:
    result = look([version("a", 1, in_use=True)], current="", in_use=(), limit=0)

    assert [v.name for v in result.kept] == ["a"]
    assert not result.collectable


def test_an_ignored_version_is_not_collected() -> None:
    assert not look([version("a", 1, ignored=True)], current="", in_use=(), limit=0).collectable


def test_a_version_that_is_marked_is_kept() -> None:
    """V29"""
    result = look([version("a", 1, kept=True)], current="", in_use=(), limit=0)

    assert [(v.name, v.state) for v in result.kept] == [("a", "InUse")]
    assert not result.collectable


def test_a_deleted_version_is_history_unless_it_is_current() -> None:
    versions = [version("a", 1, deleting=True), version("b", 2, deleting=True)]

    result = look(versions, current="b", in_use={"a"}, limit=5)

    assert [v.name for v in result.kept] == ["b"]
    assert not result.collectable


@given(
    st.lists(
        st.builds(
            version,
            st.sampled_from("abcdefgh"),
            st.integers(0, 9),
            in_use=st.booleans(),
            deleting=st.booleans(),
        ),
        unique_by=lambda v: v.key.name,
    ),
    st.sampled_from("abcdefgh"),
    st.sets(st.sampled_from("abcdefgh")),
    st.integers(0, 4),
)
def test_nothing_needed_is_ever_collected(
    versions: list[Incarnation], current: str, in_use: set[str], limit: int
) -> None:
    result = look(versions, current=current, in_use=in_use, limit=limit)

    collected = {v.key.name for v in result.collectable}
    assert not collected & (in_use | {current})
    assert not any(v.in_use or v.deleting for v in result.collectable)
    assert not collected & {v.name for v in result.kept}
    if collected:
        assert sum(v.state == "Unused" for v in result.kept) >= limit


def test_the_wait_begins_when_a_version_is_beyond_the_limit_and_ends_when_it_is_needed() -> None:
    """V28: the time is kept on the object."""
    fresh, waiting = version("a", 1), version("b", 2, unused_since="2026-01-31T11:55:00Z")
    needed = version("c", 3, unused_since="2026-01-31T11:00:00Z")
    result = history(
        [fresh, waiting, needed],
        status=Status(),
        needed={"c"},
        users=lambda _: Users(),
        limit=0,
        unused_seconds=600,
        now=NOW,
    )

    assert not result.collectable
    assert [v.key.name for v in result.mark] == ["a"]
    assert [v.key.name for v in result.unmark] == ["c"]
    assert result.wait_seconds == 300
    assert [v.name for v in result.kept] == ["c", "b", "a"]


@pytest.mark.parametrize("since", ["", "garbage", "2027-01-01T00:00:00Z", "2026-01-31T11:59:59"])
def test_a_time_that_is_none_begins_anew(since: str) -> None:
    result = history(
        [version("a", 1, unused_since=since)],
        status=Status(),
        needed=(),
        users=lambda _: Users(),
        limit=0,
        unused_seconds=600,
        now=NOW,
    )

    assert [v.key.name for v in result.mark] == ["a"]
    assert not result.collectable


def test_what_was_told_of_a_version_stays() -> None:
    told = VersionStatus("b", since="x", cause="Pin", result="Failed", message="m")

    result = look([version("a", 1), version("b", 2)], current="a", limit=5, told=[told])

    assert [(v.name, v.cause, v.result, v.message) for v in result.kept] == [
        ("b", "Pin", "Failed", "m"),
        ("a", "", "", ""),
    ]


def test_a_version_that_the_mirror_does_not_show_yet_is_told() -> None:
    told = VersionStatus("b", since="x", cause="SpecChange")

    result = look([version("a", 1)], current="b", limit=5, told=[told])

    assert [(v.name, v.state, v.cause) for v in result.kept] == [
        ("b", "Current", "SpecChange"),
        ("a", "Unused", ""),
    ]
