"""A mirror against a server that fails in every way that was seen to break others."""

import asyncio
import contextlib
import gc
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tests.kube.conftest import until
from tests.kube.scripted import PATH, ScriptedServer, Stream, status
from versionedconfig.kube.api import METADATA_ONLY, METADATA_ONLY_LIST, Api, ApiError
from versionedconfig.kube.mirror import Mirror, MirrorSettings, Resource, tune_gc
from versionedconfig.model import ObjectKey


class Meta(msgspec.Struct):
    name: str
    namespace: str
    uid: str
    resourceVersion: str


class Spec(msgspec.Struct):
    node: str = ""


class PodItem(msgspec.Struct):
    metadata: Meta
    spec: Spec = msgspec.field(default_factory=Spec)


@dataclass(frozen=True, slots=True)
class Pod:
    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str = ""


def project(item: PodItem) -> Pod:
    meta = item.metadata
    return Pod(meta.namespace, meta.name, meta.uid, meta.resourceVersion, item.spec.node)


PODS = Resource(name="pods", path=PATH, item=PodItem, project=project, page_limit=2)
# Long enough for a slow machine, and no test waits for it unless the stream is silent.
SETTINGS = MirrorSettings(silence_seconds=3, backoff=(0.5, 30))


@dataclass
class Observed:
    """A running mirror, what it reported, and how long it would have waited."""

    mirror: Mirror[Pod]
    deltas: list[str] = field(default_factory=list)
    told: dict[ObjectKey, str] = field(default_factory=dict)
    """What somebody knows who only listens."""
    pauses: list[float] = field(default_factory=list)

    def on_change(self, old: Pod | None, new: Pod | None) -> None:
        either = old or new
        assert either is not None
        key = ObjectKey(either.namespace, either.name)
        assert self.told.get(key, "") == (old.uid if old else "")
        if new is None:
            del self.told[key]
        else:
            self.told[key] = new.uid
        sign = "+" if old is None else "-" if new is None else "~"
        self.deltas.append(sign + either.name)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


Run = Callable[..., contextlib.AbstractAsyncContextManager[Observed]]


@pytest.fixture
def run(server: ScriptedServer, api: Api) -> Run:
    """Starts a mirror, waits for its first watch, and stops it in the end."""

    @contextlib.asynccontextmanager
    async def running(
        resource: Resource[Pod] = PODS, settings: MirrorSettings = SETTINGS, *, watching: bool = True
    ) -> AsyncIterator[Observed]:
        observed = Observed(None)  # type: ignore[arg-type]  # the two know each other
        observed.mirror = Mirror(
            api, resource, observed.on_change, settings=settings, rng=random.Random(1), sleep=observed.sleep
        )
        task = asyncio.create_task(observed.mirror.run())
        try:
            if watching:
                await observed.mirror.wait_synced()
                await until(lambda: server.streams or task.done())
            yield observed
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return running


def names(observed: Observed) -> list[str]:
    assert set(observed.told) == set(observed.mirror.objects)
    return sorted(key.name for key in observed.mirror.objects)


async def next_stream(server: ScriptedServer, number: int) -> Stream:
    await until(lambda: len(server.streams) >= number)
    return server.streams[number - 1]


# --- the failures that others do not survive


async def test_410_on_a_watch_reports_what_was_deleted_meanwhile(server: ScriptedServer, run: Run) -> None:
    server.put("a")
    server.put("b")
    async with run() as observed:
        server.deaf = True
        server.remove("a")
        server.put("c")
        server.compact()
        server.deaf = False
        await server.streams[0].error(410, "Expired")
        await until(lambda: observed.mirror.counters.lists == 2)

        assert names(observed) == ["b", "c"]
        assert observed.deltas == ["+a", "+b", "+c", "-a"]
        assert observed.mirror.counters.expired == 1


async def test_410_as_the_answer_to_a_watch_lists_again(server: ScriptedServer, run: Run) -> None:
    server.put("a")
    server.fail("watch", 410, status(410, "Expired"))
    async with run() as observed:
        await until(lambda: observed.mirror.counters.lists == 2)

        assert observed.deltas == ["+a"]
        assert len(observed.pauses) == 1  # nothing was heard: not a tight loop of lists


