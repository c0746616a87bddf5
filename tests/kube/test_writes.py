"""Each outcome of a write, with the answers that a real API server gives."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.kube.scripted import Body, ScriptedServer, status
from versionedconfig.kube.api import METADATA_ONLY, Api, ApiError
from versionedconfig.kube.writes import Outcome, Regarding, add_finalizer, remove_finalizer, upsert_event

PATH = "/api/v1/namespaces/shop/secrets/db"
FINALIZER = "versionedconfig.io/in-use"


def invalid(field: str, reason: str) -> Body:
    return status(
        422, "Invalid", f"{field}: no", causes=[{"reason": reason, "field": field, "message": "no"}]
    )


NO_NEW_FINALIZERS = invalid("metadata.finalizers", "FieldValueForbidden")
OTHER_UID = invalid("metadata.uid", "FieldValueInvalid")
BOTH = OTHER_UID | {
    "details": {"causes": NO_NEW_FINALIZERS["details"]["causes"] + OTHER_UID["details"]["causes"]},
}


@pytest.mark.parametrize(
    ("code", "body", "outcome"),
    [
        (200, {"metadata": {}}, Outcome.DONE),
        (404, status(404, "NotFound"), Outcome.GONE),
        (409, status(409, "Conflict"), Outcome.CONFLICT),
        (422, OTHER_UID, Outcome.REPLACED),
        (422, NO_NEW_FINALIZERS, Outcome.TERMINATING),
        (422, BOTH, Outcome.REPLACED),
    ],
)
async def test_outcomes(server: ScriptedServer, api: Api, code: int, body: Body, outcome: Outcome) -> None:
    server.fail("patch", code, body)
    server.fail("patch", code, body)

    assert await add_finalizer(api, PATH, "u1", FINALIZER) is outcome
    assert await remove_finalizer(api, PATH, "u1", FINALIZER) is outcome


@pytest.mark.parametrize("code", [403, 422, 500])
async def test_what_is_not_expected_is_raised(server: ScriptedServer, api: Api, code: int) -> None:
    server.fail("patch", code)

    with pytest.raises(ApiError):
        await add_finalizer(api, PATH, "u1", FINALIZER)


async def test_only_our_element_of_that_incarnation_is_touched(server: ScriptedServer, api: Api) -> None:
    await add_finalizer(api, PATH, "u1", FINALIZER)
    await remove_finalizer(api, PATH, "u1", FINALIZER)

    add, remove = server.requests
    assert json.loads(add.body) == {"metadata": {"uid": "u1", "finalizers": [FINALIZER]}}
    assert json.loads(remove.body) == {
        "metadata": {"uid": "u1", "$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    }
    for request in (add, remove):
        assert request.path == PATH
        assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"
        assert request.headers["Accept"] == METADATA_ONLY  # a Secret's data does not come back
        assert request.query == {"fieldManager": "versionedconfig"}


REGARDING = Regarding("v1", "Secret", "shop", "db", "u1")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def upsert(api: Api, message: str, reason: str = "InUse", regarding: Regarding = REGARDING) -> bool:
    return await upsert_event(api, regarding, reason=reason, message=message, type="Warning", now=NOW)


async def test_a_new_event_is_created_under_a_name_that_follows_from_it(
    server: ScriptedServer, api: Api
) -> None:
    for _ in range(3):
        server.fail("get", 404)
    assert await upsert(api, "used by pod a")
    assert await upsert(api, "used by pod b")
    assert await upsert(api, "used by pod b", reason="Stale")

    first, second, third = (json.loads(request.body) for request in server.asked("create"))
    assert first["metadata"]["name"] == second["metadata"]["name"] != third["metadata"]["name"]
    assert first["metadata"]["name"].startswith("db.")
    assert first["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Secret",
        "namespace": "shop",
        "name": "db",
        "uid": "u1",
    }
    assert (first["type"], first["reason"], first["message"], first["count"]) == (
        "Warning",
        "InUse",
        "used by pod a",
        1,
    )
    assert first["firstTimestamp"] == first["lastTimestamp"] == "2026-01-02T03:04:05Z"
    assert first["reportingComponent"] == "versionedconfig"
    assert server.asked("create")[0].path == "/api/v1/namespaces/shop/events"


async def test_the_same_message_writes_nothing(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 200, {"message": "used by pod a", "count": 3})

    assert not await upsert(api, "used by pod a")
    assert [request.verb for request in server.requests] == ["get"]


async def test_another_message_counts(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 200, {"message": "used by pod a", "count": 3})

    assert await upsert_event(
        api, REGARDING, reason="InUse", message="used by pod b", now=NOW.astimezone() + timedelta(hours=1)
    )

    (patch,) = server.asked("patch")
    assert json.loads(patch.body) == {
        "message": "used by pod b",
        "type": "Normal",
        "count": 4,
        "lastTimestamp": "2026-01-02T04:04:05Z",
    }
    assert patch.path == server.asked("get")[0].path


async def test_an_event_that_expires_in_between_is_made_anew(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 200, {"message": "used by pod a"})
    server.fail("patch", 404)

    assert await upsert(api, "used by pod b")
    assert [request.verb for request in server.requests] == ["get", "patch", "create"]


async def test_long_names_and_messages_fit(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 404)
    long = Regarding("v1", "Secret", "shop", "a." * 126 + "a", "u1")

    await upsert(api, "m" * 2000, regarding=long)

    body = json.loads(server.asked("create")[0].body)
    assert len(body["metadata"]["name"]) <= 253
    assert ".." not in body["metadata"]["name"]
    assert len(body["message"]) == 1024


async def test_cluster_scoped_objects_have_their_events_in_default(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 404)

    await upsert(api, "m", regarding=Regarding("v1", "Node", "", "n1", "u1"))

    assert server.asked("create")[0].path == "/api/v1/namespaces/default/events"


async def test_a_terminating_namespace_gets_none(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 404)
    server.fail("create", 403, status(403, "Forbidden", causes=[{"reason": "NamespaceTerminating"}]))

    assert not await upsert(api, "m")
    server.fail("get", 404)
    server.fail("create", 403)
    with pytest.raises(ApiError, match="403"):
        await upsert(api, "m")
