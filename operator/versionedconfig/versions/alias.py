"""The alias: a mutable object under the logical name, for what reads configuration through the API and so never restarts
with a new version. It holds what new workloads get, so that content which makes a target fail does not reach it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from versionedconfig.kube.api import METADATA_ONLY, Api, ApiError
from versionedconfig.model import ALIAS_ANNOTATION, ConfigKey, ObjectKey
from versionedconfig.projection import api_path
from versionedconfig.resource import Spec
from versionedconfig.versions.metadata import alias_metadata, metadata_patch

FIELDS: Final = ("data", "binaryData")


class AliasRefused(Exception):
    """It cannot be kept in step; says what to do."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    uid: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Written(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _Metadata


class _Stored(_Written, frozen=True):
    """With content; its repr shows nothing of it."""

    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    type: str = ""
    immutable: bool = False

    def __repr__(self) -> str:
        return "<_Stored>"

    def field(self, name: str) -> Mapping[str, str]:
        """`data` or `binaryData`"""
        return (self.data if name == "data" else self.binary_data) or {}


async def keep_alias(api: Api, owner: ObjectKey, spec: Spec, version: str) -> str:
    """Bring the alias in step with that version.

    Returns:
        The resourceVersion at which it is.

    Raises:
        AliasRefused: the name is taken, or the API server will not have it.
        ApiError: anything else; 404 where the version is gone, 409 where somebody writes at the same time.
    """
    path = api_path(ConfigKey(spec.kind, *owner))
    source = await api.get(api_path(ConfigKey(spec.kind, owner.namespace, version)), type=_Stored)
    wanted = alias_metadata(owner, spec)
    try:
        there = await _read(api, path)
        if there is None:
            body: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": spec.kind,
                "metadata": {"name": owner.name, **wanted},
                **{field: values for field in FIELDS if (values := source.field(field))},
                **({"type": source.type} if source.type else {}),
            }
            made = await api.create(path.rpartition("/")[0], body, type=_Written, accept=METADATA_ONLY)
            return made.metadata.resource_version
        theirs = there.metadata
        if theirs.annotations.get(ALIAS_ANNOTATION) != str(owner) or there.immutable:
            raise AliasRefused(
                f"alias: {spec.kind} {owner.name} exists and is {'immutable' if there.immutable else 'not ours'}: "
                "delete it, or set spec.alias.enabled to false"
            )
        if there.type != source.type:  # which cannot change
            raise AliasRefused(f"alias: {spec.kind} {owner.name} has another type: delete it")
        patch: dict[str, Any] = {
            field: changes
            for field in FIELDS
            if (changes := _changes(there.field(field), source.field(field)))
        }
        metadata = metadata_patch(wanted, labels=theirs.labels, annotations=theirs.annotations)
        if not patch and not metadata:
            return theirs.resource_version
        guard = {"uid": theirs.uid, "resourceVersion": theirs.resource_version}
        body = {"metadata": {**metadata, **guard}, **patch}
        kept = await api.patch(path, body, kind="merge", type=_Written, accept=METADATA_ONLY)
    except ApiError as error:
        if error.status not in (400, 403, 422):
            raise
        raise AliasRefused(f"alias: {error.message}") from None
    return kept.metadata.resource_version


async def _read(api: Api, path: str) -> _Stored | None:
    try:
        return await api.get(path, type=_Stored)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    """As a merge patch: keys that are gone are null."""
    gone = dict.fromkeys(old.keys() - new.keys())
    return {**gone, **{key: value for key, value in new.items() if old.get(key) != value}}