async def test_error_500_in_the_stream_is_retried_neither_deaf_nor_dead(
    server: ScriptedServer, run: Run
) -> None:
    async with run() as observed:
        await server.streams[0].error(500, "InternalError")
        await next_stream(server, 2)
        server.put("a")
        await until(lambda: names(observed) == ["a"])

        assert observed.mirror.counters.lists == 1
        assert observed.mirror.counters.watches == {"listed": 1, "error": 1}


async def test_410_on_the_second_page_starts_over(server: ScriptedServer, run: Run) -> None:
    for name in "abcde":
        server.put(name)

    def expire(_: object) -> None:
        if len(server.asked("list")) == 2:
            server.remove("a")
            server.compact()

    server.before = expire
    async with run() as observed:
        assert names(observed) == list("bcde")
        assert observed.deltas == ["+a", "+b", "+c", "+d", "+e", "-a"]
        assert [request.query.get("continue", "")[-2:] for request in server.asked("list")] == [
            "",
            ":2",
            "",
            ":2",
        ]


async def test_a_connection_cut_before_anything_came_loses_nothing(server: ScriptedServer, run: Run) -> None:
    server.put("a")
    server.deaf = True
    async with run() as observed:
        server.put("b")
        server.remove("a")
        server.streams[0].cut()
        server.deaf = False
        await until(lambda: names(observed) == ["b"])

        assert observed.mirror.counters.lists == 1
        assert observed.mirror.counters.watches["cut"] >= 1


async def test_a_silent_stream_is_cut_and_resumed(server: ScriptedServer, run: Run) -> None:
    server.deaf = True
    async with run(settings=MirrorSettings(silence_seconds=0.02)) as observed:
        server.put("a")
        await until(lambda: observed.mirror.counters.watches["silent"] >= 2)
        server.deaf = False
        await until(lambda: names(observed) == ["a"])

        assert observed.mirror.counters.lists == 1


# --- the twelve points


async def test_1_lists_in_pages_and_gives_way_between_them(server: ScriptedServer, run: Run) -> None:
    for name in "abcde":
        server.put(name)
    async with run() as observed:
        lists = server.asked("list")

        assert names(observed) == list("abcde")
        assert [request.query["limit"] for request in lists] == ["2", "2", "2"]
        assert all("resourceVersion" not in request.query for request in lists)


async def test_1_a_failed_page_is_repeated_alone(server: ScriptedServer, run: Run) -> None:
    for name in "abcde":
        server.put(name)

    def fail(_: object) -> None:
        if len(server.asked("list")) == 2:
            server.fail("list", 429, Retry_After="7")

    server.before = fail
    async with run() as observed:
        assert names(observed) == list("abcde")
        assert [request.query.get("continue", "")[-2:] for request in server.asked("list")] == [
            "",
            ":2",
            ":2",
            ":4",
        ]
        assert observed.pauses == [7]
        assert observed.mirror.counters.list_errors == 1


async def test_2_a_new_list_replaces_through_the_same_path(server: ScriptedServer, run: Run) -> None:
    for name in "abc":
        server.put(name)
    async with run() as observed:
        server.deaf = True
        for name in "abc":
            server.remove(name)
        await server.streams[0].error(410, "Expired")
        await until(lambda: observed.mirror.counters.lists == 2)

        assert observed.deltas == ["+a", "+b", "+c", "-a", "-b", "-c"]
        assert observed.mirror.objects == {}


async def test_3_watches_from_the_list_with_bookmarks_and_a_random_end(
    server: ScriptedServer, run: Run
) -> None:
    server.put("a")
    async with run():
        (watch,) = server.asked("watch")

        assert watch.query["resourceVersion"] == "11"
        assert watch.query["allowWatchBookmarks"] == "true"
        assert 300 <= int(watch.query["timeoutSeconds"]) <= 600
    assert 70 <= MirrorSettings().silence_seconds <= 90


