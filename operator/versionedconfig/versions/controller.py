"""Carries VersionedConfigs out: content becomes a version, the version becomes current, targets are granted their move,
the status tells, and versions that nothing needs are collected.

The content is read live when a VersionedConfig changed and dropped again. What is kept in memory of each is in `_Known`.
Order of writes, so that a crash anywhere ends the same: the version exists, then the status says that it is current
(with each target's revision at that moment), then templates move.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.kube.queue import WorkQueue
from versionedconfig.live import LiveLists
from versionedconfig.model import (
    GROUP,
    IGNORE_ANNOTATION,
    IN_USE_FINALIZER,
    NAME_ANNOTATION,
    ConfigKey,
    Incarnation,
    ObjectKey,
    owner_by_name,
    timestamp,
)
from versionedconfig.observability.metrics import Metrics
from versionedconfig.references import referenced_names
from versionedconfig.resource import PATH, PLURAL, Rollout, Spec, Status, VersionedConfig, unsupported
from versionedconfig.rollout.controller import RolloutController
from versionedconfig.rollout.plan import Aim, Plan, plan
from versionedconfig.settings import Settings
from versionedconfig.versions.conditions import Verdict, conditions, refused, rolling, settling
from versionedconfig.versions.content import Content, config_map_content, content_problems
from versionedconfig.versions.history import history
from versionedconfig.versions.metadata import metadata_patch, version_metadata
from versionedconfig.versions.settle import Settling, seconds_to_wait
from versionedconfig.view import View, WorkloadItem, api_path
from versionedconfig.workload import Revision

logger = logging.getLogger(__name__)

STATUS_SECONDS: Final = 1.0
"""At most one status write in this time for a VersionedConfig, the promotion of a version apart."""

MAX_ATTEMPTS: Final = 4
"""Names tried for one content. Two contents of one VersionedConfig that share 40 bits are a curiosity."""


class _StoredMetadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Stored(msgspec.Struct, frozen=True, rename="camel"):
    """A ConfigMap with its content, for the one comparison; its repr shows nothing of it."""

    metadata: _StoredMetadata
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    immutable: bool = False

    def __repr__(self) -> str:
        return "<_Stored>"


class _Named(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _Listed(msgspec.Struct, frozen=True):
    metadata: _Named


@dataclass(slots=True)
class _Known:
    """What stays in memory of one VersionedConfig: never its content."""

    uid: str
    generation: int
    rollout: Rollout
    history_limit: int
    status: Status
    kind: str
    taken_in: float
    """When it was read, on the controller's clock."""
    refusal: Verdict | None = None
    written: float = float("-inf")


class NameConflict(Exception):
    """The version's name is taken by an object that is not ours to touch."""


