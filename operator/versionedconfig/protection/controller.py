"""Carries out protection decisions: puts the finalizer on, proves that nobody holds, takes it off, tells who holds.

Thin: reads the view, asks `decide`, writes. Everything is derived anew from the view each time; the only memory is
since when a key is unused, and losing it makes the operator slower to release, never faster.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from versionedconfig.kube.api import Api
from versionedconfig.kube.queue import BatchQueue
from versionedconfig.kube.writes import Outcome, Regarding, add_finalizer, remove_finalizer, upsert_event
from versionedconfig.live import LiveLists
from versionedconfig.model import IN_USE_FINALIZER, ConfigKey, Incarnation
from versionedconfig.observability.metrics import Metrics
from versionedconfig.protection.decide import Do, Situation, blocked_message, decide
from versionedconfig.settings import Settings
from versionedconfig.view import View, api_path

logger = logging.getLogger(__name__)

WRITES_IN_FLIGHT = 10

RETELL_SECONDS = 60.0
"""How often the Event of a blocked deletion is brought up to date."""


class ProtectionController:
    """One for the process. `enqueue` is called for every ConfigKey that changed."""

    def __init__(
        self,
        api: Api,
        view: View,
        live: LiveLists,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._live = live
        self._clock = clock
        self._unused_since: dict[ConfigKey, tuple[str, float]] = {}
        self.queue: BatchQueue[str, ConfigKey] = BatchQueue(lambda key: key.namespace, name="protection")

    def enqueue(self, key: ConfigKey) -> None:
        """Look at the key soon. Cheap; keys that need nothing are dropped here already."""
        incarnation = self._view.incarnation(key)
        if incarnation is None or not (incarnation.in_use or incarnation.immutable):
            self._forget(key)
        else:
            self.queue.add(key)

    async def run(self) -> None:
        """Work for ever. Call when the view is synced: before that an absence proves nothing."""
        for incarnation in self._view.incarnations():
            self.enqueue(incarnation.key)
        await self.queue.run_batches(self.reconcile, concurrency=10)

    async def reconcile(self, namespace: str, keys: list[ConfigKey]) -> None:
        """One pass over keys of one namespace; costs at most one live list, however many may be released."""
        unprotected: list[Incarnation] = []
        candidates: list[Incarnation] = []
        blocked: list[Incarnation] = []
        for key in keys:
            incarnation = self._view.incarnation(key)
            if incarnation is None:
                self._forget(key)
                continue
            held = self._view.holders.held(incarnation)
            unused = self._unused_seconds(incarnation, held)
            situation = Situation(
                incarnation=incarnation,
                held=held,
                namespace_excluded=self._settings.excluded(namespace),
                namespace_terminating=self._view.terminating(namespace),
                unused_seconds=unused,
            )
            match decide(situation, self._settings.linger_seconds):
                case Do.ADD:
                    unprotected.append(incarnation)
                case Do.LINGER:
                    self.queue.add_after(key, self._settings.linger_seconds - unused)
                case Do.VERIFY:
                    candidates.append(incarnation)
                case Do.NOTHING:
                    pass
            if held and incarnation.in_use and incarnation.deleting:
                blocked.append(incarnation)
            else:
                self._metrics.blocked(key, None)
        # A few at a time: a start finds thousands to do, and each costs a round trip.
        for start in range(0, len(unprotected), WRITES_IN_FLIGHT):
            await asyncio.gather(*map(self._add, unprotected[start : start + WRITES_IN_FLIGHT]))
        if candidates:
            await self._release_unheld(namespace, candidates)
        # Last: an Event may be refused, and that must not keep anything else waiting.
        for incarnation in blocked:
            await self._tell_blocked(incarnation)

    async def _add(self, incarnation: Incarnation) -> None:
        key = incarnation.key
        outcome = await add_finalizer(self._api, api_path(key), incarnation.uid, IN_USE_FINALIZER)
        self._metrics.finalizer("add", outcome.name.lower())
        if outcome is Outcome.DONE:
            logger.info("protected", extra={"config": str(key)})
        # Gone, replaced or terminating meanwhile: the mirror will show it and the key comes back.

    async def _release_unheld(self, namespace: str, candidates: list[Incarnation]) -> None:
        """Release those that a live list proves to be unheld. Fails closed: an error here releases nothing."""
        try:
            held = await self._live.held(namespace, candidates)
        except Exception:
            self._metrics.usage_check_errors.inc()
            raise
        for incarnation in candidates:
            key = incarnation.key
            if key in held or self._view.holders.held(incarnation):
                # The mirror lags: the holder's event will come, but do not rely on it.
                self.queue.add_after(key, 1.0)
                continue
            outcome = await remove_finalizer(
                self._api, api_path(key), incarnation.uid, incarnation.resource_version, IN_USE_FINALIZER
            )
            self._metrics.finalizer("remove", outcome.name.lower())
            if outcome is Outcome.DONE:
                logger.info("released", extra={"config": str(key)})
            elif outcome is Outcome.CONFLICT:
                self.queue.add_after(key, 0.2)

    async def _tell_blocked(self, incarnation: Incarnation) -> None:
        key = incarnation.key
        holders = self._view.holders.referrers(incarnation)
        self._metrics.blocked(key, incarnation.uid)
        await upsert_event(
            self._api,
            Regarding("v1", key.kind, key.namespace, key.name, incarnation.uid),
            reason="DeletionBlocked",
            message=blocked_message(holders),
            type="Warning",
            now=datetime.now(UTC),
        )
        self.queue.add_after(key, RETELL_SECONDS)

    def _unused_seconds(self, incarnation: Incarnation, held: bool) -> float:
        if held or not incarnation.in_use:
            self._unused_since.pop(incarnation.key, None)
            return 0.0
        uid, since = self._unused_since.get(incarnation.key, ("", 0.0))
        if uid != incarnation.uid:
            since = self._clock()
            self._unused_since[incarnation.key] = (incarnation.uid, since)
        return self._clock() - since

    def _forget(self, key: ConfigKey) -> None:
        self._unused_since.pop(key, None)
        self._metrics.blocked(key, None)
