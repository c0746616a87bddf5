"""Following one resource over watches that break."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tests.kube.conftest import api, kubeconfig, server, until  # noqa: F401
from tests.kube.scripted import PATH, ScriptedServer
from versionedconfig.commands.configs import Refused
from versionedconfig.commands.status import states
from versionedconfig.kube.api import Api, ApiError
from versionedconfig.model import ObjectKey

KEY = ObjectKey("shop", "app")


class Follower:
    """What it was told, by resource version."""

    def __init__(self, api: Api) -> None:  # noqa: F811
        self.seen: list[str] = []
        self.task = asyncio.create_task(self._follow(api))

    async def _follow(self, api: Api) -> None:  # noqa: F811
        async with aclosing(states(api, KEY, PATH)) as found:
            async for config in found:
                self.seen.append(config.metadata.resource_version)

    async def told(self, server: ScriptedServer) -> None:  # noqa: F811
        """Of the newest state."""
        await until(lambda: self.seen and self.seen[-1] == str(server.version))


@pytest.fixture
async def follower(api: Api, server: ScriptedServer) -> AsyncIterator[Follower]:  # noqa: F811
    server.put("app")
    made = Follower(api)
    await until(lambda: server.streams)
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_it_goes_on_when_a_watch_ends_or_breaks(follower: Follower, server: ScriptedServer) -> None:  # noqa: F811
    server.put("app", step=1)
    await follower.told(server)
    server.streams[-1].end()
    server.put("app", step=2)
    await follower.told(server)
    await until(lambda: len(server.streams) == 2)
    server.streams[-1].cut()
    server.put("app", step=3)
    await follower.told(server)


async def test_what_was_forgotten_is_listed_again(follower: Follower, server: ScriptedServer) -> None:  # noqa: F811
    await follower.told(server)
    await server.streams[-1].error(410, "Expired")
    server.put("app", step=1)
    await follower.told(server)


async def test_a_server_that_is_away_for_a_moment_is_waited_for(
    follower: Follower,
    server: ScriptedServer,  # noqa: F811
) -> None:
    server.fail("list", 503)
    server.streams[-1].end()
    server.put("app", step=1)
    await follower.told(server)


@pytest.mark.parametrize("away", [True, False])
async def test_a_deletion_is_the_end(follower: Follower, server: ScriptedServer, away: bool) -> None:  # noqa: F811
    server.deaf = away
    server.remove("app")
    if away:
        # Another one of that name is another story.
        server.put("app")
        server.streams[-1].end()
    await asyncio.wait_for(follower.task, 5)
    assert len(follower.seen) == 1


async def test_a_right_that_is_taken_away_is_told(follower: Follower, server: ScriptedServer) -> None:  # noqa: F811
    server.fail("list", 403)
    server.streams[-1].end()
    with pytest.raises(Refused, match="you may not list and watch"):
        await asyncio.wait_for(follower.task, 5)


async def test_a_server_that_never_answered_is_not_asked_again(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    server.fail("list", 503)
    with pytest.raises(ApiError):
        await Follower(api).task
    assert len(server.asked("list")) == 1
