"""A history as a document, for the time after a restart. Pure."""

import base64
import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from versionedconfig.staleness.history import History, source_of

MOST: Final = 500_000
"""Characters: an object can have about a million and a half."""

MOST_UNPACKED: Final = 50_000_000
"""Bytes."""


def remember(history: History, *, secret: bool) -> str | None:
    """The document, compressed: pods are much alike. None where it would be too long. Of a Secret it says which contents are
    equal, and nothing else of them."""
    if secret:
        labels: dict[str, str] = {"": ""}

        def label(digest: str) -> str:
            return labels.setdefault(digest, f"{source_of(digest)}:{len(labels)}")

        lives = tuple(
            dataclasses.replace(life, digests=tuple(map(label, life.digests)), also=label(life.also))
            for life in history.lives
        )
        history = dataclasses.replace(history, lives=lives)
    text = base64.b64encode(zlib.compress(msgspec.json.encode(_plain(history)))).decode()
    return text if len(text) <= MOST else None


def recall(text: object) -> History | None:
    """What `remember` gave; None for anything else."""
    try:
        packed = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        inflate = zlib.decompressobj()
        # Anybody may have written it, and a little of it can stand for a lot.
        return msgspec.json.decode(inflate.decompress(packed, MOST_UNPACKED), type=History)
    except (ValueError, zlib.error, RecursionError):
        return None


def _plain(value: object) -> Any:
    """Without what is as it is by default: most of it is."""
    if dataclasses.is_dataclass(value):
        return {
            one.name: _plain(content)
            for one in dataclasses.fields(value)
            if (content := getattr(value, one.name)) != _default(one)
        }
    if isinstance(value, Mapping):
        return {key: _plain(content) for key, content in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _default(one: "dataclasses.Field[Any]") -> object:
    if one.default_factory is not dataclasses.MISSING:
        return one.default_factory()
    return one.default
