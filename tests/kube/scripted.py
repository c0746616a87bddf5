"""A small API server on loopback whose every failure is scripted by a test.

It knows one collection, keeps a history of changes like etcd, pages its lists and replays to its watches.
It does not check what it is sent; real API semantics are for the end-to-end tests.
"""

import asyncio
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATH = "/api/v1/pods"
Body = dict[str, Any]


@dataclass
class Recorded:
    verb: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """What a request gets instead of the truth."""

    status: int
    body: Body | bytes = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


def status(code: int, reason: str, message: str = "", **details: Any) -> Body:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


class Stream:
    """One open watch, driven by the test."""

    def __init__(self, response: web.StreamResponse, request: web.Request) -> None:
        self._response = response
        self._request = request
        self.finished = asyncio.Event()

    async def raw(self, data: bytes) -> None:
        await self._response.write(data)

    async def send(self, type_: str, obj: Body) -> None:
        await self.raw(json.dumps({"type": type_, "object": obj}).encode() + b"\n")

    async def bookmark(self, version: int) -> None:
        await self.send("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})

    async def error(self, code: int, reason: str = "InternalError", **details: Any) -> None:
        await self.send("ERROR", status(code, reason, **details))

    def end(self) -> None:
        """As the server does when timeoutSeconds are over."""
        self.finished.set()

    def cut(self) -> None:
        """As a broken network does."""
        transport = self._request.transport
        assert transport is not None
        transport.abort()
        self.finished.set()


class ScriptedServer:
    def __init__(self) -> None:
        self.version = 10
        self.oldest = 0
        """Watches from before this version get 410."""
        self.objects: dict[tuple[str, str], Body] = {}
        self.history: list[tuple[int, str, Body]] = []
        self.requests: list[Recorded] = []
        self.streams: list[Stream] = []
        """All that were ever opened."""
        self.failures: defaultdict[str, list[Answer]] = defaultdict(list)
        """By verb: the next requests get these, in turn."""
        self.before: Callable[[Recorded], None] = lambda request: None
        self.deaf = False
        """Watches are answered, but changes are not sent."""
        self.token = ""
        """If set, the only one accepted."""
        self.url = ""
        self._uids = itertools.count(1)
        self._snapshots: dict[str, tuple[list[Body], int]] = {}

    # --- the state

    def put(self, name: str, namespace: str = "shop", *, uid: str = "", **spec: Any) -> Body:
        """Creates or updates; another uid than the present one replaces the object within one event."""
        old = self.objects.get((namespace, name))
        self.version += 1
        uid = uid or (old["metadata"]["uid"] if old else f"uid-{next(self._uids)}")
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(self.version)}
        new = {"metadata": metadata, "spec": spec, "status": {"noise": "x" * 50}}
        self.objects[namespace, name] = new
        self._record("MODIFIED" if old else "ADDED", new)
        return new

    def remove(self, name: str, namespace: str = "shop") -> None:
        self.version += 1
        old = self.objects.pop((namespace, name))
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._record("DELETED", last)

    def compact(self) -> None:
        """Forgets the history, as etcd does: resuming from an old version and old continue tokens get 410."""
        self.oldest = self.version
        self._snapshots.clear()

    def fail(self, verb: str, code: int, body: Body | bytes | None = None, **headers: str) -> None:
        self.failures[verb].append(
            Answer(code, body if body is not None else status(code, "Scripted"), headers)
        )

    def asked(self, verb: str) -> list[Recorded]:
        return [request for request in self.requests if request.verb == verb]

    def _record(self, type_: str, obj: Body) -> None:
        self.history.append((self.version, type_, obj))

    # --- HTTP

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedServer"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            for stream in self.streams:
                stream.end()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        verb = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[request.method]
        if request.path == PATH:
            verb = "watch" if "watch" in request.query else "list"
        recorded = Recorded(
            verb, request.path, dict(request.query), dict(request.headers), await request.read()
        )
        self.requests.append(recorded)
        self.before(recorded)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response(status(401, "Unauthorized"), status=401)
        if self.failures[verb]:
            answer = self.failures[verb].pop(0)
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            headers = {name.replace("_", "-"): value for name, value in answer.headers.items()}
            return web.Response(status=answer.status, body=data, headers=headers)
        if verb == "list":
            return self._list(recorded)
        if verb == "watch":
            return await self._watch(request, int(recorded.query["resourceVersion"]))
        return web.json_response({"metadata": {"name": "answer", "uid": "u", "resourceVersion": "1"}})

    def _list(self, request: Recorded) -> web.Response:
        token = request.query.get("continue", "")
        if not token:
            token = f"{self.version}:0"
            self._snapshots[str(self.version)] = (list(self.objects.values()), self.version)
        name, _, start = token.partition(":")
        if name not in self._snapshots:
            return web.json_response(status(410, "Expired"), status=410)
        items, version = self._snapshots[name]
        end = int(start) + int(request.query["limit"])
        metadata = {"resourceVersion": str(version)}
        if end < len(items):
            metadata["continue"] = f"{name}:{end}"
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[int(start) : end]})

    async def _watch(self, request: web.Request, version: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = Stream(response, request)
        self.streams.append(stream)
        if version < self.oldest:
            await stream.error(410, "Expired")
            return response
        sent = version
        while not stream.finished.is_set():
            if not self.deaf:
                for at, type_, obj in self.history:
                    if at > sent:
                        await stream.send(type_, obj)
                sent = self.version
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stream.finished.wait(), 0.002)
        return response