class VersionsController:
    """One for the process. `enqueue` is called for every VersionedConfig that changed or whose versions, targets or
    users did."""

    def __init__(
        self,
        api: Api,
        view: View,
        live: LiveLists,
        rollouts: RolloutController,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._view = view
        self._live = live
        self._rollouts = rollouts
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._known: dict[ObjectKey, _Known] = {}
        self._dirty: set[ObjectKey] = set()
        self._settling: dict[ObjectKey, Settling] = {}
        self.queue: WorkQueue[ObjectKey] = WorkQueue(name="versions")

    async def run(self) -> None:
        """Work for ever. Call when the view is synced."""
        try:
            async for page in self._api.list_pages(PATH, item=_Listed):
                for item in page.items:
                    self.changed(ObjectKey(item.metadata.namespace, item.metadata.name))
        except ApiError as error:
            if error.status != 404:
                raise
            missing = f"the CRD {PLURAL}.{GROUP} is not there: apply crds/ or manifests/base first"
            raise ApiError(404, error.reason, missing) from None
        for owner in self._view.owners():
            self.queue.add(owner)
        await self.queue.run(self.reconcile, concurrency=10)

    def changed(self, owner: ObjectKey, *, uid: str = "", generation: int = 0) -> None:
        """The VersionedConfig itself changed. With uid and generation, an event that only tells of our own status
        write is passed over."""
        known = self._known.get(owner)
        if known is not None and generation and (known.uid, known.generation) == (uid, generation):
            return
        self._dirty.add(owner)
        self._rollouts.unsettle(owner)
        self.queue.add(owner)

    def touched(self, owner: ObjectKey) -> None:
        """A version, a target or a user of it changed."""
        self.queue.add(owner)

    def touched_by(self, key: ConfigKey) -> None:
        """Something about a reference to this key changed: tell the VersionedConfig behind it, if there is one."""
        incarnation = self._view.incarnation(key)
        if incarnation is not None and incarnation.owner:
            self.queue.add(ObjectKey(key.namespace, incarnation.owner))
        for name in (key.name, owner_by_name(key.name)):
            if (owner := ObjectKey(key.namespace, name)) in self._known:
                self.queue.add(owner)

    async def reconcile(self, owner: ObjectKey) -> None:
        """Bring one VersionedConfig a step further; safe to repeat at any time."""
        known = self._known.get(owner)
        if (
            known is None
            or owner in self._dirty
            or self._current_missing(owner, known)
            or self._clock() - known.taken_in >= self._settings.resync_seconds
        ):
            self._dirty.discard(owner)
            try:
                known = await self._take_in(owner)
            except BaseException:
                self._dirty.add(owner)
                raise
            if known is None:
                return
        if known.refusal is not None:
            await self._write_status(owner, known, self._told(known, known.refusal))
        else:
            await self._progress(owner, known, promoted=False)
        self.queue.add_after(owner, self._settings.resync_seconds)

    def _current_missing(self, owner: ObjectKey, known: _Known) -> bool:
        if known.refusal is not None or not known.status.current_version:
            return False
        incarnation = self._view.incarnation(
            ConfigKey(known.kind, owner.namespace, known.status.current_version)
        )
        return incarnation is None or incarnation.owner != owner.name

    async def _take_in(self, owner: ObjectKey) -> _Known | None:
        """Read the VersionedConfig and see to its current version. None: gone, or nothing to do yet."""
        try:
            resource = await self._api.get(path_of(PATH, *owner), type=VersionedConfig)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._forget(owner)
            return None
        if resource.metadata.deletion_timestamp is not None or self._view.terminating(owner.namespace):
            # On its way out: whatever holds it, no new version is made (the API server refuses it anyway).
            self._known.pop(owner, None)
            self._settling.pop(owner, None)
            self._rollouts.withdraw(owner)
            return None
        spec = resource.spec
        known = _Known(
            uid=resource.metadata.uid,
            generation=resource.metadata.generation,
            rollout=spec.rollout,
            history_limit=spec.history_limit,
            status=resource.status,
            kind=spec.kind,
            taken_in=self._clock(),
        )
        try:
            content = self._content(owner, spec)
            if isinstance(content, Verdict):
                self._settling.pop(owner, None)
                return self._refuse(owner, known, content)
            wait = self._seconds_to_settle(owner, resource, content)
            if wait > 0:
                self._dirty.add(owner)
                self._known[owner] = known
                if not known.status.conditions:
                    verdict = settling(content.version_name(owner.name))
                    await self._write_status(owner, known, self._told(known, verdict))
                self.queue.add_after(owner, wait)
                return None
            version = await self._materialise(owner, resource, content)
        except NameConflict as conflict:
            self._try_again(owner)
            return self._refuse(owner, known, refused("NameConflict", [str(conflict)]))
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            # The API server will not have this version: quota, an admission policy, a label that is none.
            self._try_again(owner)
            return self._refuse(owner, known, refused("VersionRefused", [error.message]))
        self._settling.pop(owner, None)
        self._known[owner] = known
        if version != known.status.current_version:
            known.status = msgspec.structs.replace(
                known.status, current_version=version, current_since=timestamp(_now())
            )
            logger.info("promoted", extra={"versionedconfig": str(owner), "version": version})
            if not await self._progress(owner, known, promoted=True):
                return None
        return known

    def _content(self, owner: ObjectKey, spec: Spec) -> Content | Verdict:
        if self._settings.excluded(owner.namespace):
            return refused(
                "NamespaceExcluded",
                [f"the operator makes nothing in namespace {owner.namespace}: use another one"],
            )
        if fields := unsupported(spec):
            return refused("NotSupported", [f"not supported yet: {field}" for field in fields])
        try:
            content = config_map_content(spec.data, spec.binary_data)
        except ValueError as error:
            return refused("InvalidContent", [str(error)])
        if problems := content_problems(owner.name, content):
            return refused("InvalidContent", problems)
        return content

    def _try_again(self, owner: ObjectKey) -> None:
        """For what may get better without the VersionedConfig changing."""
        self._dirty.add(owner)
        self.queue.add_backoff(owner)

    def _refuse(self, owner: ObjectKey, known: _Known, verdict: Verdict) -> _Known:
        known.refusal = verdict
        self._known[owner] = known
        self._rollouts.withdraw(owner)
        return known

    def _seconds_to_settle(self, owner: ObjectKey, resource: VersionedConfig, content: Content) -> float:
        digest = content.digest()
        current = ConfigKey(content.kind, owner.namespace, resource.status.current_version)
        incarnation = self._view.incarnation(current)
        if incarnation is not None and incarnation.digest == digest and incarnation.owner == owner.name:
            return 0.0
        now = self._clock()
        state = self._settling.get(owner)
        if state is None:
            state = Settling(digest, first=now, last=now)
        elif state.digest != digest:
            state = Settling(digest, first=state.first, last=now)
        self._settling[owner] = state
        return seconds_to_wait(state, now, resource.spec.rollout.settle_seconds)

    async def _materialise(self, owner: ObjectKey, resource: VersionedConfig, content: Content) -> str:
        """See to it that the version exists, whole and ours; its name."""
        digest = content.digest()
        fresh = resource.status.observed_generation == resource.metadata.generation
        for attempt in range(MAX_ATTEMPTS):
            name = content.version_name(owner.name, attempt)
            key = ConfigKey(content.kind, owner.namespace, name)
            incarnation = self._view.incarnation(key)
            if (
                fresh
                and incarnation is not None
                and name == resource.status.current_version
                and (incarnation.owner, incarnation.digest) == (owner.name, digest)
            ):
                return name
            stored = await self._create_or_read(key, owner, resource.spec, content)
            if stored is None:
                return name
            # A version whose annotation somebody took away is still ours: the status remembers that we made it.
            theirs = stored.metadata.annotations.get(NAME_ANNOTATION)
            lost = theirs is None and name in {version.name for version in resource.status.versions}
            if not stored.immutable or not (theirs == str(owner) or lost):
                raise NameConflict(
                    f"ConfigMap {name} exists and is no version of this VersionedConfig: "
                    "rename or delete it, or change the content"
                )
            if (stored.data, stored.binary_data) == (content.data, content.binary_data):
                await self._mend_metadata(key, owner, digest, resource.spec, stored)
                return name
        raise NameConflict(f"{MAX_ATTEMPTS} names for this content are taken by versions with other content")

    async def _create_or_read(
        self, key: ConfigKey, owner: ObjectKey, spec: Spec, content: Content
    ) -> _Stored | None:
        """Create the version with the finalizer in the POST; the object that is there already, if one is."""
        path = api_path(key)
        if self._view.incarnation(key) is None:
            body = {
                "apiVersion": "v1",
                "kind": content.kind,
                "metadata": {
                    "name": key.name,
                    "finalizers": [IN_USE_FINALIZER],
                    **version_metadata(owner, content.digest(), spec.metadata),
                },
                "immutable": True,
                "data": dict(content.data),
                "binaryData": dict(content.binary_data),
            }
            try:
                await self._api.create(path.rpartition("/")[0], body, type=msgspec.Raw)
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return None
        return await self._api.get(path, type=_Stored)

    async def _mend_metadata(
        self, key: ConfigKey, owner: ObjectKey, digest: str, spec: Spec, stored: _Stored
    ) -> None:
        if stored.metadata.annotations.get(IGNORE_ANNOTATION) == "true":
            return
        patch = metadata_patch(
            owner,
            digest,
            spec.metadata,
            labels=stored.metadata.labels,
            annotations=stored.metadata.annotations,
        )
        if patch:
            body = {"metadata": {"uid": stored.metadata.uid, **patch}}
            await self._api.patch(api_path(key), body, kind="merge", type=msgspec.Raw)

    async def _progress(self, owner: ObjectKey, known: _Known, *, promoted: bool) -> bool:
        """Assess targets, tell, and let the next ones move. A promotion is told before anything moves; False where
        that failed."""
        versions = self._view.versions(owner)
        current = known.status.current_version
        aim = Aim(
            kind=known.kind,
            name=owner.name,
            current=current,
            versions=frozenset(
                {
                    current,
                    *(version.key.name for version in versions),
                    # Those that somebody deleted or took from us are still what a target is to be moved away from.
                    *(version.name for version in known.status.versions),
                    *(target.version for target in known.status.targets if target.version),
                }
            ),
            max_concurrent=known.rollout.max_concurrent,
            progress_deadline_seconds=known.rollout.progress_deadline_seconds,
            paused=known.rollout.paused,
        )
        workloads = self._rollouts.targets(aim, owner.namespace)
        steps = plan(
            aim,
            workloads,
            revisions=self._revisions(ConfigKey(known.kind, owner.namespace, current)),
            previous={target.name: target for target in known.status.targets},
            promoted=promoted,
            in_flight={w.name for w in workloads if self._rollouts.in_flight(w.namespace, w.name)},
            logical_exists=self._view.incarnation(ConfigKey(known.kind, *owner)) is not None,
            refusals={w.name: self._rollouts.refusal(w.namespace, w.name) for w in workloads},
            now=_now(),
        )
        kept = history(
            versions,
            current=current,
            in_use={v.key.name for v in versions if self._view.used(v)},
            limit=known.history_limit,
        )
        status = self._told(known, rolling(current, steps, known.rollout.paused), steps)
        status = msgspec.structs.replace(status, versions=list(kept.kept))
        told = await self._write_status(owner, known, status, now=promoted)
        if promoted and not told:
            return False
        self._rollouts.publish(owner, aim, steps.granted, settled=owner not in self._dirty)
        if any(target.state == "Updating" for target in steps.targets):
            self.queue.add_after(owner, known.rollout.progress_deadline_seconds + 1.0)
        if kept.collectable:
            await self._collect(owner.namespace, kept.collectable)
        return True

    def _revisions(self, key: ConfigKey) -> list[Revision]:
        found = (self._view.replica_sets.objects.get(r) for r in self._view.revisions.referrers(key))
        return [revision for revision in found if revision is not None]

    def _told(self, known: _Known, verdict: Verdict, steps: Plan | None = None) -> Status:
        """The status that says this."""
        status = known.status
        if steps is not None:
            status = msgspec.structs.replace(
                status,
                targets=list(steps.targets),
                targets_summary=f"{steps.updated}/{len(steps.targets)}",
            )
        return msgspec.structs.replace(
            status,
            observed_generation=known.generation,
            conditions=conditions(
                verdict,
                known.status.conditions,
                generation=known.generation,
                now=timestamp(_now()),
            ),
        )

    async def _write_status(
        self, owner: ObjectKey, known: _Known, status: Status, *, now: bool = False
    ) -> bool:
        """Write it where it differs, and not too often; whether it stands in the API server now."""
        if status == known.status and not now:
            return True
        wait = known.written + STATUS_SECONDS - self._clock()
        if wait > 0 and not now:
            self.queue.add_after(owner, wait)
            return False
        body = {"metadata": {"uid": known.uid}, "status": msgspec.to_builtins(status)}
        try:
            await self._api.patch(
                path_of(PATH, *owner), body, kind="merge", type=msgspec.Raw, subresource="status"
            )
        except ApiError as error:
            if error.status in (404, 409):
                self.changed(owner)
                return False
            raise
        known.written = self._clock()
        known.status = status
        return True

    async def _forget(self, owner: ObjectKey) -> None:
        """The VersionedConfig is gone: its versions stay while something uses them, then go."""
        self._known.pop(owner, None)
        self._settling.pop(owner, None)
        self._rollouts.withdraw(owner)
        if self._settings.excluded(owner.namespace):
            return
        versions = self._view.versions(owner)
        in_use = {version.key.name for version in versions if self._view.used(version)}
        left = history(versions, current="", in_use=in_use, limit=0)
        if left.collectable:
            await self._collect(owner.namespace, left.collectable)

    async def _collect(self, namespace: str, versions: tuple[Incarnation, ...]) -> None:
        """Delete what a live look confirms to be unused. Preconditions make a lost race harmless."""
        held = await self._live.held(namespace, list(versions))
        used = await self._template_names(namespace)
        refused: ApiError | None = None
        for version in versions:
            key = version.key
            if key in held or (key.kind, key.name) in used:
                continue
            try:
                await self._api.delete(
                    api_path(key), uid=version.uid, resource_version=version.resource_version
                )
            except ApiError as error:
                if error.status not in (404, 409):
                    refused = error
            else:
                self._metrics.versions_collected.inc()
                logger.info("collected", extra={"config": str(key)})
        if refused is not None:
            # Somebody's policy may want to keep one of them; the others are gone all the same.
            raise refused

    async def _template_names(self, namespace: str) -> set[tuple[str, str]]:
        """Every name that a Deployment or a ReplicaSet of the namespace refers to, read live."""
        names: set[tuple[str, str]] = set()
        for plural in ("deployments", "replicasets"):
            path = path_of(f"/apis/apps/v1/{plural}", namespace)
            async for page in self._api.list_pages(path, item=WorkloadItem):
                for item in page.items:
                    names.update(referenced_names(item.spec.template.spec))
        return names


def _now() -> datetime:
    return datetime.now(UTC)
