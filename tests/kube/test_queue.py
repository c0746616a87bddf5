"""The work queue, on virtual time."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube import virtual
from versionedconfig.kube.api import ApiError
from versionedconfig.kube.backoff import delay
from versionedconfig.kube.queue import BatchQueue, WorkQueue


def virtually(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapper(**fixtures: object) -> None:
        async def main() -> None:
            await test(**fixtures)

        virtual.run(main())

    return wrapper


def now() -> float:
    return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def working(
    queue: WorkQueue[str], worker: Callable[[str], Awaitable[None]], concurrency: int = 2
) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run(worker, concurrency=concurrency))
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@virtually
async def test_a_key_waits_once() -> None:
    done: list[str] = []
    queue = WorkQueue[str]()
    for key in ("a", "b", "a", "a"):
        queue.add(key)

    async def worker(key: str) -> None:
        done.append(key)

    assert (queue.depth, queue.adds) == (2, 2)
    async with working(queue, worker):
        await asyncio.sleep(1)
    assert done == ["a", "b"]
    assert queue.depth == 0


@virtually
async def test_one_worker_per_key_and_again_afterwards() -> None:
    log: list[tuple[str, float]] = []
    queue = WorkQueue[str]()

    async def worker(key: str) -> None:
        log.append((f"{key} begins", now()))
        await asyncio.sleep(10)
        log.append((f"{key} ends", now()))

    async with working(queue, worker):
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert queue.depth == 2
        await asyncio.sleep(50)

    assert log == [
        ("a begins", 0),
        ("b begins", 1),
        ("a ends", 10),
        ("a begins", 10),
        ("b ends", 11),
        ("a ends", 20),
    ]


@virtually
async def test_no_more_workers_than_asked_for() -> None:
    most = active = 0
    queue = WorkQueue[str]()

    async def worker(key: str) -> None:
        nonlocal most, active
        active += 1
        most = max(most, active)
        await asyncio.sleep(1)
        active -= 1

    for key in "abcdefghi":
        queue.add(key)
    async with working(queue, worker, concurrency=3):
        await asyncio.sleep(3)
        assert queue.depth == 0
    assert most == 3


@virtually
async def test_add_after_the_earliest_wins() -> None:
    done: list[tuple[str, float]] = []
    queue = WorkQueue[str]()

    async def worker(key: str) -> None:
        done.append((key, now()))

    async with working(queue, worker):
        queue.add_after("a", 50)
        queue.add_after("a", 20)
        queue.add_after("a", 30)
        queue.add_after("b", 40)
        queue.add_after("c", 0)
        assert queue.delayed == 2
        await asyncio.sleep(100)
        queue.add_after("a", 5)
        await asyncio.sleep(100)

    assert done == [("c", 0), ("a", 20), ("b", 40), ("a", 105)]
    assert queue.delayed == 0


@virtually
async def test_failures_come_again_with_growing_delays_until_a_success() -> None:
    tried: list[float] = []
    queue = WorkQueue[str](retry_seconds=(1, 8), rng=random.Random(1))

    async def worker(key: str) -> None:
        tried.append(now())
        if len(tried) % 6:
            raise RuntimeError

    async with working(queue, worker):
        for _ in range(2):  # the second time from the shortest delay again
            queue.add("a")
            await asyncio.sleep(1000)

            assert len(tried) == 6
            gaps = [after - before for before, after in pairwise(tried)]
            assert all(full / 2 <= gap <= full for gap, full in zip(gaps, (1, 2, 4, 8, 8), strict=True))
            tried.clear()
    assert queue.retries == 10


@virtually
async def test_it_is_told_how_long_work_took_whichever_way_it_ended() -> None:
    queue: WorkQueue[str] = WorkQueue(name="test", retry_seconds=(1000, 1000))
    told: list[str] = []

    def worked(name: str, seconds: float) -> None:
        assert seconds >= 0
        told.append(name)

    queue.worked = worked

    async def worker(key: str) -> None:
        if key == "fails":
            raise ApiError(500, "InternalError")

    queue.add("fails")
    queue.add("works")
    async with working(queue, worker):
        await asyncio.sleep(1)
    assert told == ["test", "test"]


@virtually
async def test_a_worker_may_ask_for_a_repetition_itself() -> None:
    tried: list[float] = []
    queue = WorkQueue[str](retry_seconds=(1, 100), rng=random.Random(1))

    async def worker(key: str) -> None:
        tried.append(now())
        if len(tried) < 4:
            queue.add_backoff(key)

    async with working(queue, worker):
        queue.add("a")
        await asyncio.sleep(1000)

    gaps = [after - before for before, after in pairwise(tried)]
    assert all(full / 2 <= gap <= full for gap, full in zip(gaps, (1, 2, 4), strict=True))


@virtually
async def test_retry_after_is_honoured() -> None:
    tried: list[float] = []
    queue = WorkQueue[str]()

    async def worker(key: str) -> None:
        tried.append(now())
        if len(tried) == 1:
            raise ApiError(429, "TooManyRequests", retry_after=33)

    async with working(queue, worker):
        queue.add("a")
        await asyncio.sleep(100)

    assert tried == [0, 33]


@virtually
async def test_the_log_names_the_failure_and_never_quotes_it(caplog: pytest.LogCaptureFixture) -> None:
    queue = WorkQueue[str](name="protection")

    async def worker(key: str) -> None:
        raise ValueError("canary")

    with caplog.at_level(logging.DEBUG, "versionedconfig"):
        async with working(queue, worker):
            queue.add("shop/a")
            await asyncio.sleep(0)
            await asyncio.sleep(0.1)

    record = caplog.records[0]
    fields = vars(record)
    assert record.getMessage() == "work failed, will be repeated"
    assert (fields["queue"], fields["key"], fields["error"]) == ("protection", "shop/a", "ValueError")
    assert "in worker" in fields["frames"]
    assert "canary" not in str(fields).replace('raise ValueError("canary")', "")


@virtually
async def test_refusals_are_an_error_when_they_go_on(caplog: pytest.LogCaptureFixture) -> None:
    queue = WorkQueue[str](name="protection", retry_seconds=(1, 1))

    async def worker(key: str) -> None:
        raise ApiError(403, "Forbidden", "not yet")

    queue.add("shop/a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.run(worker), 20)

    levels = [record.levelname for record in caplog.records]
    assert levels[:5] == ["WARNING"] * 4 + ["ERROR"]
    assert set(levels[4:]) == {"ERROR"}


@virtually
async def test_batches_are_all_ready_keys_of_a_group_one_worker_per_group() -> None:
    batches: list[tuple[float, str, list[str]]] = []
    queue = BatchQueue[str, tuple[str, str]](lambda key: key[0])

    async def worker(namespace: str, keys: list[tuple[str, str]]) -> None:
        batches.append((now(), namespace, [name for _, name in keys]))
        await asyncio.sleep(10)

    task = asyncio.create_task(queue.run_batches(worker, concurrency=3))
    for name in "abc":
        queue.add(("shop", name))
    queue.add(("bank", "x"))
    await asyncio.sleep(1)
    for name in "adea":
        queue.add(("shop", name))
    assert queue.depth == 3
    await asyncio.sleep(100)
    task.cancel()

    assert batches == [(0, "shop", ["a", "b", "c"]), (0, "bank", ["x"]), (10, "shop", ["a", "d", "e"])]


@virtually
async def test_a_failed_batch_comes_again_and_single_keys_may() -> None:
    batches: list[list[int]] = []
    queue = BatchQueue[str, int](lambda key: "all", retry_seconds=(1, 1))

    async def worker(group: str, keys: list[int]) -> None:
        batches.append(sorted(keys))
        if len(batches) == 1:
            raise ApiError(500, "InternalError", retry_after=5)
        if 2 in keys and len(batches) == 2:
            queue.add_backoff(2)

    for key in (1, 2, 3):
        queue.add(key)
    task = asyncio.create_task(queue.run_batches(worker))
    await asyncio.sleep(100)
    task.cancel()

    assert batches == [[1, 2, 3], [1, 2, 3], [2]]


@virtually
async def test_cancelling_stops_the_workers_and_keeps_what_waits() -> None:
    queue = WorkQueue[str]()
    done: list[str] = []

    async def worker(key: str) -> None:
        await asyncio.sleep(100)
        done.append(key)

    async with working(queue, worker):
        queue.add("a")
        queue.add_after("b", 500)
        await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 1
    await asyncio.sleep(1000)
    assert done == []

    async with working(queue, worker):
        await asyncio.sleep(1000)
    assert done == ["b"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 2.5]), st.floats(0, 3)), max_size=30
    )
)
def test_no_key_is_lost_and_none_runs_twice_at_once(adds: list[tuple[int, float, float]]) -> None:
    last_run: dict[int, float] = {}
    active: set[int] = set()

    async def worker(key: int) -> None:
        assert key not in active
        active.add(key)
        last_run[key] = now()
        await asyncio.sleep(0.7)
        active.remove(key)

    async def main() -> None:
        queue = WorkQueue[int]()
        task = asyncio.create_task(queue.run(worker, concurrency=2))
        due: dict[int, float] = {}
        for key, after, pause in adds:
            queue.add_after(key, after)
            due[key] = max(due.get(key, 0), now())
            await asyncio.sleep(pause)
        await asyncio.sleep(100)
        assert not task.done()
        task.cancel()
        assert queue.depth == queue.delayed == 0
        assert all(last_run[key] >= when for key, when in due.items())

    virtual.run(main())


def test_delays_double_up_to_the_cap_for_ever() -> None:
    rng = random.Random(2)
    assert 0.25 <= delay(0, base=0.5, cap=30, rng=rng) <= 0.5
    assert 15 <= delay(10_000, base=0.5, cap=30, rng=rng) <= 30