async def test_3_resumes_from_the_last_bookmark_without_a_list_or_a_pause(
    server: ScriptedServer, run: Run
) -> None:
    async with run() as observed:
        await server.streams[0].bookmark(77)
        await until(lambda: observed.mirror.counters.events["BOOKMARK"])
        server.streams[0].end()
        await next_stream(server, 2)

        assert [request.query["resourceVersion"] for request in server.asked("watch")] == ["10", "77"]
        assert len(server.asked("list")) == 1
        assert observed.mirror.counters.watches == {"listed": 1, "ended": 1}
        assert observed.pauses == []


async def test_3_resumes_from_the_last_event_after_a_cut(server: ScriptedServer, run: Run) -> None:
    async with run() as observed:
        server.put("a")
        server.put("b")
        server.remove("a")
        await until(lambda: observed.deltas == ["+a", "+b", "-a"])
        server.streams[0].cut()
        await next_stream(server, 2)

        assert server.asked("watch")[1].query["resourceVersion"] == "13"
        assert observed.pauses == []


async def test_3_other_failures_back_off_with_jitter(server: ScriptedServer, run: Run) -> None:
    for _ in range(8):
        server.fail("watch", 503)
    async with run() as observed:
        for attempt, pause in enumerate(observed.pauses):
            full = min(30, 0.5 * 2**attempt)
            assert full / 2 <= pause <= full
        assert len(observed.pauses) == 8
        assert len({pause / 2**attempt for attempt, pause in enumerate(observed.pauses)}) == 8

        # Something heard: from the shortest again.
        server.put("a")
        await until(lambda: observed.deltas)
        await server.streams[0].error(500)
        await next_stream(server, 2)
        assert observed.pauses[8] <= 0.5


async def test_3_retry_after_is_honoured_in_headers_and_in_the_stream(
    server: ScriptedServer, run: Run
) -> None:
    server.fail("list", 429, Retry_After="11")
    server.fail("watch", 429, Retry_After="12")
    async with run() as observed:
        await server.streams[0].error(504, "Timeout", retryAfterSeconds=13)
        await next_stream(server, 2)

        assert observed.pauses == [11, 12, 13]


async def test_3_streams_that_end_at_once_are_no_tight_loop(server: ScriptedServer, run: Run) -> None:
    for _ in range(5):
        server.fail("watch", 200, b"")
    async with run() as observed:
        assert len(observed.pauses) == 5


