"""Carries rollouts out: one template patch per workload, however many of its VersionedConfigs changed.

Each VersionedConfig publishes what it wants (its Aim) and which workloads may move now. A workload waits while one of
its VersionedConfigs is still settling, so that changes made together become one patch and one ReplicaSet.
"""

import logging
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.kube.queue import WorkQueue
from versionedconfig.model import ConfigKey, ObjectKey, WorkloadKey, owner_by_name
from versionedconfig.observability.metrics import Metrics
from versionedconfig.rollout.plan import Aim, Plan
from versionedconfig.rollout.rewrite import rewrite
from versionedconfig.view import View
from versionedconfig.workload import Workload

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""So many refusals in a row are no race any more."""

UNKNOWN = sys.maxsize
"""The generation that a patch gives which is not answered yet."""


class _PatchedMetadata(msgspec.Struct, frozen=True):
    uid: str
    generation: int


class _Patched(msgspec.Struct, frozen=True):
    metadata: _PatchedMetadata


@dataclass(frozen=True, slots=True)
class _Published:
    aim: Aim
    targets: frozenset[WorkloadKey]
    steps: Plan


class RolloutController:
    """One for the process."""

    def __init__(self, api: Api, view: View, metrics: Metrics) -> None:
        self._api = api
        self._view = view
        self._metrics = metrics
        self._published: dict[ObjectKey, _Published] = {}
        self._unsettled: set[ObjectKey] = set()
        self._in_flight: dict[WorkloadKey, tuple[str, int]] = {}
        self._refusals: dict[WorkloadKey, tuple[int, str]] = {}
        self.refused: Callable[[ObjectKey], None] = lambda owner: None
        """Told the VersionedConfig whose target the API server does not let change."""
        self.queue: WorkQueue[WorkloadKey] = WorkQueue(name="rollout")

    async def run(self) -> None:
        """Work for ever."""
        await self.queue.run(self.reconcile, concurrency=20)

    def unsettle(self, owner: ObjectKey) -> None:
        """What this VersionedConfig wants is about to change: its workloads wait."""
        self._unsettled.add(owner)

    def publish(
        self, owner: ObjectKey, aim: Aim, targets: Collection[WorkloadKey], steps: Plan, *, settled: bool
    ) -> None:
        """This is what it wants now, and who may move to which version; not `settled` where it changed again meanwhile."""
        released = settled and owner in self._unsettled
        if settled:
            self._unsettled.discard(owner)
        before = self._published.get(owner)
        self._published[owner] = _Published(aim, frozenset(targets), steps)
        # Whoever waited for this one may have been granted by another one before.
        free = before.steps.waiting - steps.waiting if before is not None else frozenset()
        for key in targets if released else {*steps.granted, *free}:
            # What was refused waits for its back-off: a refusal is told, and telling comes back here.
            if released or key not in self._refusals:
                self.queue.add(key)

    def withdraw(self, owner: ObjectKey) -> None:
        """It wants nothing: it is gone, or was refused. Its workloads stay as they are."""
        published = self._published.pop(owner, None)
        self._unsettled.discard(owner)
        if published is not None:
            for key in published.targets:
                self.queue.add(key)

    def referrers(self, aim: Aim, namespace: str) -> list[Workload]:
        """Workloads whose template refers to the logical name or one of the versions."""
        keys: set[WorkloadKey] = set()
        for name in (aim.name, *aim.versions):
            keys.update(self._view.templates.referrers(ConfigKey(aim.kind, namespace, name)))
        found = (self._view.workload(key) for key in keys)
        return [workload for workload in found if workload is not None]

    def in_flight(self, key: WorkloadKey) -> bool:
        """A patch of ours is not answered yet, or the mirror does not show what it did."""
        workload = self._view.workload(key)
        uid, generation = self._in_flight.get(key, ("", 0))
        if workload is None or workload.uid != uid or workload.generation >= generation:
            self._in_flight.pop(key, None)
            return False
        return True

    def refusal(self, key: WorkloadKey) -> str:
        """Why the API server keeps refusing the workload's patch, in its words; empty where it does not."""
        attempts, message = self._refusals.get(key, (0, ""))
        return message if attempts >= ATTEMPTS else ""

    async def reconcile(self, key: WorkloadKey) -> None:
        """Rewrite the workload's template where it may move now."""
        workload = self._view.workload(key)
        if workload is None or self.in_flight(key):
            self._refusals.pop(key, None)
            return
        owners = set(self._owners(workload))
        published = [one for owner in owners if (one := self._published.get(owner)) is not None]
        back = any(one.aim.rolling_back and key in one.steps.granted for one in published)
        urgent = back or any(key in one.steps.urgent for one in published)
        unsettled = bool(owners & self._unsettled) and not back
        if unsettled or (not urgent and any(key in one.steps.waiting for one in published)):
            # One patch for all of them: it comes when the last one is ready for it.
            return
        names: dict[tuple[str, str], str] = {}
        for one in published:
            if (version := one.steps.granted.get(key)) is not None:
                names.update({(one.aim.kind, name): version for name in one.aim.names(workload)})
        operations = rewrite(workload.references, names, workload.uid)
        if not operations:
            self._refusals.pop(key, None)
            return
        path = path_of(self._view.collection(key.kind), key.namespace, key.name)
        self._in_flight[key] = (workload.uid, UNKNOWN)
        try:
            patched = await self._api.patch(path, operations, kind="json", type=_Patched)
        except BaseException as error:
            del self._in_flight[key]
            if not isinstance(error, ApiError):
                raise
            if error.status == 404:
                return
            if error.status not in (400, 403, 409, 422):
                raise
            # Mostly somebody changed the template first, and its event brings the key back. But an admission policy
            # or a quota may say no for good, with the same codes.
            attempts, message = self._refusals.get(key, (0, ""))
            attempts += 1
            self._refusals[key] = attempts, error.message
            logger.info(
                "patch refused", extra={"workload": str(key), "status": error.status, "attempt": attempts}
            )
            self.queue.add_backoff(key)
            if attempts == ATTEMPTS or (attempts > ATTEMPTS and message != error.message):
                for owner in owners:
                    self.refused(owner)
            return
        self._refusals.pop(key, None)
        self.queue.forget(key)
        self._in_flight[key] = (patched.metadata.uid, patched.metadata.generation)
        self._metrics.templates_rewritten.inc()
        logger.info("moved", extra={"workload": str(key), "to": sorted(set(names.values()))})

    def _owners(self, workload: Workload) -> Iterator[ObjectKey]:
        """The VersionedConfigs that are known and that the template's names can belong to."""
        for name in {ref.name for ref in workload.references}:
            for owner in (name, owner_by_name(name)):
                key = ObjectKey(workload.namespace, owner)
                if key in self._published or key in self._unsettled:
                    yield key
