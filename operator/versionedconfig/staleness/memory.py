"""A history as a document, for the time after a restart. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from versionedconfig.staleness.history import History, source_of

MOST: Final = 100_000
"""Characters: what is kept must not fill the API server's storage."""


def remember(history: History, *, secret: bool) -> dict[str, Any] | None:
    """The document; None where it would be too long. Of a Secret it says which contents are equal, and nothing else of
    them."""
    if secret:
        labels: dict[str, str] = {"": ""}

        def label(digest: str) -> str:
            return labels.setdefault(digest, f"{source_of(digest)}:{len(labels)}")

        lives = tuple(
            dataclasses.replace(life, digests=tuple(map(label, life.digests)), also=label(life.also))
            for life in history.lives
        )
        history = dataclasses.replace(history, lives=lives)
    document: dict[str, Any] = _plain(history)
    return document if len(msgspec.json.encode(document)) <= MOST else None


def recall(document: object) -> History | None:
    """What `remember` gave; None for anything else."""
    try:
        return msgspec.convert(document, History)
    except (msgspec.ValidationError, TypeError):
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