async def test_3_a_version_from_the_future_lists_again(server: ScriptedServer, run: Run) -> None:
    """After a restore of etcd the API server is behind us, and would be for long."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    server.fail("watch", 504, status(504, "Timeout", causes=causes))
    async with run() as observed:
        assert observed.mirror.counters.lists == 2


async def test_3_garbage_in_the_stream_is_resumed_after_what_came_before(
    server: ScriptedServer, run: Run
) -> None:
    server.deaf = True
    async with run() as observed:
        line = json.dumps({"type": "ADDED", "object": server.put("a")}).encode()
        await server.streams[0].raw(line + b"\n<html>\n")
        await next_stream(server, 2)

        assert observed.deltas == ["+a"]
        assert server.asked("watch")[1].query["resourceVersion"] == "11"


async def test_4_another_uid_under_one_name_is_a_deletion_and_an_addition(
    server: ScriptedServer, run: Run
) -> None:
    server.put("a", uid="one")
    async with run() as observed:
        server.put("a", uid="two")
        await until(lambda: observed.deltas == ["+a", "-a", "+a"])

        assert observed.told == {ObjectKey("shop", "a"): "two"}


async def test_4_the_deletion_of_another_uid_is_not_ours(server: ScriptedServer, run: Run) -> None:
    pod = server.put("a", uid="two")
    async with run() as observed:
        stranger = {**pod, "metadata": {**pod["metadata"], "uid": "one"}}
        await server.streams[0].send("DELETED", stranger)
        await until(lambda: observed.mirror.counters.events["DELETED"])

        assert names(observed) == ["a"]


async def test_5_selectors_go_to_the_server_and_a_lost_match_is_a_deletion(
    server: ScriptedServer, run: Run
) -> None:
    selected = Resource(
        name="pods",
        path=PATH,
        item=PodItem,
        project=project,
        field_selector="a!=b,c!=d",
        label_selector="x in (y,z)",
    )
    server.put("a")
    async with run(selected) as observed:
        for request in server.asked("list") + server.asked("watch"):
            assert request.query["fieldSelector"] == "a!=b,c!=d"
            assert request.query["labelSelector"] == "x in (y,z)"
        server.remove("a")  # what the API server sends when an object stops matching
        await until(lambda: observed.deltas == ["+a", "-a"])


async def test_6_metadata_only_by_content_negotiation(server: ScriptedServer, run: Run) -> None:
    async with run(Resource(name="pods", path=PATH, item=PodItem, project=project, metadata_only=True)):
        assert {request.headers["Accept"] for request in server.asked("list")} == {METADATA_ONLY_LIST}
        assert {request.headers["Accept"] for request in server.asked("watch")} == {METADATA_ONLY}


async def test_7_an_equal_projection_is_silent_but_its_version_is_kept(
    server: ScriptedServer, run: Run
) -> None:
    server.put("a", node="one")
    async with run() as observed:
        server.put("a", node="one")
        server.put("a", node="one")
        await until(lambda: observed.mirror.counters.events["MODIFIED"] == 2)
        kept = observed.mirror.get(ObjectKey("shop", "a"))
        assert kept is not None
        assert kept.resource_version == "13"
        assert observed.deltas == ["+a"]

        server.put("a", node="two")
        await until(lambda: observed.deltas == ["+a", "~a"])


class StructPod(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    resource_version: str


async def test_7_msgspec_projections_are_compared_alike(server: ScriptedServer, api: Api) -> None:
    changes: list[StructPod | None] = []

    def make(item: PodItem) -> StructPod:
        return StructPod(
            item.metadata.namespace, item.metadata.name, item.metadata.uid, item.metadata.resourceVersion
        )

    mirror = Mirror(
        api,
        Resource(name="pods", path=PATH, item=PodItem, project=make),
        lambda old, new: changes.append(new),
    )
    server.put("a")
    task = asyncio.create_task(mirror.run())
    await until(lambda: server.streams)
    server.put("a", node="two")
    await until(lambda: mirror.counters.events["MODIFIED"])
    task.cancel()

    assert len(changes) == 1


async def test_7_namespaces_are_shared_between_keys(server: ScriptedServer, run: Run) -> None:
    server.put("a")
    server.put("b")
    async with run() as observed:
        first, second = observed.mirror.objects
        assert first.namespace is second.namespace
        assert first.name is observed.mirror.objects[first].name


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_8_the_garbage_collector_runs_less_often() -> None:
    gc.set_threshold(700, 10, 10)
    tune_gc()
    assert gc.get_threshold()[0] >= 50_000


async def test_9_a_failing_handler_ends_the_mirror(
    server: ScriptedServer, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """What it built from the mirror is wrong from then on; a deaf process would be worse than none."""

    def fail(old: Pod | None, new: Pod | None) -> None:
        raise ValueError("index")

    server.put("a")
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="index"):
        await Mirror(api, PODS, fail).run()

    assert [record.getMessage() for record in caplog.records] == ["change handler failed"]


async def test_10_synced_only_after_a_complete_list(server: ScriptedServer, run: Run) -> None:
    for name in "abc":
        server.put(name)
    synced: list[bool] = []
    async with run(watching=False) as observed:
        server.before = lambda request: synced.append(observed.mirror.synced)
        await observed.mirror.wait_synced()
        await until(lambda: server.streams)

        assert synced == [False, False, True]  # two pages, then the watch


def rotate(kubeconfig: Path) -> None:
    (kubeconfig.parent / "token").write_text("second")


async def test_11_a_token_that_rotated_is_read_again(
    server: ScriptedServer, run: Run, kubeconfig: Path
) -> None:
    async with run() as observed:
        server.token = "second"
        await server.streams[0].bookmark(50)
        await until(lambda: observed.mirror.counters.events["BOOKMARK"])
        rotate(kubeconfig)
        server.streams[0].end()
        await next_stream(server, 2)

        assert observed.mirror.counters.watches == {"listed": 1, "ended": 1}


FORBIDDEN = status(403, "Forbidden", "pods is forbidden: User ... cannot")


@pytest.mark.parametrize(("verb", "times"), [("list", 1), ("watch", 9)])
async def test_11_missing_rights_end_it_with_one_clear_line(
    server: ScriptedServer, api: Api, verb: str, times: int
) -> None:
    """At once where nothing was ever allowed, after about a minute where something was."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    for _ in range(times):
        server.fail(verb, 403, FORBIDDEN)

    with pytest.raises(ApiError, match=f"the ServiceAccount lacks the verb {verb} on pods"):
        await Mirror(api, PODS, lambda old, new: None, sleep=sleep).run()

    assert len(pauses) == times - 1
    assert not server.failures[verb]


