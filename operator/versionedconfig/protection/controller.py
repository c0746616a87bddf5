"""Carries out protection decisions: puts the finalizer on, proves that nobody holds, takes it off, tells who holds.

Thin: reads the view, asks `decide`, writes. Everything is derived anew from the view each time. What is remembered is since
when a key is unused (losing it makes the operator slower to release, never faster), and which incarnations were protected,
so that one that vanishes all the same is noticed.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from versionedconfig.kube.api import Api, ApiError
from versionedconfig.kube.queue import BatchQueue
from versionedconfig.kube.writes import (
    Outcome,
    Regarding,
    add_finalizer,
    annotate,
    remove_finalizer,
    upsert_event,
)
from versionedconfig.live import LiveLists
from versionedconfig.model import IN_USE_FINALIZER, QUARANTINE_ANNOTATION, ConfigKey, Incarnation
from versionedconfig.observability.metrics import Metrics
from versionedconfig.projection import api_path
from versionedconfig.protection import quarantine
from versionedconfig.protection.decide import Do, Situation, blocked_message, decide
from versionedconfig.protection.quarantine import Quarantine
from versionedconfig.references.index import Keys
from versionedconfig.settings import Settings
from versionedconfig.view import View

logger = logging.getLogger(__name__)

WRITES_IN_FLIGHT = 10

RETELL_SECONDS = 60.0
"""How often the Event of a blocked deletion is brought up to date."""

QUARANTINE_LOOK_SECONDS = 15.0
"""How often a quarantine is looked at: what ends it may bring no event."""


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
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._live = live
        self._clock = clock
        self._now = now
        self._unused_since: dict[ConfigKey, tuple[str, float]] = {}
        self._guarded: dict[ConfigKey, tuple[str, bool]] = {}
        """uid of each incarnation that has our finalizer, as far as we know, and whether the mirror shows it."""
        self._taken: defaultdict[ConfigKey, list[Quarantine]] = defaultdict(list)
        """Force-deleted pods that are not written down yet."""
        self._said: set[tuple[str, Do]] = set()
        """What was reported already in observe mode, by uid."""
        self.queue: BatchQueue[str, ConfigKey] = BatchQueue(lambda key: key.namespace, name="protection")

    def enqueue(self, key: ConfigKey) -> None:
        """Look at the key soon. Cheap; keys that need nothing are dropped here already."""
        incarnation = self._view.incarnation(key)
        self._notice_loss(key, incarnation)
        if incarnation is None or not (incarnation.in_use or incarnation.immutable):
            self._forget(key)
        else:
            self.queue.add(key)

    def pod_taken(self, node_name: str, keys: Keys) -> None:
        """A pod of that node was force-deleted, and these are what it referred to."""
        node = self._view.node(node_name)
        if node is None:
            return
        for key in keys:
            life = self._view.incarnation(key)
            if life is not None and life.in_use:
                entry = Quarantine(node_name, node.boot_id, quarantine.utc(self._now()))
                self._taken[key].append(entry)
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
        broken: list[Incarnation] = []
        blocked: list[Incarnation] = []
        for key in keys:
            incarnation = self._view.incarnation(key)
            if incarnation is None:
                self._forget(key)
                continue
            await self._write_down(incarnation)
            terminating = self._view.terminating(namespace)
            # A namespace that goes wins over everything but its own pods: whatever refers from outside would keep it for
            # ever.
            held = self._view.holders.held(incarnation, pods_only=terminating)
            unused = self._unused_seconds(incarnation, held)
            situation = Situation(
                incarnation=incarnation,
                held=held,
                namespace_excluded=self._settings.excluded(namespace),
                namespace_terminating=terminating,
                looked_after=self._settings.looks_after(incarnation) and not self._view.ignored(namespace),
                quarantined=self._quarantined(incarnation),
                unused_seconds=unused,
            )
            what = decide(situation, self._settings.linger_seconds)
            if what is Do.LINGER:
                self.queue.add_after(key, self._settings.linger_seconds - unused)
            if self._settings.observe:
                self._say(incarnation, what)
                continue
            match what:
                case Do.ADD:
                    unprotected.append(incarnation)
                case Do.WAIT:
                    self.queue.add_after(key, QUARANTINE_LOOK_SECONDS)
                case Do.VERIFY:
                    candidates.append(incarnation)
                case Do.BREAK:
                    broken.append(incarnation)
                case Do.LINGER | Do.NOTHING:
                    pass
            if held and incarnation.in_use and incarnation.deleting and what is not Do.BREAK:
                blocked.append(incarnation)
            else:
                self._metrics.blocked(key, None)
        for incarnation in broken:
            await self._try(self._break_glass, incarnation)
        # A few at a time: a start finds thousands to do, and each costs a round trip.
        for start in range(0, len(unprotected), WRITES_IN_FLIGHT):
            some = unprotected[start : start + WRITES_IN_FLIGHT]
            await asyncio.gather(*(self._try(self._add, incarnation) for incarnation in some))
        if candidates:
            await self._release_unheld(namespace, candidates)
        # Last: an Event may be refused, and that must not keep anything else waiting.
        for incarnation in blocked:
            await self._try(self._tell_blocked, incarnation)

    async def _try(self, act: Callable[[Incarnation], Awaitable[None]], incarnation: Incarnation) -> None:
        """What is refused for one object, by somebody's policy perhaps, must not keep the others of its namespace waiting."""
        try:
            await act(incarnation)
        except ApiError as error:
            self.queue.failed([incarnation.key], error)

    async def _add(self, incarnation: Incarnation) -> None:
        key = incarnation.key
        outcome = await add_finalizer(self._api, api_path(key), incarnation.uid, IN_USE_FINALIZER)
        self._metrics.finalizer("add", outcome.name.lower())
        if outcome is Outcome.DONE:
            self._guarded.setdefault(key, (incarnation.uid, False))
            # It may have gone between the answer and now.
            self._notice_loss(key, self._view.incarnation(key))
            logger.info("protected", extra={"config": str(key)})
        # Gone, replaced or terminating meanwhile: the mirror will show it and the key comes back.

    async def _release_unheld(self, namespace: str, candidates: list[Incarnation]) -> None:
        """Release those that a live list proves to be unheld. Fails closed: an error here releases nothing."""
        terminating = self._view.terminating(namespace)
        try:
            held = await self._live.held(namespace, candidates, pods_only=terminating)
        except ApiError as error:
            self._metrics.usage_check_errors.inc()
            self.queue.failed([candidate.key for candidate in candidates], error)
            return
        for incarnation in candidates:
            key = incarnation.key
            still_held = self._view.holders.held(incarnation, pods_only=terminating)
            if key in held or still_held or (self._taken.get(key) and not terminating):
                # The mirror lags: the holder's event will come, but do not rely on it.
                self.queue.add_after(key, 1.0)
            else:
                await self._try(self._release, incarnation)

    async def _release(self, incarnation: Incarnation) -> None:
        if await self._remove(incarnation) is not Outcome.DONE:
            return
        logger.info("released", extra={"config": str(incarnation.key)})
        terminating = self._view.terminating(incarnation.namespace)
        if terminating and (others := self._view.holders.referrers(incarnation)):
            # An Event would be refused: its namespace takes nothing new.
            first = ", ".join(map(str, others[:3]))
            logger.warning(
                "went with its namespace", extra={"config": str(incarnation.key), "used_by": first}
            )

    async def _break_glass(self, incarnation: Incarnation) -> None:
        """At once and whatever holds it; the Event first, since the object may be gone afterwards."""
        key = incarnation.key
        holders = len(self._view.holders.referrers(incarnation))
        users = f"{holders} object{'s' if holders != 1 else ''} that use{'s' if holders == 1 else ''} it"
        try:
            await upsert_event(
                self._api,
                Regarding("v1", key.kind, key.namespace, key.name, incarnation.uid),
                reason="ProtectionReleased",
                message=f"Released by its release annotation, in spite of {users}: {incarnation.release}",
                type="Warning",
                now=self._now(),
            )
        except ApiError as error:
            logger.warning("Event refused", extra={"config": str(key), "status": error.status})
        outcome = await self._remove(incarnation)
        if outcome is Outcome.DONE:
            self._metrics.break_glass.inc()
            logger.warning("released by annotation", extra={"config": str(key), "holders": holders})

    async def _remove(self, incarnation: Incarnation) -> Outcome:
        key = incarnation.key
        # Before the answer: the event of its going may be faster, and it is no loss.
        guarded = self._guarded.pop(key, None)
        outcome = None
        try:
            outcome = await remove_finalizer(
                self._api,
                api_path(key),
                incarnation.uid,
                IN_USE_FINALIZER,
                QUARANTINE_ANNOTATION if incarnation.quarantine else "",
            )
        finally:
            if outcome is not Outcome.DONE and guarded is not None:
                self._guarded[key] = guarded
        if outcome is Outcome.CONFLICT:
            # The API server tries a patch without resourceVersion several times by itself before it says so.
            self.queue.add_after(key, 0.2)
        self._metrics.finalizer("remove", outcome.name.lower())
        return outcome

    def _notice_loss(self, key: ConfigKey, incarnation: Incarnation | None) -> None:
        """Somebody stripped the finalizer of an object that was being deleted, or the API server let a deletion win that
        was under way when the finalizer came (k/k#77988): its name is free while pods use it."""
        uid, shown = self._guarded.get(key, ("", False))
        if incarnation is not None and (incarnation.uid == uid or not uid):
            if incarnation.in_use:
                self._guarded[key] = (incarnation.uid, True)
            elif shown:
                # Stripped and still there: the key is looked at again, and protected again if it may be.
                del self._guarded[key]
            return
        if uid:
            del self._guarded[key]
            gone = Incarnation(key, uid, "", immutable=True)
            if self._view.holders.held(gone) and not self._view.terminating(key.namespace):
                how = "stripped" if shown else "race"
                self._metrics.bypass(how)
                logger.warning("vanished while in use", extra={"config": str(key), "how": how})

    def _quarantined(self, incarnation: Incarnation) -> bool:
        entries = (*quarantine.read(incarnation.quarantine), *self._taken.get(incarnation.key, ()))
        limit = self._settings.quarantine_seconds
        return bool(quarantine.active(entries, self._view.node, limit, self._now()))

    async def _write_down(self, incarnation: Incarnation) -> None:
        """Force-deleted pods stand in the object's annotation, so that the next process knows of them."""
        key = incarnation.key
        taken = self._taken.pop(key, None)
        if not taken or not incarnation.in_use or self._settings.observe:
            return
        entries = [*quarantine.read(incarnation.quarantine), *taken]
        still = quarantine.active(entries, self._view.node, self._settings.quarantine_seconds, self._now())
        if not still:
            return
        outcome = None
        try:
            outcome = await annotate(
                self._api,
                api_path(key),
                incarnation.uid,
                incarnation.resource_version,
                QUARANTINE_ANNOTATION,
                quarantine.write(still),
            )
        finally:
            if outcome in (None, Outcome.CONFLICT):
                self._taken[key] = [*taken, *self._taken.get(key, ())]
        if outcome is Outcome.CONFLICT:
            self.queue.add_after(key, 0.2)
        elif outcome is Outcome.DONE:
            self._metrics.quarantines.inc()
            logger.warning("held for force-deleted pods", extra={"config": str(key)})

    def _say(self, incarnation: Incarnation, what: Do) -> None:
        """In observe mode: once for each incarnation and action."""
        action = {Do.ADD: "protect", Do.VERIFY: "release", Do.BREAK: "break-glass"}.get(what)
        if action and (incarnation.uid, what) not in self._said:
            self._said.add((incarnation.uid, what))
            self._metrics.would.labels(action).inc()
            logger.info("would " + action, extra={"config": str(incarnation.key)})

    async def _tell_blocked(self, incarnation: Incarnation) -> None:
        key = incarnation.key
        holders = self._view.holders.referrers(incarnation)
        self._metrics.blocked(key, _unix(incarnation.deleted) or self._now().timestamp())
        await upsert_event(
            self._api,
            Regarding("v1", key.kind, key.namespace, key.name, incarnation.uid),
            reason="DeletionBlocked",
            message=blocked_message(holders),
            type="Warning",
            now=self._now(),
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
        self._taken.pop(key, None)
        self._metrics.blocked(key, None)


def _unix(text: str) -> float:
    """0 where the API server did not say when."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
