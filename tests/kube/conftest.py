"""A scripted server and an Api that talks to it, authenticated by a kubeconfig as a person would be."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.kube.scripted import ScriptedServer
from versionedconfig.kube.api import Api


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer().serving() as running:
        yield running


@pytest.fixture
def kubeconfig(server: ScriptedServer, tmp_path: Path) -> Path:
    """With a token file beside it, as a rotating credential has."""
    (tmp_path / "token").write_text("first\n")
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server.url}}],
        "users": [{"name": "test", "user": {"tokenFile": "token"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Api]:
    connected = await Api.connect(str(kubeconfig))
    yield connected
    await connected.close()


async def until(condition: Callable[[], object]) -> None:
    """Returns once it holds; a test that waits for ever fails by its timeout."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # the condition is about the other side of a socket
            await asyncio.sleep(0.001)
