"""What changed between two contents, and that no value of a Secret is told."""

import base64
import io
import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from tests.commands.statuses import FRESH, MIDDLE, NEW, OLD, THREE, config, version
from versionedconfig.commands.configs import Refused
from versionedconfig.commands.diff import Answer, Stored, What, compare, ends, show, unified

KEYS = st.sampled_from(["a", "b", "c"])
TEXTS = st.text(st.sampled_from("ab\n\r\x0b\u2028"), max_size=12)


def answer(kind: str, old: Stored, new: Stored) -> Answer:
    return Answer(kind, "shop", "app", "app-1", "app-2", compare(kind, ("app-1", old), ("app-2", new)))


def text_of(found: Answer, *, terminal: bool = False) -> str:
    written = io.StringIO()
    show(found, Console(file=written, force_terminal=terminal, width=200))
    return written.getvalue()


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def lines_of(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def applied(old: str, diff: str) -> str:
    """What a patch program makes of it."""
    source = lines_of(old)
    made: list[str] = []
    at = 0
    for line in lines_of(diff)[2:]:
        if match := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            start, count = int(match[1]), int(match[2] or 1)
            until = start - 1 if count else start
            made += source[at:until]
            at = until
        elif line.startswith("\\"):
            made[-1] = made[-1].removesuffix("\n")
        elif line.startswith("-"):
            at += 1
            made.append("")  # so that a mark after it takes nothing from a line that is kept
        elif line.startswith("+"):
            made.append(line[1:])
        else:
            made.append(source[at])
            at += 1
    return "".join(made + source[at:])


@given(TEXTS, TEXTS, st.sampled_from([0, 10**9]))
@example("a", "a\n", 10**9)
@example("a\n", "a", 0)
@example("a\nb\nc\n", "", 0)
def test_a_diff_leads_from_one_to_the_other(old: str, new: str, most: int) -> None:
    diff = "".join(unified(old, new, "x", "y", most))

    assert (diff == "") == (old == new)
    assert applied(old, diff) == new


def test_a_long_text_that_changed_everywhere_does_not_take_minutes() -> None:
    old = [f"line {number}\n" for number in range(50_000)]
    new = [line if number % 5 else "x\n" for number, line in enumerate(old)]

    diff = "".join(unified("".join(old), "".join(new), "x", "y"))

    assert applied("".join(old), diff) == "".join(new)


def test_every_sort_of_change() -> None:
    old = Stored(
        {"same": "1", "text": "a\nb\n", "gone": "x", "turned": "x"},
        {"bin": encoded(b"123"), "s": encoded(b"1")},
    )
    new = Stored(
        {"same": "1", "text": "a\nc\n", "come": ""},
        {"bin": encoded(b"12345"), "s": encoded(b"1"), "turned": encoded(b"\xff\xfe")},
    )

    found = answer("ConfigMap", old, new)

    told = [(c.key, c.what, c.from_bytes, c.to_bytes, bool(c.diff)) for c in found.changes]
    assert told == [
        ("bin", What.CHANGED, 3, 5, False),
        ("come", What.ADDED, None, 0, False),
        ("gone", What.REMOVED, 1, None, True),
        ("text", What.CHANGED, 4, 4, True),
        ("turned", What.CHANGED, 1, 2, False),
    ]
    text = text_of(found)
    assert "--- app-1/text\n+++ app-2/text\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n" in text
    assert "--- app-1/gone\n+++ /dev/null\n" in text
    assert "  changed bin: 3 -> 5 bytes\n" in text
    assert "  added come: 0 bytes\n" in text


def test_a_terminal_is_not_obeyed() -> None:
    found = answer("ConfigMap", Stored({"k": "a"}), Stored({"k": "\x1b]0;title\x07\u009b2J[red]é\r\n"}))

    assert "+\x1b]0;title\x07\u009b2J[red]é\r\n" in text_of(found)
    assert r"+\x1b]0;title\x07\x9b2J[red]é\x0d" in text_of(found, terminal=True)


SECRET_VALUES = st.binary(min_size=6, max_size=30).map(lambda value: b"\xf0\x9f" + value)


@given(st.dictionaries(KEYS, SECRET_VALUES), st.dictionaries(KEYS, SECRET_VALUES))
def test_of_a_secret_no_value_is_told(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """The answer is what it would be of any other values of these sizes that are as equal."""
    found = answer(
        "Secret", *(Stored({key: encoded(value) for key, value in side.items()}) for side in (old, new))
    )
    others = answer(
        "Secret",
        Stored({key: encoded(b"x" * len(value)) for key, value in old.items()}),
        Stored(
            {
                key: encoded((b"x" if old.get(key) == value else b"y") * len(value))
                for key, value in new.items()
            }
        ),
    )

    assert msgspec.json.encode(found) == msgspec.json.encode(others)
    assert text_of(found) == text_of(others)
    assert {change.key for change in found.changes} == {
        key for key in old.keys() | new.keys() if old.get(key) != new.get(key)
    }


def test_content_does_not_show_in_a_repr() -> None:
    assert "swordfish" not in repr(Stored({"k": "swordfish"}))


@pytest.mark.parametrize(
    ("start", "end", "hashes"),
    [
        ("", "", (MIDDLE, NEW)),
        (OLD, "", (OLD, NEW)),
        ("current", "latest", (NEW, FRESH)),
        ("previous", "22", (MIDDLE, OLD)),
    ],
)
def test_ends(start: str, end: str, hashes: tuple[str, str]) -> None:
    asked = config(*THREE, version(FRESH), current=NEW, latest=FRESH)

    assert tuple(found.hash for found in ends(asked, start, end)) == hashes


def test_the_first_version_has_none_before_it() -> None:
    with pytest.raises(Refused, match="had no other version before"):
        ends(config(THREE[0], current=NEW), "", "")
    with pytest.raises(Refused, match="no versions yet"):
        ends(config(), "", "")
