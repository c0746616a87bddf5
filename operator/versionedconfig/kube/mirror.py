"""A mirror of one kind: lists it in pages, follows it with a watch, keeps a projection of each object.

What client-go calls a reflector with a store, with replace semantics: after a list, what vanished meanwhile
goes through the same path as a deletion that was watched (client-go tools/cache/delta_fifo.go, Replace;
kopf does not do this, so its indices keep ghosts). Knows nothing of what the objects mean.
"""

import asyncio
import dataclasses
import functools
import gc
import logging
import operator
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec

from versionedconfig.kube import backoff
from versionedconfig.kube.api import JSON, METADATA_ONLY, METADATA_ONLY_LIST, Api, ApiError, Page, WatchEvent
from versionedconfig.model import ObjectKey

logger = logging.getLogger(__name__)


class _Absent(Exception):
    """The API server does not serve the kind."""


class Projected(Protocol):
    """What is kept of an object: a frozen slotted dataclass or a msgspec struct with at least these."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


P = TypeVar("P", bound=Projected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(Generic[P]):
    name: str
    """For logs and metrics, e.g. `pods`."""
    path: str
    """Of the collection: `/api/v1/pods`, `/apis/apps/v1/deployments`."""
    item: type[msgspec.Struct] | type[msgspec.Raw]
    """Names only the fields that `project` reads; the rest is skipped while decoding."""
    project: Callable[[Any], P]
    """Must be total: what it raises ends the process. Namespaces are best passed through sys.intern."""
    field_selector: str = ""
    label_selector: str = ""
    metadata_only: bool = False
    page_limit: int = 250
    may_be_absent: bool = False
    """The API server may not serve the kind, now or later: then there are no objects of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    watch_seconds: tuple[float, float] = (300, 600)
    """Asked from the server at random within this, so that streams spread over API server replicas again
    after one was down (client-go reflector.go, minWatchTimeout)."""
    silence_seconds: float = 90
    """A stream without a byte for so long is dead: bookmarks come about once a minute (k/k cacher.go), a little later
    where the API server is busy."""
    backoff: tuple[float, float] = (0.5, 30)
    absent_seconds: float = 15
    """How soon a kind is noticed that the API server begins to serve."""


_DEFAULTS = MirrorSettings()
_DENIALS = 8
"""So many failures in a row, about a minute, and a denial is meant: the role was taken away."""


@dataclass(slots=True)
class Counters:
    lists: int = 0
    list_errors: int = 0
    list_seconds: float = 0
    """How long the last complete list took, waits included."""
    watches: Counter[str] = field(default_factory=Counter)
    """Starts by reason: `listed`, `ended`, `cut`, `silent`, `error`."""
    absences: int = 0
    """How often the kind was asked for and not served."""
    expired: int = 0
    """How often the resume version was too old (or from the future), so that a new list was needed."""
    events: Counter[str] = field(default_factory=Counter)


