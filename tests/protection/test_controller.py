"""Releasing fails closed: what the controller asks and writes, against the scripted server."""

import json
from typing import Any

import pytest

from tests.kube.conftest import api, kubeconfig, server  # noqa: F401 - fixtures
from tests.kube.scripted import Answer, ScriptedServer, status
from versionedconfig.kube.api import Api, ApiError
from versionedconfig.live import LiveLists
from versionedconfig.model import IN_USE_FINALIZER, ConfigKey, Incarnation, ObjectKey
from versionedconfig.observability.metrics import Metrics
from versionedconfig.protection.controller import ProtectionController
from versionedconfig.references import Kept
from versionedconfig.settings import Settings
from versionedconfig.view import View

LIVE_LIST = "/api/v1/namespaces/shop/pods"


class Fixture:
    """A controller whose view holds unused, protected incarnations, with the clock in the test's hands."""

    def __init__(self, api: Api, server: ScriptedServer) -> None:  # noqa: F811
        self.server = server
        self.now = 0.0
        self.view = View(api)
        self.metrics = Metrics()
        settings = Settings(linger_seconds=10)
        live = LiveLists(api, lambda: ())
        self.controller = ProtectionController(
            api, self.view, live, settings, self.metrics, clock=lambda: self.now
        )

    def protected(self, name: str) -> ConfigKey:
        key = ConfigKey("ConfigMap", "shop", name)
        life = Incarnation(key, f"uid-{name}", "7", immutable=True, in_use=True)
        self.view.config_maps._upsert(life)  # what a list page does; there is no collection to list here
        return key

    def live_pods(self, *names: str) -> None:
        """The next live list shows pods that mount these ConfigMaps."""
        meta = {"name": "p", "namespace": "shop", "uid": "u", "resourceVersion": "9"}
        pods = [{"metadata": meta, "spec": {"volumes": [{"configMap": {"name": name}}]}} for name in names]
        body: dict[str, Any] = {"metadata": {"resourceVersion": "9"}, "items": pods}
        self.server.failures["get"].append(Answer(200, body))

    async def unused_for(self, seconds: float, *keys: ConfigKey) -> None:
        await self.controller.reconcile("shop", list(keys))
        assert not self.server.requests
        self.now += seconds

    @property
    def asked(self) -> list[str]:
        return [request.path for request in self.server.requests if request.verb == "get"]

    @property
    def patches(self) -> dict[str, Any]:
        return {
            request.path.rpartition("/")[2]: json.loads(request.body)
            for request in self.server.asked("patch")
        }


@pytest.fixture
async def fixture(api: Api, server: ScriptedServer) -> Fixture:  # noqa: F811
    return Fixture(api, server)


async def test_released_after_lingering_and_a_live_list(fixture: Fixture) -> None:
    key = fixture.protected("app")
    await fixture.unused_for(10, key)
    fixture.live_pods("other")

    await fixture.controller.reconcile("shop", [key])

    assert fixture.asked == [LIVE_LIST]
    selector = fixture.server.requests[0].query
    assert selector["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"
    assert "resourceVersion" not in selector  # a consistent read, not the watch cache
    assert fixture.patches == {
        "app": {
            "metadata": {
                "uid": "uid-app",
                "resourceVersion": "7",
                "$deleteFromPrimitiveList/finalizers": [IN_USE_FINALIZER],
            }
        }
    }


async def test_not_before_the_lingering_time(fixture: Fixture) -> None:
    key = fixture.protected("app")
    await fixture.unused_for(9, key)

    await fixture.controller.reconcile("shop", [key])

    assert not fixture.server.requests


@pytest.mark.parametrize("code", [403, 429, 500, 503])
async def test_an_error_in_the_live_list_releases_nothing(fixture: Fixture, code: int) -> None:
    """G23"""
    key = fixture.protected("app")
    await fixture.unused_for(60, key)
    fixture.server.fail("get", code)

    with pytest.raises(ApiError):
        await fixture.controller.reconcile("shop", [key])

    assert not fixture.patches
    assert fixture.metrics.registry.get_sample_value("versionedconfig_usage_check_errors_total") == 1
    fixture.live_pods()
    await fixture.controller.reconcile("shop", [key])
    assert list(fixture.patches) == ["app"]


async def test_an_error_on_the_second_page_releases_nothing(fixture: Fixture) -> None:
    """G23: what the first page did not name may be on the second."""
    key = fixture.protected("app")
    await fixture.unused_for(60, key)
    fixture.server.failures["get"].append(
        Answer(200, {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": []})
    )
    fixture.server.failures["get"].append(Answer(410, status(410, "Expired")))

    with pytest.raises(ApiError):
        await fixture.controller.reconcile("shop", [key])

    assert not fixture.patches


async def test_a_pod_that_only_the_live_list_knows_holds(fixture: Fixture) -> None:
    """G24: the index lags behind the API server."""
    key = fixture.protected("app")
    await fixture.unused_for(60, key)
    fixture.live_pods("app")

    await fixture.controller.reconcile("shop", [key])

    assert not fixture.patches
    assert fixture.controller.queue.delayed == 1


async def test_a_pod_that_came_during_the_live_list_holds(fixture: Fixture) -> None:
    key = fixture.protected("app")
    await fixture.unused_for(60, key)
    fixture.live_pods()
    pod = Kept("shop", "new", "u", "9", (key,))
    fixture.server.before = lambda _: fixture.view.holders.put("pods", ObjectKey("shop", "new"), pod)

    await fixture.controller.reconcile("shop", [key])

    assert not fixture.patches


async def test_many_releases_cost_one_live_list(fixture: Fixture) -> None:
    """G30"""
    keys = [fixture.protected(f"app-{i}") for i in range(50)]
    await fixture.unused_for(60, *keys)
    fixture.live_pods("app-3", "app-4")

    await fixture.controller.reconcile("shop", keys)

    assert fixture.asked == [LIVE_LIST]
    assert len(fixture.patches) == 48
    assert not {"app-3", "app-4"} & set(fixture.patches)


async def test_another_life_lingers_anew(fixture: Fixture) -> None:
    key = fixture.protected("app")
    await fixture.unused_for(60, key)
    again = Incarnation(key, "uid-2", "8", immutable=True, in_use=True)
    fixture.view.config_maps._upsert(again)

    await fixture.controller.reconcile("shop", [key])

    assert not fixture.server.requests
