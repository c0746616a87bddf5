"""Requests, their encoding, their errors and the credentials."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aiohttp import StreamReader
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.conftest import until
from tests.kube.scripted import PATH, ScriptedServer, status
from versionedconfig.kube.api import (
    METADATA_ONLY,
    Api,
    ApiError,
    Cause,
    WatchEvent,
    _decoded,
    _lines,
    flattened,
    path_of,
    resource_of,
)

CANARY = "c3VwZXItc2VjcmV0"


class Meta(msgspec.Struct):
    name: str


class Item(msgspec.Struct):
    metadata: Meta


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces", "namespaces"),
        ("/api/v1/namespaces/shop", "namespaces"),
        ("/api/v1/namespaces/shop/status", "namespaces"),
        ("/api/v1/namespaces/shop/secrets/db", "secrets"),
        ("/apis/apps/v1/namespaces/shop/deployments/web/scale", "deployments"),
        ("/apis/versionedconfig.io/v1alpha1/versionedconfigs", "versionedconfigs"),
        ("/apis", "discovery"),
    ],
)
def test_metrics_see_the_plural_and_no_names(path: str, resource: str) -> None:
    assert resource_of(path) == resource


def test_paths() -> None:
    assert path_of("/api/v1/pods", "shop", "web-0", "status") == "/api/v1/namespaces/shop/pods/web-0/status"
    assert path_of("/apis/apps/v1/deployments", "shop") == "/apis/apps/v1/namespaces/shop/deployments"
    assert path_of("/apis/storage.k8s.io/v1/storageclasses", "", "fast") == (
        "/apis/storage.k8s.io/v1/storageclasses/fast"
    )


async def test_every_request_is_named_and_counted(server: ScriptedServer, api: Api) -> None:
    counted: list[tuple[str, str, int]] = []
    api.on_request = lambda verb, resource, status: counted.append((verb, resource, status))

    await api.get("/api/v1/namespaces/shop/pods/web", type=Item)
    server.fail("create", 409, status(409, "AlreadyExists"))
    with pytest.raises(ApiError, match="409 AlreadyExists"):
        await api.create("/api/v1/namespaces/shop/configmaps", {}, type=Item)

    assert counted == [("get", "pods", 200), ("create", "configmaps", 409)]
    headers = server.requests[0].headers
    assert headers["User-Agent"].startswith("versionedconfig/")
    assert headers["Authorization"] == "Bearer first"
    assert headers["Accept-Encoding"] == "identity"


async def test_bodies_are_encoded_once_with_the_type_of_the_patch(server: ScriptedServer, api: Api) -> None:
    await api.create("/api/v1/namespaces/shop/configmaps", {"a": [1, "ü"]}, type=Item)
    await api.patch("/apis/apps/v1/namespaces/shop/deployments/web", [{"op": "test"}], kind="json", type=Item)
    await api.patch(
        "/a/b/c/d",
        {},
        kind="merge",
        type=Item,
        subresource="status",
        params={"dryRun": "All"},
        accept=METADATA_ONLY,
    )
    await api.delete("/api/v1/namespaces/shop/configmaps/a", uid="u1", resource_version="7")

    create, json_patch, merge, delete = server.requests
    assert json.loads(create.body) == {"a": [1, "ü"]}
    assert create.headers["Content-Type"] == "application/json"
    assert create.query == {"fieldManager": "versionedconfig"}
    assert json.loads(json_patch.body) == [{"op": "test"}]
    assert json_patch.headers["Content-Type"] == "application/json-patch+json"
    assert merge.path == "/a/b/c/d/status"
    assert merge.query == {"fieldManager": "versionedconfig", "dryRun": "All"}
    assert merge.headers["Content-Type"] == "application/merge-patch+json"
    assert merge.headers["Accept"] == METADATA_ONLY
    assert json.loads(delete.body)["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert json.loads(delete.body)["propagationPolicy"] == "Background"


async def test_errors_say_what_the_server_said(server: ScriptedServer, api: Api) -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "going", "field": ""}]
    server.fail("create", 403, status(403, "Forbidden", "forbidden: it goes", causes=causes), Retry_After="3")

    with pytest.raises(ApiError) as caught:
        await api.create("/api/v1/namespaces/shop/configmaps", {}, type=Item)

    error = caught.value
    assert (error.status, error.reason, error.message) == (403, "Forbidden", "forbidden: it goes")
    assert error.retry_after == 3
    assert error.causes == (Cause("NamespaceTerminating", ""),)
    assert error.has_cause("NamespaceTerminating")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (400, status(400, "BadRequest", f"illegal base64, error found in #10 byte of ...|{CANARY}|...")),
        (
            422,
            status(
                422,
                "Invalid",
                f'data: Invalid value: "{CANARY}"',
                causes=[{"reason": "FieldValueInvalid", "field": "data", "message": CANARY}],
            ),
        ),
    ],
)
async def test_errors_never_quote_what_was_sent(
    server: ScriptedServer, api: Api, code: int, body: object
) -> None:
    server.fail("create", code, json.dumps(body).encode())

    with pytest.raises(ApiError) as caught:
        await api.create("/api/v1/namespaces/shop/secrets", {"data": {"password": CANARY}}, type=Item)

    assert CANARY not in f"{caught.value!r} {caught.value} {vars(caught.value)}"


async def test_answers_of_proxies_are_errors_too(server: ScriptedServer, api: Api) -> None:
    server.fail("get", 502, b"<html>Bad Gateway</html>")
    server.fail("get", 200, b"<html>Welcome</html>")
    server.fail("get", 200, b'{"metadata": {"name": 5}}')

    with pytest.raises(ApiError, match="502 Bad Gateway"):
        await api.get("/api/v1/pods/a", type=Item)
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            await api.get("/api/v1/pods/a", type=Item)
        assert (caught.value.status, caught.value.reason) == (0, "Undecodable")


@pytest.fixture
def nobody_listens(kubeconfig: Path) -> str:
    kubeconfig.write_text(kubeconfig.read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1/"))
    return str(kubeconfig)


async def test_no_connection_is_status_0(nobody_listens: str) -> None:
    refused = await Api.connect(nobody_listens)
    counted: list[int] = []
    refused.on_request = lambda verb, resource, status: counted.append(status)

    with pytest.raises(ApiError) as caught:
        await refused.get("/api/v1/pods/a", type=Item)
    await refused.close()

    assert (caught.value.status, caught.value.reason) == (0, "Connection")
    assert counted == [0]


async def test_a_refused_token_is_read_again_even_for_a_write(
    server: ScriptedServer, api: Api, kubeconfig: Path
) -> None:
    server.token = "second"
    rotate(kubeconfig, "second\n")

    await api.create("/api/v1/namespaces/shop/configmaps", {}, type=Item)
    await api.create("/api/v1/namespaces/shop/configmaps", {}, type=Item)

    assert [request.headers["Authorization"] for request in server.requests] == [
        "Bearer first",
        "Bearer second",
        "Bearer second",
    ]


async def test_the_same_token_is_not_tried_twice(server: ScriptedServer, api: Api) -> None:
    server.token = "other"

    with pytest.raises(ApiError, match="401"):
        await api.get("/api/v1/pods/a", type=Item)

    assert len(server.requests) == 1


async def test_a_token_that_changes_for_ever_is_no_loop(
    server: ScriptedServer, api: Api, kubeconfig: Path
) -> None:
    server.token = "other"
    server.before = lambda request: rotate(kubeconfig, str(len(server.requests)))

    with pytest.raises(ApiError, match="401"):
        await api.get("/api/v1/pods/a", type=Item)

    assert len(server.requests) == 2


def rotate(kubeconfig: Path, token: str) -> None:
    (kubeconfig.parent / "token").write_text(token)


async def test_live_lists_start_over_when_they_expire(server: ScriptedServer, api: Api) -> None:
    for name in "abcde":
        server.put(name)
    server.requests.clear()
    server.before = lambda request: server.compact() if len(server.requests) == 2 else None

    page = await api.list_all(PATH, item=Item, limit=2, field_selector="status.phase!=Failed")

    assert [item.metadata.name for item in page.items] == list("abcde")
    assert page.resource_version == str(server.version)
    assert [request.query.get("continue", "") for request in server.requests] == [
        "",
        "15:2",
        "",
        "15:2",
        "15:4",
    ]
    assert all(request.query["fieldSelector"] == "status.phase!=Failed" for request in server.requests)


async def test_live_lists_give_up_in_the_end(server: ScriptedServer, api: Api) -> None:
    for _ in range(3):
        server.fail("list", 410, status(410, "Expired"))

    with pytest.raises(ApiError, match="410"):
        await api.list_all(PATH, item=Item)


async def test_long_lines_and_lines_cut_anywhere(server: ScriptedServer, api: Api) -> None:
    server.deaf = True
    long = "n" * 3_000_000
    text = b"".join(
        json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode() + b"\n"
        for name in ("a", long, "b")
    )
    names: list[str] = []
    async with contextlib.aclosing(api.watch(PATH, item=Item, resource_version="10")) as batches:
        reading = asyncio.ensure_future(anext(batches))
        await until(lambda: server.streams)
        stream = server.streams[0]
        for start in range(0, len(text), 700_001):
            await stream.raw(text[start : start + 700_001])
        await stream.raw(b'{"type":"ADDED","object":{"metad')
        stream.end()
        batch: list[WatchEvent[Item]] = await reading
        names += [event.object.metadata.name for event in batch if event.object]
        async for batch in batches:
            names += [event.object.metadata.name for event in batch if event.object]

    assert names == ["a", long, "b"]


class Chunks:
    """Stands for a response's content."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