class Mirror(Generic[P]):
    """Call `run` once. `on_change(old, new)` is called in the loop for each change of a projection other than
    its resource version; it must be quick and put keys, not objects, into a queue."""

    def __init__(
        self,
        api: Api,
        resource: Resource[P],
        on_change: Callable[[P | None, P | None], None],
        *,
        settings: MirrorSettings = _DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.resource = resource
        self.counters = Counters()
        self.last_heard = clock()
        """When (by `clock`) the last page, event or bookmark came."""
        self._api = api
        self._on_change = on_change
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._objects: dict[ObjectKey, P] = {}
        self._synced = asyncio.Event()
        self.on_listed: Callable[[], None] = lambda: None
        """Called whenever a list was complete."""
        self.unheard_since: float | None = None
        """While a list is taken over: since when (by `clock`) nothing had been heard. What it shows may have happened at any
        time since."""
        self._failures = 0
        """Since something was heard in a watch."""

    @property
    def objects(self) -> Mapping[ObjectKey, P]:
        return MappingProxyType(self._objects)

    def get(self, key: ObjectKey) -> P | None:
        return self._objects.get(key)

    @property
    def synced(self) -> bool:
        """Has one list been complete? It stays so: later lists only correct what is there."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def run(self) -> NoReturn:
        """For ever. Raises what on_change raises, and ApiError for 401 and 403 where waiting does not cure them."""
        while True:
            try:
                version = await self._list()
            except _Absent:
                # Asked for once a while: a watch of CustomResourceDefinitions would need the right to read them all.
                await self._sleep(self._settings.absent_seconds * self._rng.uniform(0.75, 1.25))
                continue
            await self._follow(version)

    async def _list(self) -> str:
        """Makes the store equal to the server's; returns the version to watch from."""
        started = self._clock()
        self.unheard_since = self.last_heard
        seen: set[ObjectKey] = set()
        token = ""
        while True:
            try:
                # No resourceVersion: the state of now, not what a lagging watch cache holds. No other stream
                # is applied meanwhile, so a page can be taken over before the next one is there.
                page = await self._page(token)
            except ApiError as error:
                if error.status == 404 and self.resource.may_be_absent:
                    # Never from a server that is still starting: that says 503 until it knows all that it serves
                    # (k/k#104748, k/k#105653).
                    self.last_heard = self._clock()
                    self.counters.absences += 1
                    self._settle(frozenset())
                    raise _Absent from None
                self.counters.list_errors += 1
                self._raise_if_denied("list", error)
                if error.status == 410:  # the continue token expired: what is left would be of another time
                    token, seen = "", set()
                await self._pause("list failed", error)
                continue
            self.last_heard = self._clock()
            for item in page.items:
                seen.add(self._upsert(self.resource.project(item)))
            token, version = page.continue_token, page.resource_version
            del page  # not two pages in memory at once
            if not token:
                break
            await asyncio.sleep(0)
        self.counters.lists += 1
        self.counters.list_seconds = self._clock() - started
        self._settle(seen)
        self.unheard_since = None
        return version

    def _settle(self, seen: Set[ObjectKey]) -> None:
        """These are all."""
        for key in [key for key in self._objects if key not in seen]:
            self._remove(key)
        if not self.synced:
            logger.info(
                "synced",
                extra={
                    "resource": self.resource.name,
                    "objects": len(self._objects),
                    "seconds": round(self.counters.list_seconds, 3),
                },
            )
            self._synced.set()
        self.on_listed()

    async def _page(self, token: str) -> Page[Any]:
        resource = self.resource
        return await self._api.list_page(
            resource.path,
            item=resource.item,
            field_selector=resource.field_selector,
            label_selector=resource.label_selector,
            limit=resource.page_limit,
            continue_token=token,
            accept=METADATA_ONLY_LIST if resource.metadata_only else JSON,
        )

    async def _follow(self, version: str) -> None:
        """Watches from `version`, again and again, until only a new list helps."""
        resource, settings = self.resource, self._settings
        why = "listed"
        while True:
            self.counters.watches[why] += 1
            heard = False
            failure: ApiError | None = None
            stream = self._api.watch(
                resource.path,
                item=resource.item,
                resource_version=version,
                field_selector=resource.field_selector,
                label_selector=resource.label_selector,
                timeout_seconds=self._rng.uniform(*settings.watch_seconds),
                silence_seconds=settings.silence_seconds,
                accept=METADATA_ONLY if resource.metadata_only else JSON,
            )
            try:
                async with aclosing(stream) as batches:
                    async for batch in batches:
                        heard = True
                        self._failures = 0
                        self.last_heard = self._clock()
                        for event in batch:
                            version = self._apply(event) or version
                        # A burst is read from a full buffer without ever giving way.
                        await asyncio.sleep(0)
            except ApiError as error:
                failure = error
            if failure is None:
                why = "ended"
            elif failure.status == 0:
                why = "silent" if failure.reason == "Timeout" else "cut"
            else:
                why = "error"
                self._raise_if_denied("watch", failure)
            # Another etcd (a restored backup) may be behind our version; waiting for it could take for ever.
            expired = failure is not None and (
                failure.status == 410 or failure.has_cause("ResourceVersionTooLarge")
            )
            # A stream that worked and then ended or broke is resumed at once; one that never brought anything
            # must not become a tight loop (client-go reflector.go, "very short watch").
            if failure is not None and failure.status == 404 and resource.may_be_absent:
                return
            if not heard or (why == "error" and not expired):
                await self._pause("watch failed", failure)
            if expired:
                self.counters.expired += 1
                return

    def _apply(self, event: WatchEvent[Any]) -> str:
        """Returns the version to resume from after this event."""
        self.counters.events[event.type] += 1
        if event.object is None:
            return event.resource_version
        new = self.resource.project(event.object)
        if event.type == "DELETED":
            key = ObjectKey(new.namespace, new.name)
            old = self._objects.get(key)
            if old is not None and old.uid == new.uid:
                # Its last state, not the one known before: how it went may matter.
                self._objects[key] = new
                self._remove(key)
        else:
            self._upsert(new)
        return new.resource_version

    def _upsert(self, new: P) -> ObjectKey:
        # Only namespaces: they are few and repeat. Pod names do not, and early CPython 3.12 never frees
        # what was interned (python/cpython#113993); the key shares the projection's own string.
        key = ObjectKey(sys.intern(new.namespace), new.name)
        old = self._objects.get(key)
        if old is not None and old.uid != new.uid:
            # A deletion masked as an update (k/k pvc_protection_controller.go, podAddedDeletedUpdated).
            self._remove(key)
            old = None
        self._objects[key] = new
        if old is None or not _same(old, new):
            self._notify(old, new)
        return key

    def _remove(self, key: ObjectKey) -> None:
        self._notify(self._objects.pop(key), None)

    def _notify(self, old: P | None, new: P | None) -> None:
        try:
            self._on_change(old, new)
        except Exception:
            # The store and what the handler built from it differ now. Going on would hide that for ever; the
            # process ends and starts from a list.
            logger.error("change handler failed", extra={"resource": self.resource.name})
            raise

    async def _pause(self, message: str, error: ApiError | None) -> None:
        base, cap = self._settings.backoff
        seconds = backoff.delay(self._failures, base=base, cap=cap, rng=self._rng)
        self._failures += 1
        if error is not None:
            seconds = max(seconds, error.retry_after or 0)
            logger.warning(
                message,
                extra={
                    "resource": self.resource.name,
                    "status": error.status,
                    "reason": error.reason,
                    "detail": error.message,
                    "retry_seconds": round(seconds, 3),
                },
            )
        await self._sleep(seconds)

    def _raise_if_denied(self, verb: str, error: ApiError) -> None:
        if self.synced and self._failures < _DENIALS:
            # It was allowed before. An API server that just started denies everything until its authorizer has
            # read the roles (seen within seconds after a restart), and must not end us.
            return
        if error.status == 403:
            what = f"the ServiceAccount lacks the verb {verb} on {self.resource.name}"
        elif error.status == 401:
            what = f"the API server does not accept our credentials (tried to {verb} {self.resource.name})"
        else:
            return
        raise ApiError(error.status, error.reason, what) from error


@functools.cache
def _content_of(kind: type) -> Callable[[Any], object]:
    """A getter of all that makes a projection what it is: every field but the resource version."""
    if dataclasses.is_dataclass(kind):
        names = [f.name for f in dataclasses.fields(kind) if f.compare]
    else:
        names = list(getattr(kind, "__struct_fields__", ()))
    names = [name for name in names if name != "resource_version"]
    return operator.attrgetter(*names) if names else lambda projection: projection


def _same(old: Projected, new: Projected) -> bool:
    content = _content_of(type(new))
    return content(old) == content(new)


def tune_gc() -> None:
    """Fewer garbage collections: nearly all that we allocate lives long and has no cycles, and the default
    threshold (700 objects) makes a list of 50,000 pods walk the growing heap again and again; measured, it
    doubles the CPU of the first list. Call once at start."""
    gc.set_threshold(50_000, 50, 50)
