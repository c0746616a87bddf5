"""The coalescing work queue between mirrors and controllers: keys, never objects.

The semantics are those of client-go's workqueue (util/workqueue/queue.go): a key waits once however often it
was added, is in the hands of one worker at a time, and runs again if it was added meanwhile. Beyond it, keys
can be handed out in groups. Knows asyncio only; whoever adds must be in the loop.
"""

import asyncio
import heapq
import itertools
import logging
import random
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from versionedconfig.kube import backoff
from versionedconfig.kube.api import ApiError

logger = logging.getLogger(__name__)

PASSING = 4
"""So many refusals in a row, some seconds, are a warning; more are an error."""

K = TypeVar("K", bound=Hashable)
G = TypeVar("G", bound=Hashable)


class BatchQueue(Generic[G, K]):
    """Hands out all ready keys of one group at once, and each group to one worker at a time.

    Keys that come while their group is in work make the next batch. So the deletion of thousands of objects in
    one namespace costs a few live lists, not thousands (k/k pvc_protection_controller.go, batching).
    """

    def __init__(
        self,
        group: Callable[[K], G],
        *,
        name: str = "",
        retry_seconds: tuple[float, float] = (0.5, 300),
        rng: random.Random | None = None,
    ) -> None:
        """`name` is for logs; `retry_seconds` are the first and the longest delay of `add_backoff`."""
        self.name = name
        self.adds = 0
        """Keys taken in; those that already waited do not count."""
        self.retries = 0
        self.depth = 0
        """Keys that wait for a worker now (not those that wait for their time)."""
        self.worked: Callable[[str, float], None] = lambda name, seconds: None
        """Told the queue's name and how long, when a worker has ended with a batch, whichever way."""
        self._group = group
        self._retry_seconds = retry_seconds
        self._rng = rng or random.Random()
        # The inner dicts are ordered sets.
        self._ready: OrderedDict[G, dict[K, None]] = OrderedDict()
        self._working: dict[G, dict[K, None]] = {}
        self._wakeup = asyncio.Event()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        """Entries that `_due` does not confirm were overtaken by an earlier one."""
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._failures: dict[K, int] = {}

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._due)

    def add(self, key: K) -> None:
        group = self._group(key)
        waiting = self._working.get(group)
        if waiting is None:
            waiting = self._ready.setdefault(group, {})
            self._wakeup.set()
        if key not in waiting:
            waiting[key] = None
            self.adds += 1
            self.depth += 1

    def add_after(self, key: K, seconds: float) -> None:
        """Adds it then; of several times for one key the earliest wins."""
        if seconds <= 0:
            self.add(key)
            return
        when = asyncio.get_running_loop().time() + seconds
        if when < self._due.get(key, float("inf")):
            self._due[key] = when
            heapq.heappush(self._heap, (when, next(self._sequence), key))
            self._set_timer()

    def add_backoff(self, key: K, at_least: float = 0.0) -> None:
        """Adds it after a delay that doubles with each call until `forget`."""
        base, cap = self._retry_seconds
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retries += 1
        self.add_after(key, max(at_least, backoff.delay(failures, base=base, cap=cap, rng=self._rng)))

    def forget(self, key: K) -> None:
        """The next add_backoff starts from the shortest delay. `run` does it by itself after a success."""
        self._failures.pop(key, None)

    async def run_batches(
        self, worker: Callable[[G, list[K]], Awaitable[None]], *, concurrency: int = 4
    ) -> None:
        """Works until cancelled. What `worker` raises is logged, and the batch comes again with back-off; a
        worker that knows which keys failed calls `failed` for them and returns."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(self._work(worker))

    async def _work(self, worker: Callable[[G, list[K]], Awaitable[None]]) -> None:
        while True:
            while not self._ready:
                self._wakeup.clear()
                await self._wakeup.wait()
            group, waiting = self._ready.popitem(last=False)
            keys = list(waiting)
            self.depth -= len(keys)
            self._working[group] = {}
            failures = [self._failures.get(key, 0) for key in keys]
            started = time.monotonic()
            try:
                await worker(group, keys)
            except Exception as error:
                self.failed(keys, error)
            else:
                for key, before in zip(keys, failures, strict=True):
                    if self._failures.get(key, 0) == before:
                        self.forget(key)
            finally:
                self.worked(self.name, time.monotonic() - started)
                again = self._working.pop(group)
                if again:
                    self._ready[group] = again
                    self._wakeup.set()

    def failed(self, keys: list[K], error: Exception) -> None:
        """Log why, and hand the keys out again after their back-off."""
        fields: dict[str, object] = {"queue": self.name, "key": str(keys[0]), "keys": len(keys)}
        if isinstance(error, ApiError):
            fields |= {"status": error.status, "reason": error.reason, "detail": error.message}
        else:
            # The frames without the text of the exception: it may quote the data that it stumbled over.
            fields |= {
                "error": type(error).__name__,
                "frames": "".join(traceback.format_tb(error.__traceback__)),
            }
        # An API server that restarts refuses a few requests: news for nobody, unless it goes on.
        passing = isinstance(error, ApiError) and self._failures.get(keys[0], 0) < PASSING
        logger.log(
            logging.WARNING if passing else logging.ERROR, "work failed, will be repeated", extra=fields
        )
        at_least = error.retry_after or 0.0 if isinstance(error, ApiError) else 0.0
        for key in keys:
            self.add_backoff(key, at_least)

    def _set_timer(self) -> None:
        """One timer for the earliest of all."""
        when = self._heap[0][0]
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._heap:
            when, _, key = self._heap[0]
            if self._due.get(key) == when:
                if when > now:
                    break
                del self._due[key]
                self.add(key)
            heapq.heappop(self._heap)
        if self._heap:
            self._set_timer()


class WorkQueue(BatchQueue[K, K]):
    """One key at a time: each key is its own group."""

    def __init__(
        self,
        *,
        name: str = "",
        retry_seconds: tuple[float, float] = (0.5, 300),
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(lambda key: key, name=name, retry_seconds=retry_seconds, rng=rng)

    async def run(self, worker: Callable[[K], Awaitable[None]], *, concurrency: int = 4) -> None:
        async def one(key: K, _: list[K]) -> None:
            await worker(key)

        await self.run_batches(one, concurrency=concurrency)
