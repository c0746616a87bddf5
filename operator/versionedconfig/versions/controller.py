"""Carries VersionedConfigs out: content becomes a version, a version becomes current, targets are granted their move, the
status tells, a version that fails is taken back, and versions that nothing needs are collected.

The content is read live when a VersionedConfig or a source changed, and dropped again. What is kept in memory of each is
in `_Known`. Order of writes, so that a crash anywhere ends the same: the version exists, then the status says that it is
current (with each target's revision at that moment), then templates move.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.kube.queue import WorkQueue
from versionedconfig.kube.writes import Regarding, upsert_event
from versionedconfig.live import LiveLists
from versionedconfig.model import (
    API_VERSION,
    GROUP,
    ConfigKey,
    Incarnation,
    ObjectKey,
    WorkloadKey,
    owner_by_name,
    timestamp,
)
from versionedconfig.observability.metrics import Metrics
from versionedconfig.projection import PodKept
from versionedconfig.references.demands import missing
from versionedconfig.resource import KIND, PATH, PLURAL, Spec, Status, TargetStatus, Users, VersionedConfig
from versionedconfig.rollout.controller import RolloutController
from versionedconfig.rollout.plan import Aim, Failure, Plan, Scene, plan
from versionedconfig.settings import Settings
from versionedconfig.versions import ledger
from versionedconfig.versions.alias import AliasRefused, keep_alias
from versionedconfig.versions.choose import (
    Cause,
    Choice,
    NotKept,
    choose,
    failed,
    promoted,
    rolling_back,
    succeeded,
    undoes_failure,
    way_back,
)
from versionedconfig.versions.conditions import Verdict, beside, conditions, refused, rolling, settling
from versionedconfig.versions.content import Content
from versionedconfig.versions.history import history
from versionedconfig.versions.maps import Meaning, VersionMaps
from versionedconfig.versions.reading import BadContent, Keys, read_content, read_keys, source_keys
from versionedconfig.versions.settle import Settling, seconds_to_wait
from versionedconfig.versions.store import NameConflict, VersionStore
from versionedconfig.view import View
from versionedconfig.workload import JOB, REPLICA_SET, Workload

logger = logging.getLogger(__name__)

STATUS_SECONDS: Final = 1.0
"""At most one status write in this time for a VersionedConfig, the promotion of a version apart."""

COUNT_SECONDS: Final = 2.0
"""How late the number of pods may be that a version has."""

MOST_USERS: Final = 20
"""Names that are told of a version's users."""


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
    spec: Spec
    """Without content."""
    status: Status
    """As it was written last, or is about to be."""
    told: Status
    """As it was written last."""
    taken_in: float
    """When it was read, on the controller's clock."""
    sources: tuple[ConfigKey, ...]
    targets: dict[WorkloadKey, TargetStatus] = field(default_factory=dict)
    """As they were assessed last; told a little later."""
    latest: str = ""
    """Version of the content, where that is not told yet."""
    settling: Verdict | None = None
    """There is other content, which waits for further changes."""
    refusal: Verdict | None = None
    stays: str = ""
    """Why a version that has failed is not taken back."""
    alias: tuple[str, str] = ("", "")
    """The version that the alias was seen to be in step with, and its resourceVersion then."""
    alias_refusal: Verdict | None = None
    missing: Keys | None = None
    """The keys that it is refused with, since targets ask for others."""
    halted: bool = False
    """Not even what is current is looked after."""
    untold: str = ""
    """Why the status cannot be written."""
    written: float = float("-inf")


class Told(NamedTuple):
    """What there is to say of a VersionedConfig."""

    owner: ObjectKey
    spec: Spec
    """Without content."""
    status: Status
    targets: Collection[TargetStatus]
    """As they were assessed last."""
    untold: str = ""
    """Why its status does not say what is wrong."""


class _Made(NamedTuple):
    """The version of a content."""

    version: str
    keys: Keys | None
    """None where it was not made now: the version is the one before, if that is still there."""