async def test_11_an_api_server_that_has_not_read_its_roles_yet_is_waited_for(
    server: ScriptedServer, run: Run
) -> None:
    """Seen after restarts: for some seconds everything is forbidden, the watch and the list."""
    async with run() as observed:
        server.put("a")
        await until(lambda: observed.deltas)
        for verb in ("watch", "watch", "list"):
            server.fail(verb, 403, FORBIDDEN)
        server.streams[0].cut()
        await next_stream(server, 2)
        server.put("b")
        await until(lambda: names(observed) == ["a", "b"])

        assert len(observed.pauses) == 2


async def test_11_credentials_that_stay_wrong_end_it(server: ScriptedServer, api: Api) -> None:
    server.token = "other"

    with pytest.raises(ApiError, match="does not accept our credentials"):
        await Mirror(api, PODS, lambda old, new: None).run()


async def test_12_counts_and_times(server: ScriptedServer, api: Api) -> None:
    now = 100.0
    mirror = Mirror(api, PODS, lambda old, new: None, clock=lambda: now)
    server.put("a")
    task = asyncio.create_task(mirror.run())
    await until(lambda: server.streams)
    assert mirror.last_heard == 100
    assert mirror.counters.lists == 1

    now = 130.0
    await server.streams[0].bookmark(60)
    await until(lambda: mirror.last_heard == 130)

    server.put("b")
    server.remove("b")
    await until(lambda: mirror.counters.events["DELETED"])
    task.cancel()

    assert mirror.counters.events == {"BOOKMARK": 1, "ADDED": 1, "DELETED": 1}
    assert mirror.counters.watches == {"listed": 1}
    assert mirror.counters.list_errors == 0


# -- kinds that may be absent ----------------------------------------------------------------------------------------

OPTIONAL = Resource(name="pods", path=PATH, item=PodItem, project=project, may_be_absent=True)


async def test_a_kind_that_is_not_served_is_synced_and_asked_for_again(
    server: ScriptedServer, run: Run
) -> None:
    server.fail("list", 404)
    server.fail("list", 404)
    server.put("a")

    async with run(OPTIONAL) as observed:
        assert observed.mirror.synced
        await until(lambda: observed.deltas == ["+a"])

    assert observed.mirror.counters.absences == 2
    assert observed.mirror.counters.list_errors == 0
    absent = SETTINGS.absent_seconds
    assert all(0.75 * absent <= pause <= 1.25 * absent for pause in observed.pauses)


async def test_the_objects_of_a_kind_go_with_it(server: ScriptedServer, run: Run) -> None:
    """Its definition was deleted: the watch ends, and neither it nor the list is served any more."""
    server.put("a")
    async with run(OPTIONAL) as observed:
        assert observed.deltas == ["+a"]
        server.fail("watch", 404)
        server.fail("list", 404)
        server.deaf = True
        server.remove("a")
        server.streams[-1].end()
        await until(lambda: observed.deltas == ["+a", "-a"])
        assert observed.mirror.counters.absences == 1


async def test_a_kind_that_must_be_there_is_no_absence(server: ScriptedServer, run: Run) -> None:
    server.put("a")
    server.fail("list", 404)

    async with run() as observed:
        assert observed.deltas == ["+a"]
        assert observed.mirror.counters.list_errors == 1
