"""Releasing fails closed: what the controller asks and writes, against the scripted server."""

import json
from typing import Any

import pytest

from tests.kube.conftest import api, kubeconfig, server  # noqa: F401 - fixtures
from tests.kube.scripted import Answer, ScriptedServer, status
from versionedconfig.kube.api import Api
from versionedconfig.live import LiveLists
from versionedconfig.model import (
    IN_USE_FINALIZER,
    QUARANTINE_ANNOTATION,
    ConfigKey,
    Incarnation,
    Node,
    ObjectKey,
)
from versionedconfig.observability.metrics import Metrics
from versionedconfig.projection import Namespace
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
        settings = Settings(linger_seconds=10)
        self.view = View(api, settings)
        self.metrics = Metrics()
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


# -- losses ----------------------------------------------------------------------------------------------------------


def bypasses(fixture: Fixture) -> dict[str, float]:
    """What was counted, by how."""
    return {
        how: fixture.metrics.registry.get_sample_value(
            "versionedconfig_finalizer_bypasses_total", {"how": how}
        )
        or 0
        for how in ("stripped", "race")
    }


def held_by_a_pod(fixture: Fixture, key: ConfigKey) -> None:
    pod = Kept("shop", "holder", "u", "9", (key,))
    fixture.view.holders.put("pods", ObjectKey("shop", "holder"), pod)


async def test_an_object_in_use_that_vanishes_is_counted(fixture: Fixture) -> None:
    """G20"""
    key = fixture.protected("app")
    held_by_a_pod(fixture, key)
    fixture.controller.enqueue(key)

    fixture.view.config_maps._remove(ObjectKey("shop", "app"))
    fixture.controller.enqueue(key)
    fixture.controller.enqueue(key)

    assert bypasses(fixture) == {"stripped": 1, "race": 0}


async def test_a_deletion_that_won_against_our_patch_is_counted(fixture: Fixture) -> None:
    """k/k#77988: the patch was answered with 200, and the object is gone without ever having shown the finalizer."""
    key = ConfigKey("ConfigMap", "shop", "app")
    fixture.view.config_maps._upsert(Incarnation(key, "uid-app", "7", immutable=True))
    held_by_a_pod(fixture, key)
    await fixture.controller.reconcile("shop", [key])
    assert list(fixture.patches) == ["app"]

    again = Incarnation(key, "uid-2", "9", immutable=True)
    fixture.view.config_maps._upsert(again)
    fixture.controller.enqueue(key)

    assert bypasses(fixture) == {"stripped": 0, "race": 1}


async def test_what_was_released_or_is_no_longer_held_is_no_loss(fixture: Fixture) -> None:
    released, unheld = fixture.protected("released"), fixture.protected("unheld")
    for key in (released, unheld):
        fixture.controller.enqueue(key)
    await fixture.unused_for(60, released)
    fixture.live_pods()
    await fixture.controller.reconcile("shop", [released])
    held_by_a_pod(fixture, released)

    for key in (released, unheld):
        fixture.view.config_maps._remove(ObjectKey("shop", key.name))
        fixture.controller.enqueue(key)

    assert bypasses(fixture) == {"stripped": 0, "race": 0}


# -- exceptions ------------------------------------------------------------------------------------------------------


async def test_broken_glass_releases_without_asking(fixture: Fixture) -> None:
    key = fixture.protected("app")
    held_by_a_pod(fixture, key)
    life = Incarnation(key, "uid-app", "8", immutable=True, in_use=True, release="the reason")
    fixture.view.config_maps._upsert(life)
    fixture.server.fail("get", 404)  # the Event is not there yet

    await fixture.controller.reconcile("shop", [key])

    assert LIVE_LIST not in fixture.asked
    assert fixture.patches["app"]["metadata"] == {
        "uid": "uid-app",
        "$deleteFromPrimitiveList/finalizers": [IN_USE_FINALIZER],
    }
    (event,) = fixture.server.asked("create")
    assert "1 object that uses it: the reason" in json.loads(event.body)["message"]


async def test_broken_glass_does_not_wait_for_its_event(fixture: Fixture) -> None:
    key = fixture.protected("app")
    life = Incarnation(key, "uid-app", "8", immutable=True, in_use=True, release="the reason")
    fixture.view.config_maps._upsert(life)
    fixture.server.fail("get", 403)

    await fixture.controller.reconcile("shop", [key])

    assert list(fixture.patches) == ["app"]


async def test_a_namespace_that_goes_asks_for_its_pods_alone(fixture: Fixture) -> None:
    """G18"""
    key = fixture.protected("app")
    fixture.view.namespaces._upsert(Namespace("shop", "u", "1", deleting=True, ignored=False))
    fixture.view.holders.put("persistentvolumes", ObjectKey("", "pv"), Kept("", "pv", "u", "1", (key,)))
    fixture.live_pods()

    await fixture.controller.reconcile("shop", [key])

    assert fixture.asked == [LIVE_LIST]
    assert list(fixture.patches) == ["app"]


async def test_a_pod_taken_by_force_is_written_down_and_holds(fixture: Fixture) -> None:
    key = fixture.protected("app")
    fixture.view.nodes._upsert(Node("node-0", "u", "1", "boot-1", ready=False))
    fixture.controller.pod_taken("node-0", (key,))
    await fixture.controller.reconcile("shop", [key])
    written = fixture.patches["app"]["metadata"]["annotations"][QUARANTINE_ANNOTATION]

    life = Incarnation(key, "uid-app", "8", immutable=True, in_use=True, quarantine=written)
    fixture.view.config_maps._upsert(life)
    fixture.server.requests.clear()
    fixture.now = 1000
    await fixture.controller.reconcile("shop", [key])
    assert not fixture.server.requests

    # Another boot: whatever ran there is gone.
    fixture.view.nodes._upsert(Node("node-0", "u", "2", "boot-2", ready=True))
    await fixture.controller.reconcile("shop", [key])
    fixture.now = 2000
    fixture.live_pods()
    await fixture.controller.reconcile("shop", [key])
    assert fixture.patches["app"]["metadata"]["annotations"] == {QUARANTINE_ANNOTATION: None}


async def test_one_object_that_nobody_may_change_keeps_no_other_waiting(fixture: Fixture) -> None:
    """Somebody's policy refuses every change of it."""
    bad, good = fixture.protected("bad"), fixture.protected("good")
    await fixture.unused_for(60, bad, good)
    fixture.live_pods()
    fixture.server.fail("patch", 403)

    await fixture.controller.reconcile("shop", [bad, good])

    assert sorted(fixture.patches) == ["bad", "good"]
    assert fixture.controller.queue.retries == 1
