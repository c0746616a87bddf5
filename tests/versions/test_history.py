"""Which versions are kept."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.versions.history import history


def version(name: str, created: int, **fields: Any) -> Incarnation:
    life = Incarnation(ConfigKey("ConfigMap", "n", name), f"uid-{name}", "1", created=f"{created:04}")
    return replace(life, **fields)


def test_current_and_used_are_kept_whatever_the_limit() -> None:
    versions = [version("a", 1), version("b", 2), version("c", 3), version("d", 4)]

    result = history(versions, current="b", in_use={"c"}, limit=0)

    assert [(v.name, v.state) for v in result.kept] == [("c", "InUse"), ("b", "Current")]
    assert [v.key.name for v in result.collectable] == ["d", "a"]


def test_the_newest_unused_are_kept() -> None:
    result = history([version(n, i) for i, n in enumerate("abcd")], current="d", in_use=(), limit=2)

    assert [(v.name, v.state) for v in result.kept] == [("d", "Current"), ("c", "Unused"), ("b", "Unused")]
    assert [v.key.name for v in result.collectable] == ["a"]


def test_what_carries_the_finalizer_is_not_collected() -> None:
    result = history([version("a", 1, in_use=True)], current="", in_use=(), limit=0)

    assert [v.name for v in result.kept] == ["a"]
    assert not result.collectable


def test_an_ignored_version_is_not_collected() -> None:
    assert not history([version("a", 1, ignored=True)], current="", in_use=(), limit=0).collectable


def test_a_deleted_version_is_history_unless_it_is_current() -> None:
    versions = [version("a", 1, deleting=True), version("b", 2, deleting=True)]

    result = history(versions, current="b", in_use={"a"}, limit=5)

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
    result = history(versions, current=current, in_use=in_use, limit=limit)

    collected = {v.key.name for v in result.collectable}
    assert not collected & (in_use | {current})
    assert not any(v.in_use or v.deleting for v in result.collectable)
    assert not collected & {v.name for v in result.kept}
    if collected:
        assert sum(v.state == "Unused" for v in result.kept) >= limit
