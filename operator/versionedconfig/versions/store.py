"""The versions in the cluster: makes them, keeps their metadata in step, marks and collects those that nothing needs."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from versionedconfig.kube.api import METADATA_ONLY, Api, ApiError
from versionedconfig.live import LiveLists
from versionedconfig.model import (
    DELETION_ANNOTATION,
    IGNORE_ANNOTATION,
    IN_USE_FINALIZER,
    NAME_ANNOTATION,
    UNUSED_ANNOTATION,
    ConfigKey,
    Incarnation,
    ObjectKey,
    timestamp,
)
from versionedconfig.observability.metrics import Metrics
from versionedconfig.projection import api_path
from versionedconfig.resource import VersionedConfig
from versionedconfig.versions.content import Content
from versionedconfig.versions.metadata import DELETE, metadata_patch, version_metadata
from versionedconfig.versions.stored import Stored, manifest
from versionedconfig.view import View

logger = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 4
"""Names tried for one content. Two contents of one VersionedConfig that share 40 bits are a curiosity."""


class NameConflict(Exception):
    """The version's name is taken by an object that is not ours to touch."""


class VersionStore:
    """One for the process."""

    def __init__(self, api: Api, view: View, live: LiveLists, metrics: Metrics) -> None:
        self._api = api
        self._view = view
        self._live = live
        self._metrics = metrics

    async def materialise(
        self, owner: ObjectKey, resource: VersionedConfig, content: Content, *, seen: bool
    ) -> str:
        """The name of the version that holds the content, which exists from now on.

        Args:
            seen: this generation of the VersionedConfig was told of before: a version that the mirror shows need not be
                compared again.

        Raises:
            NameConflict: another object has the name.
            ApiError: the API server will not have it.
        """
        digest = content.digest()
        known = {resource.status.latest_version, resource.status.current_version}
        for attempt in range(MAX_ATTEMPTS):
            name = content.version_name(owner.name, attempt)
            key = ConfigKey(content.kind, owner.namespace, name)
            life = self._view.incarnation(key)
            if (
                seen
                and life is not None
                and name in known
                and (life.owner, life.digest) == (owner.name, digest)
            ):
                return name
            stored = await self._create_or_read(key, owner, resource, content)
            if stored is None:
                return name
            # A version whose annotation somebody took away is still ours: the status remembers that we made it.
            theirs = stored.metadata.annotations.get(NAME_ANNOTATION)
            lost = theirs is None and name in {version.name for version in resource.status.versions}
            if not stored.immutable or not (theirs == str(owner) or lost):
                raise NameConflict(
                    f"{content.kind} {name} exists and is no version of this VersionedConfig: "
                    "rename or delete it, or change the content"
                )
            if stored.content(content.kind) == content:
                await self._mend_metadata(key, owner, digest, resource, stored)
                return name
        raise NameConflict(f"{MAX_ATTEMPTS} names for this content are taken by versions with other content")

    async def _create_or_read(
        self, key: ConfigKey, owner: ObjectKey, resource: VersionedConfig, content: Content
    ) -> Stored | None:
        """Create the version with the finalizer in the POST; the object that is there already, if one is."""
        path = api_path(key)
        if self._view.incarnation(key) is None:
            metadata = version_metadata(owner, content.digest(), resource.spec)
            named = {"name": key.name, "finalizers": [IN_USE_FINALIZER], **metadata}
            body = {**manifest(content, named), "immutable": True}
            try:
                await self._api.create(path.rpartition("/")[0], body, type=msgspec.Raw, accept=METADATA_ONLY)
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                self._metrics.made(key.kind)
                return None
        return await self._api.get(path, type=Stored)

    async def _mend_metadata(
        self, key: ConfigKey, owner: ObjectKey, digest: str, resource: VersionedConfig, stored: Stored
    ) -> None:
        if stored.metadata.annotations.get(IGNORE_ANNOTATION) == "true":
            return
        patch = metadata_patch(
            version_metadata(owner, digest, resource.spec),
            labels=stored.metadata.labels,
            annotations=stored.metadata.annotations,
        )
        if patch:
            await self._patch(key, {"uid": stored.metadata.uid, **patch})

    async def set_policy(self, versions: Iterable[Incarnation], policy: str) -> None:
        """Note it on all of them: when their VersionedConfig is gone, it cannot be asked any more."""
        delete = policy == DELETE
        for version in versions:
            if version.delete_with_owner != delete and not (version.ignored or version.deleting):
                await self._annotate(version, DELETION_ANNOTATION, DELETE if delete else None)

    async def mark(self, versions: Iterable[Incarnation], now: datetime | None) -> None:
        """Note since when nothing needs them; None: that something does."""
        text = timestamp(now) if now is not None else None
        for version in versions:
            await self._annotate(version, UNUSED_ANNOTATION, text)

    async def _annotate(self, version: Incarnation, name: str, value: str | None) -> None:
        try:
            await self._patch(version.key, {"uid": version.uid, "annotations": {name: value}})
        except ApiError as error:
            if error.status not in (404, 409, 422):  # gone, or another one by now
                raise

    async def _patch(self, key: ConfigKey, metadata: Mapping[str, object]) -> None:
        body = {"metadata": metadata}
        await self._api.patch(api_path(key), body, kind="merge", type=msgspec.Raw, accept=METADATA_ONLY)

    async def collect(
        self, namespace: str, versions: tuple[Incarnation, ...], *, history_counts: bool = True
    ) -> None:
        """Delete what a live look confirms to be unused. Preconditions make a lost race harmless.

        Args:
            history_counts: what an old revision can go back to is used.
        """
        held = await self._live.held(namespace, list(versions))
        used = await self._live.referred(namespace, revisions=history_counts)
        refused: ApiError | None = None
        for version in versions:
            if version.key in held or version.key in used:
                continue
            try:
                await self._api.delete(
                    api_path(version.key), uid=version.uid, resource_version=version.resource_version
                )
            except ApiError as error:
                if error.status not in (404, 409):
                    refused = error
            else:
                self._metrics.versions_collected.inc()
                logger.info("collected", extra={"config": str(version.key)})
        if refused is not None:
            # Somebody's policy may want to keep one of them; the others are gone all the same.
            raise refused
