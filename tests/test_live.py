"""Live lists: shared where that is safe, and never an answer where one failed."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kube.conftest import api, kubeconfig, server  # noqa: F401 - fixtures
from tests.kube.scripted import Answer, ScriptedServer, status
from versionedconfig.custom import CustomKind
from versionedconfig.kube.api import Api, ApiError
from versionedconfig.live import TEMPLATES, LiveLists
from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.references import CATALOGUE, Source
from versionedconfig.references.rules import HealthRules, Include, KindRules, WorkloadRules

VOLUMES = tuple(
    Source(kind, CATALOGUE.fragments) for kind in CATALOGUE.kinds if kind.resource == "persistentvolumes"
)
LIFE = Incarnation(ConfigKey("Secret", "infra", "s"), "u", "1", immutable=True, in_use=True)


def listed(*items: dict[str, Any]) -> Answer:
    return Answer(200, {"metadata": {"resourceVersion": "9"}, "items": list(items)})


def volume(secret: str) -> dict[str, Any]:
    reference = {"name": secret, "namespace": "infra"}
    meta = {"name": "pv", "uid": "u", "resourceVersion": "1"}
    return {"metadata": meta, "spec": {"csi": {"nodeStageSecretRef": reference}}}


def lists_of(server: ScriptedServer, plural: str) -> int:  # noqa: F811
    return sum(request.path.endswith(plural) for request in server.requests)


async def test_a_volume_that_only_the_live_list_knows_holds(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    server.failures["get"] += [listed(), listed(volume("s"))]

    assert await LiveLists(api, lambda: VOLUMES).held("infra", [LIFE]) == {LIFE.key}


async def test_a_kind_that_is_not_served_holds_nothing(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    server.failures["get"] += [listed(), Answer(404, status(404, "NotFound"))]

    assert await LiveLists(api, lambda: VOLUMES).held("infra", [LIFE]) == set()


@pytest.mark.parametrize("code", [403, 500, 503])
async def test_a_list_that_fails_is_no_answer(api: Api, server: ScriptedServer, code: int) -> None:  # noqa: F811
    live = LiveLists(api, lambda: VOLUMES)
    server.failures["get"] += [listed(), Answer(code, status(code, "Error"))]

    with pytest.raises(ApiError):
        await live.held("infra", [LIFE])

    server.failures["get"] += [listed(), listed()]
    assert await live.held("infra", [LIFE]) == set()


async def test_questions_share_only_lists_that_begin_after_them(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    live = LiveLists(api, lambda: VOLUMES)
    server.failures["get"] += [listed() for _ in range(10)]

    await asyncio.gather(*(live.held(f"ns-{i}", [LIFE]) for i in range(5)))
    together = lists_of(server, "/persistentvolumes")
    await live.held("infra", [LIFE])

    assert together <= 3
    assert lists_of(server, "/persistentvolumes") == together + 1


async def test_only_kinds_that_can_refer_to_it_are_asked(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    """A kind that cannot be read must not keep waiting what it has nothing to do with."""
    every = tuple(Source(kind, CATALOGUE.fragments) for kind in CATALOGUE.kinds if kind.holder)
    server.failures["get"] += [listed() for _ in range(60)]

    await LiveLists(api, lambda: every).held("shop", [replace(LIFE, key=ConfigKey("ConfigMap", "shop", "c"))])

    asked = {request.path.rpartition("/")[2] for request in server.requests}
    assert not asked & {"persistentvolumes", "storageclasses", "clusterissuers"}
    assert {"pods", "ingressclasses", "validatingadmissionpolicybindings"} <= asked
    server.requests.clear()
    await LiveLists(api, lambda: every).held("cert-manager", [LIFE])
    asked = {request.path.rpartition("/")[2] for request in server.requests}
    assert {"persistentvolumes", "clusterissuers"} <= asked


async def test_closing_ends_lists_that_nobody_waits_for(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    """They are shared, so cancelling who asked does not end them; and then the connection goes under their feet."""
    live = LiveLists(api, lambda: VOLUMES)
    server.failures["get"] += [listed() for _ in range(4)]
    asking = asyncio.create_task(live.held("infra", [LIFE]))
    async with asyncio.timeout(5):
        while not (mine := [task for task in asyncio.all_tasks() if "LiveLists._after" in repr(task)]):  # noqa: ASYNC110
            await asyncio.sleep(0)  # nothing tells that the task is there

    asking.cancel()
    await live.close()

    assert all(task.done() for task in mine)


# -- templates of people's own kinds ---------------------------------------------------------------------------------

WIDGETS = CustomKind(
    KindRules(
        kind="Widget",
        plural="widgets",
        version="v1",
        group="example.com",
        include=[Include("PodSpec", ".spec.template.spec")],
        workload=WorkloadRules(HealthRules(condition="Ready")),
    )
).resource


def widget(config: str) -> dict[str, Any]:
    meta = {"name": "w", "namespace": "shop", "uid": "u", "resourceVersion": "1"}
    container = {"name": "c", "envFrom": [{"configMapRef": {"name": config}}]}
    return {"metadata": meta, "spec": {"template": {"spec": {"containers": [container]}}}}


async def test_a_template_that_only_the_live_list_knows(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    server.failures["get"] += [*(listed() for _ in TEMPLATES), listed(widget("app-1"))]

    live = LiveLists(api, lambda: (), custom=lambda: {"rule": WIDGETS})

    assert await live.referred("shop") == {ConfigKey("ConfigMap", "shop", "app-1")}
    assert server.requests[-1].path == "/apis/example.com/v1/namespaces/shop/widgets"


async def test_a_kind_of_workloads_that_is_gone_refers_to_nothing(api: Api, server: ScriptedServer) -> None:  # noqa: F811
    server.failures["get"] += [*(listed() for _ in TEMPLATES), Answer(404, status(404, "NotFound"))]

    assert await LiveLists(api, lambda: (), custom=lambda: {"rule": WIDGETS}).referred("shop") == set()


@pytest.mark.parametrize("code", [403, 500])
async def test_a_kind_of_workloads_that_cannot_be_listed(api: Api, server: ScriptedServer, code: int) -> None:  # noqa: F811
    server.failures["get"] += [*(listed() for _ in TEMPLATES), Answer(code, status(code, "Error"))]
    told: list[str] = []

    async def unreadable(source_id: str, error: ApiError) -> None:
        told.append(f"{source_id} {error.status}")

    live = LiveLists(api, lambda: (), custom=lambda: {"rule": WIDGETS})
    live.unreadable = unreadable

    with pytest.raises(ApiError):
        await live.referred("shop")
    assert told == [f"rule {code}"]