class VersionsController:
    """One for the process. `enqueue` is called for every VersionedConfig that changed or whose versions, targets or
    users did."""

    def __init__(
        self,
        api: Api,
        view: View,
        live: LiveLists,
        rollouts: RolloutController,
        maps: VersionMaps,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._view = view
        self._store = VersionStore(api, view, live, metrics)
        self._rollouts = rollouts
        self._maps = maps
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._known: dict[ObjectKey, _Known] = {}
        self._dirty: set[ObjectKey] = set()
        self._settling: dict[ObjectKey, Settling] = {}
        self._followers: defaultdict[ConfigKey, set[ObjectKey]] = defaultdict(set)
        """Who takes content from an object."""
        self.queue: WorkQueue[ObjectKey] = WorkQueue(name="versions")

    async def run(self) -> None:
        """Work for ever. Call when the view is synced."""
        try:
            found = [
                ObjectKey(item.metadata.namespace, item.metadata.name)
                async for page in self._api.list_pages(PATH, item=_Listed)
                for item in page.items
            ]
        except ApiError as error:
            if error.status != 404:
                raise
            missing = f"the CRD {PLURAL}.{GROUP} is not there: apply crds/ or manifests/base first"
            raise ApiError(404, error.reason, missing) from None
        self._maps.expect(found)
        for owner in found:
            self.changed(owner)
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

    def source_changed(self, key: ConfigKey) -> None:
        """An object that content may be taken from, or that may be an alias, came, went or changed."""
        for owner in self._followers.get(key, ()):
            self.changed(owner)
        owner = ObjectKey(key.namespace, key.name)
        known = self._known.get(owner)
        if known is not None and known.spec.alias.enabled:
            self.queue.add(owner)

    def counted(self, key: ConfigKey) -> None:
        """The number of pods that refer to the key changed: told a little later, together with further ones."""
        if (owner := ObjectKey(key.namespace, owner_by_name(key.name))) in self._known:
            self.queue.add_after(owner, COUNT_SECONDS)

    def told(self) -> Iterator[Told]:
        """Every VersionedConfig that is known, as it stands."""
        for owner, known in self._known.items():
            yield Told(owner, known.spec, known.status, known.targets.values(), known.untold)

    async def reconcile(self, owner: ObjectKey) -> None:
        """Bring one VersionedConfig a step further; safe to repeat at any time."""
        known = self._known.get(owner)
        met = False
        if known is not None and known.missing is not None:
            unmet = self._unmet(owner, known, known.missing)
            met = not unmet
            if unmet:
                known.refusal = refused("KeyMissing", unmet)
        if (
            known is None
            or owner in self._dirty
            or self._current_missing(owner, known)
            or met
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
        if known.halted or not known.status.current_version:
            if (verdict := known.refusal or known.settling) is not None:
                await self._write_status(owner, known, self._told(known, verdict))
        else:
            await self._progress(owner, known, promoted=False)
        self.queue.add_after(owner, self._settings.resync_seconds)

    def _current_missing(self, owner: ObjectKey, known: _Known) -> bool:
        """It can be made again if it is the content's, and something else has to be found if not."""
        status = known.status
        if known.refusal is not None or not status.current_version:
            return False
        incarnation = self._view.incarnation(
            ConfigKey(known.spec.kind, owner.namespace, status.current_version)
        )
        return incarnation is None or incarnation.owner != owner.name

    async def _take_in(self, owner: ObjectKey) -> _Known | None:
        """Read the VersionedConfig and see to its versions. None: gone, or nothing to do yet."""
        try:
            resource = await self._api.get(path_of(PATH, *owner), type=VersionedConfig)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._forget(owner)
            return None
        if resource.metadata.deletion_timestamp is not None or self._view.terminating(owner.namespace):
            # On its way out: whatever holds it, no new version is made (the API server refuses it anyway).
            self._drop(owner)
            return None
        known = self._know(owner, resource)
        if self._settings.excluded(owner.namespace):
            known.halted = True
            self._rollouts.withdraw(owner)
            where = f"the operator makes nothing in namespace {owner.namespace}: use another one"
            return self._refuse(owner, known, refused("NamespaceExcluded", [where]))
        await self._store.set_policy(self._view.versions(owner), resource.spec.deletion_policy)
        made = await self._make(owner, resource, known)
        if made is None:
            return known
        if known.refusal is not None and not resource.spec.pin:
            return known  # a pin asks for no content
        kept = {version.key.name for version in self._versions(owner, known)}
        try:
            choice = choose(
                known.status,
                latest=made.version,
                pinned=f"{owner.name}-{resource.spec.pin}" if resource.spec.pin else "",
                kept=kept if made.keys is None else kept | {made.version},
                spec_changed=not known.sources or known.generation != known.status.latest_generation,
            )
        except NotKept as error:
            self._try_again(owner)
            reason = "PinNotKept" if resource.spec.pin else "VersionGone"
            return self._refuse(owner, known, refused(reason, [str(error)]))
        # Not before: what is refused has settled, and would wait anew each time that it is tried again, in rounds that
        # look like successes to the queue.
        if known.refusal is None:
            self._settling.pop(owner, None)
        if choice is None:
            known.latest = made.version
            return known
        keys = made.keys if choice.version == made.version else None
        if keys is None:
            keys = await read_keys(self._api, ConfigKey(resource.spec.kind, owner.namespace, choice.version))
        if unmet := self._unmet(owner, known, keys):
            known.missing = keys
            return self._refuse(owner, known, refused("KeyMissing", unmet))
        if not await self._promote(owner, known, choice, latest=made.version, generation=known.generation):
            return None
        return known

    async def _make(self, owner: ObjectKey, resource: VersionedConfig, known: _Known) -> _Made | None:
        """The version of the content as it is. None: it waits for further changes. Where it is refused, the latest one
        that there was."""
        try:
            content = await read_content(self._api, owner, resource.spec)
            wait = self._seconds_to_settle(owner, resource, content)
            if wait > 0:
                self._dirty.add(owner)
                known.settling = settling(content.version_name(owner.name))
                self.queue.add_after(owner, wait)
                return None
            keys = Keys(frozenset(content.data), frozenset(content.binary_data))
            new = content.version_name(owner.name) != known.status.latest_version
            if new and not resource.spec.pin and (unmet := self._unmet(owner, known, keys)):
                known.missing = keys
                self._refuse(owner, known, refused("KeyMissing", unmet))
                return _Made(known.status.latest_version, None)
            seen = resource.status.observed_generation == resource.metadata.generation
            version = await self._store.materialise(owner, resource, content, seen=seen)
        except BadContent as bad:
            # What a source lacks may come; its event brings the key back.
            self._settling.pop(owner, None)
            self._refuse(owner, known, refused(bad.reason, bad.problems))
        except NameConflict as conflict:
            self._try_again(owner)
            self._refuse(owner, known, refused("NameConflict", [str(conflict)]))
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            # The API server will not have this version: quota, an admission policy, a label that is none.
            self._try_again(owner)
            self._refuse(owner, known, refused("VersionRefused", [error.message]))
        else:
            return _Made(version, keys)
        return _Made(known.status.latest_version, None)

    def _unmet(self, owner: ObjectKey, known: _Known, keys: Keys) -> list[str]:
        """What targets ask for and a content with these keys does not have: their new pods would not start."""
        aim = self._aim(owner, known, self._versions(owner, known))
        return [
            f"{workload.kind} {workload.name}: {sentence}"
            for workload in sorted(self._targets(owner, known, aim), key=lambda w: w.key)
            for sentence in _missing(aim, workload, keys)
        ]

    def _amiss(self, known: _Known, referrers: Collection[Workload]) -> str:
        """What is strange about the targets that it lists."""
        listed = known.spec.rollout.targets
        if not listed:
            return ""
        nobody = [
            f"{one.kind} {one.name}".strip() for one in listed if not any(one.matches(w) for w in referrers)
        ]
        apart = sorted(f"{w.kind} {w.name}" for w in referrers if not known.spec.rollout.means(w))
        found = []
        if nobody:
            found.append(f"rollout.targets lists what does not refer to it: {', '.join(nobody[:5])}")
        if apart:
            found.append(f"not listed and left alone: {', '.join(apart[:5])}")
        return "; ".join(found)

    async def _cannot_go_back(self, owner: ObjectKey, known: _Known, back: str) -> str:
        """What a target that would go back asks for and would not find there; empty where all find it."""
        kind, current = known.spec.kind, known.status.current_version
        aim = self._aim(owner, known, self._versions(owner, known))
        keys: dict[str, Keys] = {}
        for workload in self._targets(owner, known, aim):
            target = known.targets.get(workload.key)
            if target is None or target.version not in ("", current):
                continue
            there = target.previous or back
            if there not in keys:
                keys[there] = await read_keys(self._api, ConfigKey(kind, owner.namespace, there))
            if unmet := _missing(aim, workload, keys[there]):
                return f"{workload.kind} {workload.name} cannot go back to {there}: {unmet[0]}"
        return ""

    def _targets(self, owner: ObjectKey, known: _Known, aim: Aim) -> list[Workload]:
        found = self._rollouts.referrers(aim, owner.namespace)
        return [workload for workload in found if known.spec.rollout.means(workload)]

    def _know(self, owner: ObjectKey, resource: VersionedConfig) -> _Known:
        """Remember it, without its content."""
        before = self._known.get(owner)
        spec = resource.spec
        same = before is not None and before.uid == resource.metadata.uid
        known = _Known(
            uid=resource.metadata.uid,
            generation=resource.metadata.generation,
            spec=msgspec.structs.replace(spec, data={}, string_data={}, binary_data={}),
            status=resource.status,
            told=resource.status,
            taken_in=self._clock(),
            sources=source_keys(owner.namespace, spec),
            targets=before.targets
            if before is not None and same
            else {
                WorkloadKey(target.kind, owner.namespace, target.name): target
                for target in resource.status.targets
            },
            alias_refusal=before.alias_refusal if before is not None and spec.alias.enabled else None,
            written=before.written if before is not None else float("-inf"),
        )
        self._unfollow(owner)
        for key in known.sources:
            self._followers[key].add(owner)
        self._known[owner] = known
        return known

    def _drop(self, owner: ObjectKey) -> None:
        """Forget it."""
        self._unfollow(owner)
        self._known.pop(owner, None)
        self._settling.pop(owner, None)
        self._rollouts.withdraw(owner)
        self._maps.mean(owner, None)

    def _unfollow(self, owner: ObjectKey) -> None:
        known = self._known.get(owner)
        for key in known.sources if known is not None else ():
            self._followers[key].discard(owner)
            if not self._followers[key]:
                del self._followers[key]

    def _try_again(self, owner: ObjectKey) -> None:
        """For what may get better without the VersionedConfig changing."""
        self._dirty.add(owner)
        self.queue.add_backoff(owner)

    def _refuse(self, owner: ObjectKey, known: _Known, verdict: Verdict) -> _Known:
        """Its content makes no version; what is current stays, and is looked after."""
        known.refusal = verdict
        if not known.status.current_version:
            self._rollouts.withdraw(owner)
            self._maps.mean(owner, None)
        return known

    def _seconds_to_settle(self, owner: ObjectKey, resource: VersionedConfig, content: Content) -> float:
        digest = content.digest()
        latest = ConfigKey(content.kind, owner.namespace, resource.status.latest_version)
        incarnation = self._view.incarnation(latest)
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

    def _versions(self, owner: ObjectKey, known: _Known) -> list[Incarnation]:
        return [version for version in self._view.versions(owner) if version.key.kind == known.spec.kind]

    async def _promote(
        self, owner: ObjectKey, known: _Known, choice: Choice, *, latest: str, generation: int
    ) -> bool:
        """The version is current from now on; False where that could not be told."""
        known.status = msgspec.structs.replace(
            promoted(known.status, choice, latest=latest, now=timestamp(_now())),
            latest_generation=generation,
        )
        fields = {"versionedconfig": str(owner), "version": choice.version, "cause": str(choice.cause)}
        logger.info("promoted", extra=fields)
        return await self._progress(owner, known, promoted=True)

    async def _progress(self, owner: ObjectKey, known: _Known, *, promoted: bool) -> bool:
        """Assess targets, tell, and let the next ones move. A promotion is told before anything moves; False where
        that failed."""
        versions = self._versions(owner, known)
        aim = self._aim(owner, known, versions)
        referrers = self._rollouts.referrers(aim, owner.namespace)
        workloads = [workload for workload in referrers if known.spec.rollout.means(workload)]
        sick = self._sick(owner, aim, workloads)
        # The revisions of a whole namespace are looked through only for who was not told of before.
        new = promoted or any(workload.key not in known.targets for workload in workloads)
        steps = plan(
            aim,
            workloads,
            scene=self._scene(owner, aim, workloads, sick, revisions=new),
            previous=known.targets,
            promoted=promoted,
            now=_now(),
        )
        known.targets = {WorkloadKey(t.kind, owner.namespace, t.name): t for t in steps.targets}
        if (
            steps.failure is not None
            and (told := await self._roll_back(owner, known, steps.failure)) is not None
        ):
            return told
        if steps.failure is None:
            known.stays = ""
        status = known.status
        if known.latest:
            status = msgspec.structs.replace(
                status, latest_version=known.latest, latest_generation=known.generation
            )
        entry = status.version(status.current_version)
        if steps.succeeded and not entry.result:
            status = succeeded(status)
        needed = {version.key.name for version in versions if self._view.used(version)}
        needed |= {status.current_version, status.latest_version, status.stable_version}
        needed |= {f"{owner.name}-{known.spec.pin}"} if known.spec.pin else set()
        needed |= {target.wanted for target in steps.targets}
        if not steps.finished:
            needed |= {target.previous for target in steps.targets}
        # Others take their content from it.
        needed |= {version.key.name for version in versions if version.key in self._followers}
        kept = history(
            versions,
            status=status,
            needed=needed,
            users=self._users,
            limit=known.spec.history_limit,
            unused_seconds=self._settings.unused_seconds,
            now=_now(),
        )
        status = msgspec.structs.replace(status, versions=list(kept.kept))
        verdict = beside(
            rolling(
                status,
                steps,
                paused=known.spec.rollout.paused,
                pinned=bool(known.spec.pin),
                stays=known.stays,
                amiss=self._amiss(known, referrers),
            ),
            known.refusal or known.alias_refusal,
            known.settling,
        )
        told = await self._write_status(owner, known, self._told(known, verdict, status, steps), now=promoted)
        if promoted and not told:
            return False
        self._maps.mean(owner, self._meaning(known, status))
        if self._settings.replace_stuck_pods:
            await self._replace(sick[key][0] for key in steps.stuck)
        settled = owner not in self._dirty or known.refusal is not None
        self._rollouts.publish(owner, aim, list(known.targets), steps, settled=settled)
        for seconds in (steps.look_again, kept.wait_seconds):
            if seconds is not None:
                self.queue.add_after(owner, seconds)
        await self._store.mark(kept.mark, _now())
        await self._store.mark(kept.unmark, None)
        if kept.collectable:
            await self._store.collect(owner.namespace, kept.collectable)
        # An alias that is not asked for, and what is of a VersionedConfig of that name that was of the other kind. By kind, since what the mirror shows only now may
        # be the current version.
        others = [
            one
            for one in self._view.made(owner)
            if one.key.kind != known.spec.kind or (one.alias and not known.spec.alias.enabled)
        ]
        await self._leave(owner, others)
        if known.spec.alias.enabled:
            await self._keep_alias(owner, known, status.stable_version)
        return True

    async def _keep_alias(self, owner: ObjectKey, known: _Known, version: str) -> None:
        """Where the mirror shows it as it was left, nothing is asked of the API server."""
        there = self._view.incarnation(ConfigKey(known.spec.kind, *owner))
        if there is not None and known.alias == (version, there.resource_version):
            return
        refusal = None
        try:
            known.alias = (version, await keep_alias(self._api, owner, known.spec, version))
        except AliasRefused as error:
            refusal = refused("AliasRefused", [str(error)])
            self.queue.add_backoff(owner)
        except ApiError as error:
            # The version went, or somebody wrote to the alias at the same time: the mirror is about to tell.
            if error.status not in (404, 409):
                raise
            return
        if refusal != known.alias_refusal:
            known.alias_refusal = refusal
            self.queue.add(owner)

    def _meaning(self, known: _Known, status: Status) -> Meaning:
        """What its name means to a workload that is written: to the targets that it lists, where it lists some."""
        listed = known.spec.rollout.targets
        only = {f"{target.kind}/{target.name}" for target in listed if target.name}
        only |= {f"{key.kind}/{key.name}" for key in known.targets}
        return Meaning(known.spec.kind, status.stable_version, tuple(sorted(only)) if listed else None)

    async def _roll_back(self, owner: ObjectKey, known: _Known, failure: Failure) -> bool | None:
        """Take the current version back, in one step; None where there is nothing to go back to."""
        kept = {version.key.name for version in self._versions(owner, known) if not version.deleting}
        known.targets = {
            key: msgspec.structs.replace(target, previous=target.previous if target.previous in kept else "")
            for key, target in known.targets.items()
        }
        status = msgspec.structs.replace(known.status, targets=list(known.targets.values()))
        back = way_back(status, kept)
        if not back:
            return None
        known.stays = known.stays or await self._cannot_go_back(owner, known, back)
        if known.stays:
            return None
        # What was granted a moment ago must not move any more.
        self._rollouts.unsettle(owner)
        known.status = failed(known.status, f"{failure.target}: {failure.message}")
        logger.warning(
            "version failed",
            extra={
                "versionedconfig": str(owner),
                "version": status.current_version,
                "target": failure.target,
            },
        )
        try:
            choice = Choice(back, Cause.ROLLBACK)
            return await self._promote(
                owner,
                known,
                choice,
                latest=status.latest_version,
                generation=status.latest_generation,
            )
        except BaseException:
            # What is known is ahead of what was written.
            self._dirty.add(owner)
            raise

    def _sick(
        self, owner: ObjectKey, aim: Aim, workloads: Iterable[Workload]
    ) -> dict[WorkloadKey, tuple[PodKept, str]]:
        """Of each workload a pod that does not start and does not refer to the current version, and why."""
        view = self._view
        current, logical = (ConfigKey(aim.kind, owner.namespace, name) for name in (aim.current, aim.name))
        by_uid = {workload.uid: workload.key for workload in workloads}
        found: dict[WorkloadKey, tuple[PodKept, str]] = {}
        for uid, pod in view.troubled(owner.namespace):
            if uid in by_uid and pod.trouble and current not in pod.keys:
                found.setdefault(by_uid[uid], (pod, f"pod {pod.name}: {pod.trouble}"))
        if view.incarnation(logical) is None:
            # Of a volume that is missing the kubelet says ContainerCreating, and nothing else.
            for pod in view.pods_of(logical):
                if pod.owner in by_uid:
                    found.setdefault(
                        by_uid[pod.owner], (pod, f"pod {pod.name}: there is no {aim.kind} {aim.name}")
                    )
        return found

    async def _replace(self, pods: Iterable[PodKept]) -> None:
        """Delete pods that StatefulSets wait for in vain: they are made anew from the template."""
        for pod in pods:
            logger.warning("stuck pod is replaced", extra={"pod": f"{pod.namespace}/{pod.name}"})
            try:
                await self._api.delete(path_of("/api/v1/pods", pod.namespace, pod.name), uid=pod.uid)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

    def _aim(self, owner: ObjectKey, known: _Known, versions: Iterable[Incarnation]) -> Aim:
        status, rollout = known.status, known.spec.rollout
        lost = self._view.lost(owner, known.spec.kind) - {status.current_version}
        return Aim(
            kind=known.spec.kind,
            name=owner.name,
            current=status.current_version,
            versions=frozenset(
                {
                    status.current_version,
                    *lost,
                    *(version.key.name for version in versions),
                    # Those that somebody deleted or took from us are still what a target is to be moved away from.
                    *(version.name for version in status.versions),
                    *(target.version for target in known.targets.values() if target.version),
                }
            ),
            lost=lost,
            max_concurrent=rollout.max_concurrent,
            progress_deadline_seconds=rollout.progress_deadline_seconds,
            min_ready_seconds=rollout.min_ready_seconds,
            paused=rollout.paused,
            roll_back=rollout.on_failure == "Rollback" and undoes_failure(status),
            rolling_back=rolling_back(status),
        )

    def _scene(
        self,
        owner: ObjectKey,
        aim: Aim,
        workloads: list[Workload],
        sick: Mapping[WorkloadKey, tuple[PodKept, str]],
        *,
        revisions: bool,
    ) -> Scene:
        view, rollouts = self._view, self._rollouts
        current = ConfigKey(aim.kind, owner.namespace, aim.current)
        by_uid = {workload.uid: workload.key for workload in workloads}
        troubles: dict[WorkloadKey, str] = {}
        restarted: dict[WorkloadKey, str] = {}
        for uid, pod in view.troubled(owner.namespace):
            key = by_uid.get(uid)
            if key is None or current not in pod.keys:
                continue
            if pod.trouble:
                troubles.setdefault(key, f"pod {pod.name}: {pod.trouble}")
            else:
                restarted[key] = max(pod.restarted, restarted.get(key, ""))
        others = [
            ConfigKey(aim.kind, owner.namespace, name)
            for name in (aim.name, *aim.versions)
            if name != aim.current
        ]
        sets = {workload.uid: workload.key for workload in workloads if workload.kind == REPLICA_SET}
        followers = (view.revision(key) for key in view.revisions.referrers(current) if key.kind != JOB)
        refusals = {workload.key: rollouts.refusal(workload.key) for workload in workloads}
        return Scene(
            revisions=[revision for revision in followers if revision is not None],
            latest=view.latest_revisions(owner.namespace) if revisions else {},
            in_flight={workload.key for workload in workloads if rollouts.in_flight(workload.key)},
            refusals={key: refusal for key, refusal in refusals.items() if refusal},
            troubles=troubles,
            sick={key: why for key, (_, why) in sick.items()},
            restarted=restarted,
            behind={sets[pod.owner] for key in others for pod in view.pods_of(key) if pod.owner in sets}
            if sets
            else (),
            logical_exists=view.incarnation(ConfigKey(aim.kind, *owner)) is not None,
        )

    def _users(self, version: Incarnation) -> Users:
        """Who refers to it, as it is told."""
        view, key = self._view, version.key
        revisions = view.revisions.referrers(key)
        named = sorted(
            f"{one.kind}/{one.name}"
            for one in (*view.templates.referrers(key), *(one for one in revisions if one.kind == JOB))
        )
        bare = (f"Pod/{pod.name}" for pod in view.pods_of(key) if not pod.owner)
        return Users(
            pods=len(view.holders.pods(key)),
            revisions=sum(one.kind != JOB for one in revisions),
            workloads=list(islice((*named, *sorted(bare)), MOST_USERS)),
        )

    def _told(
        self, known: _Known, verdict: Verdict, status: Status | None = None, steps: Plan | None = None
    ) -> Status:
        """The status that says this."""
        status = status or known.status
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
            if error.status == 413 or "too large" in error.message:
                # Neither it nor what waits for it would ever come further.
                known.halted, known.untold = True, "TooLarge"
                self._rollouts.withdraw(owner)
                message = f"it leaves no room for its status: {error.message}; split the content, or use from"
                await self._event(owner, known, "TooLarge", message, wrong=True)
                return False
            raise
        known.written = self._clock()
        self._count(known.told, status)
        before, known.status, known.told = known.status, status, status
        await self._tell(owner, known, before)
        return True

    def _count(self, before: Status, after: Status) -> None:
        """What the write says that happened."""
        if cause := ledger.promotion(before, after):
            self._metrics.promoted(cause)
        for result, seconds in ledger.ended(before, after, _now()):
            self._metrics.rollout_ended(result, seconds)

    async def _tell(self, owner: ObjectKey, known: _Known, before: Status) -> None:
        """An Event where the state became another one."""
        (ready,) = [one for one in known.status.conditions if one.type == "Ready"]
        if any((one.type, one.reason) == ("Ready", ready.reason) for one in before.conditions):
            return
        wrong = any(
            one.status == "True" for one in known.status.conditions if one.type in ("Stalled", "Degraded")
        )
        await self._event(owner, known, ready.reason, ready.message, wrong=wrong)

    async def _event(
        self, owner: ObjectKey, known: _Known, reason: str, message: str, *, wrong: bool
    ) -> None:
        try:
            await upsert_event(
                self._api,
                Regarding(f"{GROUP}/{API_VERSION}", KIND, *owner, known.uid),
                reason=reason,
                message=message,
                type="Warning" if wrong else "Normal",
                now=_now(),
            )
        except ApiError as error:
            logger.warning("Event refused", extra={"versionedconfig": str(owner), "status": error.status})

    async def _forget(self, owner: ObjectKey) -> None:
        """The VersionedConfig is gone: its versions stay while something uses them, then go."""
        self._drop(owner)
        if self._settings.excluded(owner.namespace):
            return
        await self._leave(owner, self._view.made(owner))

    async def _leave(self, owner: ObjectKey, versions: list[Incarnation]) -> None:
        """Versions, and aliases, that no VersionedConfig has any more."""
        if not versions:
            return
        # With deletionPolicy Delete what an old revision could go back to is no use, and nothing is waited for.
        at_once = any(version.delete_with_owner for version in versions)
        used = self._view.in_use if at_once else self._view.used
        left = history(
            versions,
            status=Status(),
            needed={v.key.name for v in versions if used(v) or v.key in self._followers},
            users=lambda _: Users(),
            limit=0,
            unused_seconds=0.0 if at_once else self._settings.unused_seconds,
            now=_now(),
        )
        await self._store.mark(left.unmark, None)
        if not at_once:
            await self._store.mark(left.mark, _now())
        if left.collectable:
            await self._store.collect(owner.namespace, left.collectable, history_counts=not at_once)
        if left.wait_seconds is not None:
            self.queue.add_after(owner, left.wait_seconds)


def _missing(aim: Aim, workload: Workload, keys: Keys) -> tuple[str, ...]:
    """What a workload asks of this VersionedConfig, and a content with these keys does not have."""
    names = aim.names(workload)
    return missing(workload.demands, names, aim.kind, keys.data, binary_keys=keys.binary_data)


def _now() -> datetime:
    return datetime.now(UTC)