@given(
    st.lists(st.binary(min_size=1).map(lambda line: line.replace(b"\n", b"n"))), st.sets(st.integers(0, 200))
)
def test_lines_are_the_same_wherever_chunks_end(lines: list[bytes], cuts: set[int]) -> None:
    text = b"".join(line + b"\n" for line in lines) + b"the beginning of one more"
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    content = Chunks([text[start:end] for start, end in pairwise(edges)])

    async def read() -> list[bytes]:
        return [line async for batch in _lines(cast(StreamReader, content)) for line in batch]

    assert asyncio.run(read()) == lines


@pytest.mark.parametrize("name", ["../../x", "..", ".", "a/../b", "a?b=c", "a#b", "a%2fb", "", "a b"])
async def test_a_name_that_is_none_never_reaches_the_wire(
    server: ScriptedServer, api: Api, name: str
) -> None:
    """HTTP clients fold dots: `pods/../secrets/x` would be a request for a Secret."""
    with pytest.raises(ValueError, match="no names"):
        await api.patch(f"/api/v1/namespaces/shop/pods/{name}", {}, kind="merge", type=msgspec.Raw)

    assert not server.requests


# -- what is nested too deep -----------------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    """As much as the API server stores (10,000), where nobody looks."""
    return b'{"f:a":' * levels + b"{}" + b"}" * levels


@pytest.mark.parametrize("levels", [10, 199, 500, 1500, 9990])
def test_an_object_that_is_nested_deep_is_read(levels: int) -> None:
    content = b'{"metadata":{"x":[' + nested(levels) + b', "}]\\"{["],"name":"n"},"kind":"K"}'

    found = _decoded(msgspec.json.Decoder(_Deep), content)

    assert (found.metadata.name, found.kind) == ("n", "K")


class _Deep(msgspec.Struct):
    metadata: "_DeepMetadata"
    kind: str


class _DeepMetadata(msgspec.Struct):
    name: str


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_is_not_deep_stays_as_it_is(value: Any) -> None:
    content = msgspec.json.encode(value)

    assert flattened(content) == content
