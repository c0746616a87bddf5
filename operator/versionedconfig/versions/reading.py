"""Reads the content of a VersionedConfig, with that of the objects that it takes from. Nothing is kept."""

import asyncio
from typing import NamedTuple

from versionedconfig.kube.api import Api
from versionedconfig.model import ConfigKey, ObjectKey
from versionedconfig.resource import SourceRef, Spec
from versionedconfig.versions.content import (
    Content,
    Source,
    config_map_content,
    content_problems,
    merge,
    secret_content,
)
from versionedconfig.versions.stored import read_stored


class BadContent(Exception):
    """No version can be made of it; says what to change, and no value."""

    def __init__(self, reason: str, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.reason = reason
        self.problems = problems


class Keys(NamedTuple):
    """A content without values."""

    data: frozenset[str]
    binary_data: frozenset[str]


def source_keys(namespace: str, spec: Spec) -> tuple[ConfigKey, ...]:
    """The objects that content is taken from."""
    return tuple(ConfigKey(source.kind, namespace, source.name) for source in spec.from_)


async def read_content(api: Api, owner: ObjectKey, spec: Spec) -> Content:
    """The content as it is now.

    Raises:
        BadContent: it is none that Kubernetes would take, or a source is missing.
        ApiError: a source cannot be read.
    """
    try:
        if spec.kind == "Secret":
            own = secret_content(spec.type, spec.data, spec.string_data)
        else:
            own = config_map_content(spec.data, spec.binary_data)
    except ValueError as error:
        raise BadContent("InvalidContent", (str(error),)) from None
    if spec.from_:
        sources = await asyncio.gather(*(_read(api, owner.namespace, source) for source in spec.from_))
        merged = merge(sources, own)
        if merged.problems:
            # What is forbidden does not come by itself.
            forbidden = spec.kind != "Secret" and any(source.kind == "Secret" for source in spec.from_)
            raise BadContent("InvalidContent" if forbidden else "SourceMissing", merged.problems)
        own = merged.content
    if problems := content_problems(owner.name, own):
        raise BadContent("InvalidContent", problems)
    return own


async def read_keys(api: Api, key: ConfigKey) -> Keys:
    """The keys of an object's content; none where there is no such object."""
    stored = await read_stored(api, key)
    if stored is None:
        return Keys(frozenset(), frozenset())
    return Keys(frozenset(stored.data or ()), frozenset(stored.binary_data or ()))


async def _read(api: Api, namespace: str, source: SourceRef) -> Source:
    stored = await read_stored(api, ConfigKey(source.kind, namespace, source.name))
    content = stored.content(source.kind) if stored is not None else None
    return Source(source.kind, source.name, content, source.optional, tuple(source.keys))
