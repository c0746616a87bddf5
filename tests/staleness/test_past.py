"""The search through earlier versions, against an API that is a list of states."""

from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.kube.api import Api, ApiError, Page
from versionedconfig.model import ConfigKey
from versionedconfig.projection import ConfigItem
from versionedconfig.staleness.past import look_back

KEY = ConfigKey("ConfigMap", "shop", "app")


class States:
    """Which object has the name from each version on, as (version, uid); an empty uid for none."""

    def __init__(self, states: list[tuple[int, str]], newest: int, compacted: int) -> None:
        self.states = states
        self.newest = newest
        self.compacted = compacted
        self.asked = 0

    def uid(self, version: int) -> str:
        return next((uid for since, uid in reversed(self.states) if since <= version), "")

    async def list_page(self, path: str, *, resource_version: str = "", **_: Any) -> Page[Any]:
        self.asked += 1
        version = int(resource_version or self.newest)
        assert 0 < version <= self.newest
        if version < self.compacted:
            raise ApiError(410, "Expired", "compacted")
        uid = self.uid(version) if "configmaps" in path else ""
        meta = {"name": "app", "namespace": "shop", "uid": uid, "resourceVersion": str(version)}
        return Page([msgspec.convert({"metadata": meta}, ConfigItem)] if uid else [], str(self.newest), "")

    async def list_pages(self, path: str, **more: Any) -> AsyncIterator[Page[Any]]:
        yield await self.list_page(path, **more)


async def found(states: States, live: str) -> str | None:
    past = await look_back(cast(Api, states), KEY, live)
    return past.life.uid if past is not None else None


@given(
    before=st.integers(0, 2000),
    more=st.integers(0, 500_000),
    away=st.integers(0, 5000),
    since=st.integers(1, 50_000),
    back=st.booleans(),
)
async def test_it_finds_what_was_there_before(
    before: int, more: int, away: int, since: int, back: bool
) -> None:
    """If it was there at least as long as the name was free."""
    gone = 1 + before + more + 1 + away + (0 if back else since)
    states = [(1 + before, "A"), (gone, "")]
    if back:
        states.append((gone + away, "B"))
    api = States(states, gone + away + since, compacted=1)

    assert await found(api, "B" if back else "") == "A"
    assert api.asked < 150


@given(gone=st.integers(1000, 100_000), away=st.integers(1, 1000), late=st.integers(0, 500))
async def test_what_is_compacted_is_not_known(gone: int, away: int, late: int) -> None:
    api = States([(1, "A"), (gone, ""), (gone + away, "B")], gone + away + 5000, compacted=gone + late)

    assert await found(api, "B") is None


async def test_a_name_that_was_never_used_before() -> None:
    assert await found(States([(500, "B")], 1000, compacted=1), "B") is None
    assert await found(States([], 1000, compacted=1), "") is None
