"""The table of versions."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from tests.commands.statuses import FRESH, NEW, OLD, THREE, config, version
from versionedconfig.commands.configs import Refused
from versionedconfig.commands.history import Used, show, told, users_text
from versionedconfig.commands.output import age

NOW = datetime(2026, 1, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("users", "text"),
    [
        (Used(0, 0, []), "-"),
        (Used(1, 0, []), "1 pod"),
        (Used(2, 1, ["Deployment/web"]), "Deployment/web, 2 pods, 1 old revision"),
        (Used(0, 3, ["a/1", "a/2", "a/3", "a/4"]), "a/1, a/2, a/3 and 1 more, 3 old revisions"),
    ],
)
def test_users_in_a_few_words(users: Used, text: str) -> None:
    assert users_text(users) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("", "-"),
        ("2026-01-04T00:00:01Z", "0s"),
        ("2026-01-03T23:59:15Z", "45s"),
        ("2026-01-03T23:58:01Z", "119s"),
        ("2026-01-03T23:58:00Z", "2m"),
        ("2026-01-03T21:00:00Z", "3h"),
        ("2026-01-02T00:00:00Z", "2d"),
        ("2026-01-02T02:00:00+02:00", "2d"),
    ],
)
def test_ages(moment: str, text: str) -> None:
    assert age(moment, NOW) == text


def table_of(*versions: dict[str, object], **more: Any) -> list[str]:
    written = io.StringIO()
    show(told(config(*versions, **more)), Console(file=written, width=200), NOW)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def test_a_line_for_each_version() -> None:
    lines = table_of(*THREE, version(FRESH), current=NEW, latest=FRESH, pin=NEW)

    assert [line.split()[:4] for line in lines[1:5]] == [
        [NEW, "current,", "pinned", "Unused"],
        ["4444444444", "Unused", "2d", "-"],
        [OLD, "Unused", "3d", "-"],
        [FRESH, "latest", "Unused", "(made"],
    ]
    assert lines[5] == "4444444444: no luck"


def test_a_pin_to_nothing_is_told() -> None:
    assert (
        table_of(*THREE, current=NEW, pin="9999999999")[-1]
        == "pinned to 9999999999, which is no kept version"
    )


def test_no_versions_yet() -> None:
    with pytest.raises(Refused, match="no versions yet"):
        told(config())
