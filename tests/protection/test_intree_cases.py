"""The list of cases of the in-tree pvc-protection controller's own test, adapted (pvc_protection_controller_test.go): the
mirrors tell the view, the view the controller, and the scripted server is asked and written to.

Two answers differ from the in-tree ones on purpose: a pod that has no node yet holds, since nothing stops it from starting,
and a finished pod does not, since its containers never start again.
"""

from collections.abc import Awaitable, Callable

import pytest

from tests.kube.conftest import api, kubeconfig, server  # noqa: F401 - fixtures
from tests.kube.scripted import ScriptedServer
from tests.protection.test_controller import LIVE_LIST, Fixture
from versionedconfig.kube.api import Api
from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.projection import PodKept


class World(Fixture):
    """With pods as the mirror has them."""

    def __init__(self, api: Api, server: ScriptedServer) -> None:  # noqa: F811
        super().__init__(api, server)
        self.view.config_changed = self.controller.enqueue

    def unprotected(self, name: str = "app", namespace: str = "shop", uid: str = "u1") -> ConfigKey:
        key = ConfigKey("ConfigMap", namespace, name)
        self.view.config_maps._upsert(Incarnation(key, uid, "1", immutable=True))
        return key

    def pod(self, *names: str, name: str = "p", uid: str = "pu", node: str = "node-0") -> None:
        keys = tuple(ConfigKey("ConfigMap", "shop", n) for n in names)
        self.view.pods._upsert(PodKept("shop", name, uid, "1", keys, node=node))

    def no_pod(self, name: str = "p") -> None:
        self.view.pods._remove(ObjectKey("shop", name))

    async def work(self, *keys: ConfigKey) -> list[str]:
        """Everything that is due is done, lingering included; which objects were written to."""
        self.server.requests.clear()
        await self.controller.reconcile("shop", list(keys))
        self.now += 60
        await self.controller.reconcile("shop", list(keys))
        return sorted(self.patches)


@pytest.fixture
async def world(api: Api, server: ScriptedServer) -> World:  # noqa: F811
    return World(api, server)


async def test_added_when_used(world: World) -> None:
    key = world.unprotected()
    world.pod("app")

    await world.controller.reconcile("shop", [key])

    assert list(world.patches) == ["app"]


async def test_nothing_is_written_where_it_is_there_already(world: World) -> None:
    key = world.protected("app")
    world.pod("app")

    assert await world.work(key) == []


async def test_a_patch_that_fails_is_tried_again(world: World) -> None:
    key = world.unprotected()
    world.pod("app")
    world.server.fail("patch", 500)
    await world.controller.reconcile("shop", [key])
    world.server.requests.clear()

    await world.controller.reconcile("shop", [key])

    assert list(world.patches) == ["app"]


async def test_a_removal_that_fails_is_tried_again(world: World) -> None:
    key = world.protected("app")
    await world.unused_for(60, key)
    world.live_pods()
    world.server.fail("patch", 500)
    await world.controller.reconcile("shop", [key])
    world.server.requests.clear()
    world.live_pods()

    await world.controller.reconcile("shop", [key])

    assert list(world.patches) == ["app"]


async def test_a_list_that_fails_keeps_its_namespace_alone(world: World) -> None:
    shop = world.protected("app")
    other = ConfigKey("ConfigMap", "other", "app-2")
    world.view.config_maps._upsert(Incarnation(other, "u2", "1", immutable=True, in_use=True))
    await world.unused_for(60, shop)
    await world.controller.reconcile("other", [other])
    world.now += 60
    world.server.fail("get", 500)
    await world.controller.reconcile("shop", [shop])
    world.live_pods()

    await world.controller.reconcile("other", [other])

    assert list(world.patches) == ["app-2"]


async def test_unused_and_used_ones_in_one_batch(world: World) -> None:
    used, unused = world.protected("used"), world.protected("unused")
    world.pod("used")
    world.live_pods("used")

    assert await world.work(used, unused) == ["unused"]
    assert world.asked == [LIVE_LIST]


async def test_a_pod_with_unrelated_volumes_does_not_hold(world: World) -> None:
    key = world.protected("app")
    world.pod("other")
    world.live_pods("other")

    assert await world.work(key) == ["app"]


PodChange = Callable[[World], Awaitable[None] | None]


@pytest.mark.parametrize(
    ("case", "change", "released"),
    [
        ("updated, running", lambda w: w.pod("app"), False),
        ("updated, finished: it left the mirror", lambda w: w.no_pod(), True),
        ("updated, without a node", lambda w: w.pod("app", node=""), False),
        ("without a node, then scheduled", lambda w: (w.pod("app", node=""), w.pod("app")), False),
        ("deleted, running", lambda w: w.no_pod(), True),
        ("another one of its name uses it too", lambda w: w.pod("app", uid="pu2"), False),
        ("another one of its name uses nothing", lambda w: w.pod(uid="pu2"), True),
        ("another one of its name uses something else", lambda w: w.pod("else", uid="pu2"), True),
    ],
)
async def test_pods_come_change_and_go(world: World, case: str, change: PodChange, released: bool) -> None:
    key = world.protected("app")
    world.pod("app")
    change(world)
    if released:
        world.live_pods()

    assert (await world.work(key) == ["app"]) is released, case


async def test_another_object_of_the_name_seen_as_an_update_is_protected_anew(world: World) -> None:
    """delete and create, seen as one change."""
    world.protected("app")
    world.pod("app")
    key = world.unprotected(uid="u9")

    await world.controller.reconcile("shop", [key])

    assert world.patches["app"]["metadata"]["uid"] == "u9"


async def test_many_namespaces_cost_one_list_each(world: World) -> None:
    for number in range(3):
        key = ConfigKey("ConfigMap", f"ns-{number}", "app")
        world.view.config_maps._upsert(Incarnation(key, f"u{number}", "1", immutable=True, in_use=True))
        await world.controller.reconcile(key.namespace, [key])
        world.now += 60
        world.live_pods()
        await world.controller.reconcile(key.namespace, [key])

    assert world.asked == [f"/api/v1/namespaces/ns-{n}/pods" for n in range(3)]
