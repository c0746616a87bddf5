"""`versionedconfig diff`: what changed from one version's content to another's. Of a Secret no value is ever told, and no
hash of one: keys and sizes alone."""

import base64
import difflib
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import pairwise, takewhile
from typing import Final, NamedTuple

import msgspec
from rich.console import Console

from versionedconfig.commands.configs import Config, Refused, forbidden, previous, resolve
from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.model import ConfigKey
from versionedconfig.resource import VersionStatus


class What(StrEnum):
    """What became of a key."""

    ADDED = "Added"
    REMOVED = "Removed"
    CHANGED = "Changed"


class Stored(msgspec.Struct, frozen=True, rename="camel"):
    """A version's content; its repr shows nothing of it."""

    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}

    def __repr__(self) -> str:
        return "<Stored>"


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """One key that is not the same."""

    key: str
    what: What
    from_bytes: int | None
    to_bytes: int | None
    diff: str
    """A unified diff; empty for what is no text, and always for Secrets."""


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What `diff` found."""

    kind: str
    namespace: str
    name: str
    from_: str = msgspec.field(name="from")
    to: str
    changes: list[Change]


class _Value(NamedTuple):
    content: bytes
    text: str | None
    """Where it may be shown."""


_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
"""As diff and editors count them; str.splitlines breaks at more characters."""

_UNSHOWN: Final = re.compile(r"[^\t\n -~\u00a0-\U0010ffff]")
"""Control characters: a terminal would obey them."""

MOST_WORK: Final = 50_000_000
"""Lines times places: some seconds of difflib, which would take minutes for 50,000 lines of which every fifth is another."""

NO_END: Final = "\\ No newline at end of file\n"


def ends(config: Config, start: str, end: str) -> tuple[VersionStatus, VersionStatus]:
    """The two versions to compare; empty: the one before the current, and the current one.

    Raises:
        Refused: there are no such versions.
    """
    to = resolve(config, end or "current")
    if not start and previous(config) is None:
        raise Refused(
            f"{config.metadata.name} had no other version before the current one, of those that are kept: "
            "give the hashes of two, see `history`"
        )
    return resolve(config, start or "previous"), to


async def content(api: Api, key: ConfigKey) -> Stored:
    """What a version holds, read with the user's own rights.

    Raises:
        Refused: it is gone, or may not be read.
    """
    try:
        return await api.get(path_of(f"/api/v1/{key.kind.lower()}s", key.namespace, key.name), type=Stored)
    except ApiError as error:
        if error.status == 403:
            raise forbidden("get", key.namespace, f"{key.kind.lower()}s") from None
        if error.status != 404:
            raise
    raise Refused(f"{key} is not there any more, somebody deleted it: choose another version, see `history`")


async def find(api: Api, config: Config, start: str, end: str) -> Answer:
    """Read both and compare."""
    kind, namespace = config.spec.kind, config.metadata.namespace
    old, new = (version.name for version in ends(config, start, end))
    contents = [await content(api, ConfigKey(kind, namespace, name)) for name in (old, new)]
    return Answer(
        kind=kind,
        namespace=namespace,
        name=config.metadata.name,
        from_=old,
        to=new,
        changes=compare(kind, (old, contents[0]), (new, contents[1])),
    )


def compare(kind: str, old: tuple[str, Stored], new: tuple[str, Stored]) -> list[Change]:
    """Every key that is not the same, by name. Each side is a version's name and content."""
    before, after = _values(kind, old[1]), _values(kind, new[1])
    changes = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was == now:
            continue
        what = What.CHANGED if was and now else What.ADDED if now else What.REMOVED
        texts = [value.text if value else "" for value in (was, now)]
        lines: Iterable[str] = ()
        if texts[0] is not None and texts[1] is not None:
            labels = [f"{old[0]}/{key}" if was else "/dev/null", f"{new[0]}/{key}" if now else "/dev/null"]
            lines = unified(texts[0], texts[1], labels[0], labels[1])
        sizes = [len(value.content) if value else None for value in (was, now)]
        changes.append(Change(key, what, sizes[0], sizes[1], "".join(lines)))
    return changes


def _values(kind: str, stored: Stored) -> dict[str, _Value]:
    if kind != "ConfigMap":
        return {key: _Value(base64.b64decode(value), None) for key, value in stored.data.items()}
    values = {key: _Value(value.encode(), value) for key, value in stored.data.items()}
    binary = {key: _Value(base64.b64decode(value), None) for key, value in stored.binary_data.items()}
    return values | binary


def unified(old: str, new: str, from_label: str, to_label: str, most: int = MOST_WORK) -> Iterator[str]:
    """The lines of a unified diff."""
    before, after = _LINES.findall(old), _LINES.findall(new)
    # Each place where the two part costs difflib another walk over all lines. There the neighbours are others too.
    places = len(set(pairwise(before)) - set(pairwise(after)))
    if places * len(before) > most:
        made = _replaced(before, after, from_label, to_label)
    else:
        made = difflib.unified_diff(before, after, from_label, to_label)
    for line in made:
        yield line
        if not line.endswith("\n"):
            yield f"\n{NO_END}"


def _replaced(before: list[str], after: list[str], from_label: str, to_label: str) -> Iterator[str]:
    """One hunk from the first line that is not the same to the last."""
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    rest = zip(reversed(before[start:]), reversed(after[start:]), strict=False)
    tail = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    gone, come = before[start : len(before) - tail], after[start : len(after) - tail]
    # An empty range names the line before it.
    ranges = [f"{start + 1 if lines else start},{len(lines)}" for lines in (gone, come)]
    yield from (f"--- {from_label}\n", f"+++ {to_label}\n", f"@@ -{ranges[0]} +{ranges[1]} @@\n")
    yield from (f"-{line}" for line in gone)
    yield from (f"+{line}" for line in come)


def _shown(text: str) -> str:
    return _UNSHOWN.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


_STYLES: Final = (("---", "bold"), ("+++", "bold"), ("@@", "cyan"), ("-", "red"), ("+", "green"))


def show(answer: Answer, console: Console) -> None:
    """As a diff, exact where no terminal reads it; sizes where there is no text to compare."""
    if not answer.changes:
        console.print(f"no difference between {answer.from_} and {answer.to}", highlight=False)
    told = False
    for change in answer.changes:
        if change.diff and not console.is_terminal:
            console.file.write(change.diff)
            continue
        if change.diff:
            for line in change.diff.removesuffix("\n").split("\n"):
                style = next((style for start, style in _STYLES if line.startswith(start)), None)
                console.out(_shown(line), style=style, highlight=False)
            continue
        if not told:
            told = True
            console.print(f"{answer.kind} {answer.from_} -> {answer.to}:", highlight=False)
        console.print(
            f"  {change.what.lower()} {change.key}: {_sizes(change)}", highlight=False, markup=False
        )


def _sizes(change: Change) -> str:
    sizes = [size for size in (change.from_bytes, change.to_bytes) if size is not None]
    return f"{' -> '.join(map(str, sizes))} byte{'' if sizes[-1] == 1 else 's'}"
