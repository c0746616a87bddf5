"""Force-deleted pods whose node may still run them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import Node
from versionedconfig.protection.quarantine import ALIVE_AFTER, MOST, Quarantine, active, read, write

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


def held(node: Node | None, age: timedelta = timedelta(minutes=10), limit: float = 3600) -> bool:
    entry = Quarantine("node-0", "boot-1", NOW - age)
    return bool(active([entry], lambda _: node, limit, NOW))


def node(boot_id: str = "boot-1", *, ready: bool = False) -> Node:
    return Node("node-0", "u", "1", boot_id, ready)


@pytest.mark.parametrize(
    ("why", "node", "age", "expected"),
    [
        ("it is not heard of", node(), timedelta(minutes=10), True),
        ("it has booted", node("boot-2"), timedelta(minutes=10), False),
        ("it is gone", None, timedelta(minutes=10), False),
        ("the limit has passed", node(), timedelta(hours=1), False),
        ("Ready, but perhaps from before", node(ready=True), ALIVE_AFTER, True),
        ("Ready for so long: it knows", node(ready=True), ALIVE_AFTER + timedelta(seconds=1), False),
    ],
)
def test_a_pod_holds_while_its_node_may_run_it(
    why: str, node: Node | None, age: timedelta, expected: bool
) -> None:
    assert held(node, age) is expected, why


@given(
    st.lists(
        st.builds(
            Quarantine, st.sampled_from(["a", "b", "c"]), st.just("x"), st.datetimes(timezones=st.just(UTC))
        )
    )
)
def test_the_annotation_keeps_the_latest_of_each_node(entries: list[Quarantine]) -> None:
    kept = read(write(entries))

    assert {entry.node: entry.since for entry in kept} == {
        name: max(entry.since for entry in entries if entry.node == name)
        for name in {entry.node for entry in entries}
    }


def test_the_annotation_is_bounded() -> None:
    entries = [Quarantine(f"node-{i}", "boot", NOW + timedelta(seconds=i)) for i in range(500)]

    assert [entry.node for entry in read(write(entries))] == [f"node-{i}" for i in range(500 - MOST, 500)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{}",
        "[1]",
        '[{"node": 1}]',
        '[{"node":"n","bootId":"b","since":"yesterday"}]',
        '[{"node":"n","bootId":"b","since":"2026-01-31T12:00:00"}]',
    ],
)
def test_what_is_no_annotation_of_ours_quarantines_nothing(text: str) -> None:
    assert read(text) == ()
