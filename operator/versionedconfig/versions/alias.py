"""The alias: a mutable object under the logical name, for what reads configuration through the API and so never restarts
with a new version. It holds what new workloads get, so that content which makes a target fail does not reach it."""

from collections.abc import Mapping

from versionedconfig.kube.api import METADATA_ONLY, Api, ApiError
from versionedconfig.model import ALIAS_ANNOTATION, ConfigKey, ObjectKey
from versionedconfig.projection import api_path
from versionedconfig.resource import Spec
from versionedconfig.versions.metadata import alias_metadata, metadata_patch
from versionedconfig.versions.stored import Stored, Written, manifest, read_stored


class AliasRefused(Exception):
    """It cannot be kept in step; says what to do."""


async def keep_alias(api: Api, owner: ObjectKey, spec: Spec, version: str) -> str:
    """Bring the alias in step with that version.

    Returns:
        The resourceVersion at which it is.

    Raises:
        AliasRefused: the name is taken, or the API server will not have it.
        ApiError: anything else; 404 where the version is gone, 409 where somebody writes at the same time.
    """
    kind = spec.kind
    key = ConfigKey(kind, *owner)
    version_key = ConfigKey(kind, owner.namespace, version)
    content = (await api.get(api_path(version_key), type=Stored)).content(kind)
    wanted = alias_metadata(owner, spec)
    path = api_path(key)
    try:
        there = await read_stored(api, key)
        if there is None:
            body = manifest(content, {"name": owner.name, **wanted})
            made = await api.create(path.rpartition("/")[0], body, type=Written, accept=METADATA_ONLY)
            return made.metadata.resource_version
        theirs, before = there.metadata, there.content(kind)
        if theirs.annotations.get(ALIAS_ANNOTATION) != str(owner) or there.immutable:
            raise AliasRefused(
                f"alias: {kind} {owner.name} exists and is {'immutable' if there.immutable else 'not ours'}: "
                "delete it, or set spec.alias.enabled to false"
            )
        if before.type != content.type:  # which cannot change
            raise AliasRefused(f"alias: {kind} {owner.name} has another type: delete it")
        metadata = metadata_patch(wanted, labels=theirs.labels, annotations=theirs.annotations)
        if before == content and not metadata:
            return theirs.resource_version
        guard = {"uid": theirs.uid, "resourceVersion": theirs.resource_version}
        patch: dict[str, object] = {"metadata": {**metadata, **guard}}
        if changes := _changes(before.data, content.data):
            patch["data"] = changes
        if changes := _changes(before.binary_data, content.binary_data):
            patch["binaryData"] = changes
        kept = await api.patch(path, patch, kind="merge", type=Written, accept=METADATA_ONLY)
    except ApiError as error:
        if error.status not in (400, 403, 422):
            raise
        raise AliasRefused(f"alias: {error.message}") from None
    return kept.metadata.resource_version


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    """As a merge patch: keys that are gone are null."""
    gone = dict.fromkeys(old.keys() - new.keys())
    return {**gone, **{key: value for key, value in new.items() if old.get(key) != value}}
