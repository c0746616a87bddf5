"""Whatever happens to objects, lists and watches: in the end the mirror is the server, and so is the sum of what
it reported."""

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from versionedconfig.kube.api import Api, ApiError, Page, WatchEvent
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import ObjectKey


@dataclass(frozen=True, slots=True)
class Thing:
    namespace: str
    name: str
    uid: str
    resource_version: str
    content: int


class Item(msgspec.Struct):
    thing: Thing


NAMES = st.sampled_from("abcd")
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("replace"), NAMES, st.integers(0, 1)),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("compact")),
    st.tuples(st.sampled_from(["cut", "end", "error", "bookmark", "page"])),
)


class History:
    """An API server as a list of changes; each request and each event uses up steps of the script."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps
        self.done = asyncio.Event()
        self.version = 1
        self.oldest = 1
        self.live: dict[str, Thing] = {}
        self.changes: list[tuple[int, str, Thing]] = []
        self.snapshot: list[Thing] = []
        self.snapshot_version = 0

    def step(self) -> str:
        """Plays one step; returns what it does to the one who asks."""
        if not self.steps:
            return "idle"
        what, *arguments = self.steps.pop(0)
        if what in ("put", "replace"):
            name, content = arguments
            self.version += 1
            old = self.live.get(name)
            uid = old.uid if old and what == "put" else f"uid-{self.version}"
            self.live[name] = Thing("ns", name, uid, str(self.version), content)
            self.changes.append((self.version, "MODIFIED" if old else "ADDED", self.live[name]))
        elif what == "remove" and arguments[0] in self.live:
            self.version += 1
            old = self.live.pop(arguments[0])
            gone = Thing(old.namespace, old.name, old.uid, str(self.version), old.content)
            self.changes.append((self.version, "DELETED", gone))
        elif what == "compact":
            self.oldest = self.version
        return str(what)

    async def list_page(self, path: str, *, limit: int, continue_token: str, **_: Any) -> Page[Item]:
        what = self.step()
        if what in ("cut", "error"):
            raise ApiError(0 if what == "cut" else 500, "Scripted")
        if not continue_token:
            self.snapshot, self.snapshot_version = list(self.live.values()), self.version
        elif what == "compact":
            raise ApiError(410, "Expired")
        start = int(continue_token or 0)
        token = str(start + limit) if start + limit < len(self.snapshot) else ""
        items = [Item(thing) for thing in self.snapshot[start : start + limit]]
        return Page(items, str(self.snapshot_version), token)

    async def watch(
        self, path: str, *, resource_version: str, **_: Any
    ) -> AsyncGenerator[list[WatchEvent[Item]], None]:
        sent = int(resource_version)
        if sent < self.oldest:
            raise ApiError(410, "Expired")
        while True:
            what = self.step()
            if what in ("cut", "error"):
                raise ApiError(0 if what == "cut" else 500, "Scripted")
            if what == "end":
                return
            if what == "page" and sent < self.version:
                continue  # events pile up and come together later
            batch = [WatchEvent(type_, Item(thing)) for at, type_, thing in self.changes if at > sent]
            sent = self.version
            if what == "bookmark":
                batch.append(WatchEvent("BOOKMARK", None, str(sent)))
            if batch:
                yield batch
            if what == "idle":
                self.done.set()
                await asyncio.Event().wait()


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=60), st.integers(1, 3))
def test_the_mirror_becomes_the_server(steps: list[Any], page_limit: int) -> None:
    told: dict[ObjectKey, Thing] = {}

    def listen(old: Thing | None, new: Thing | None) -> None:
        either = old or new
        assert either is not None
        key = ObjectKey(either.namespace, either.name)
        known = told.pop(key, None)
        assert (known is None) == (old is None)
        if known and old:
            assert (known.uid, known.content) == (old.uid, old.content)
        if new is not None:
            told[key] = new
            if old is not None:
                assert old.uid == new.uid
                assert old.content != new.content

    async def play() -> None:
        history = History(steps)

        async def no_time(_: float) -> None:
            await asyncio.sleep(0)

        mirror = Mirror(
            cast(Api, history),
            Resource(
                name="things",
                path="/things",
                item=Item,
                project=lambda item: item.thing,
                page_limit=page_limit,
            ),
            listen,
            rng=random.Random(0),
            sleep=no_time,
        )
        task = asyncio.create_task(mirror.run())
        done = asyncio.create_task(history.done.wait())
        await asyncio.wait((task, done), return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        task.cancel()

        truth = {ObjectKey("ns", name): thing for name, thing in history.live.items()}
        assert dict(mirror.objects) == truth
        assert {key: (t.uid, t.content) for key, t in told.items()} == {
            key: (t.uid, t.content) for key, t in truth.items()
        }

    asyncio.run(play())
