"""The only HTTP of the operator: typed requests to the API server, over the official client.

`kubernetes.aio` gives the authentication, TLS, proxies and the connection pool; msgspec the decoding. The
official request methods are not used: they json.dumps() a body that is encoded already, and load whole
answers (kubernetes/aio/client/rest.py). Knows HTTP, JSON and the conventions of the Kubernetes API; no kinds.
"""

import asyncio
import functools
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import aiohttp
import msgspec
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from versionedconfig.model import FIELD_MANAGER

T = TypeVar("T")

JSON: Final = "application/json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""Accept: the object's metadata alone (GET, watch, and the answer to a write). Keeps Secret data away from us."""
METADATA_ONLY_LIST: Final = (
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)


MOST_LEVELS: Final = 200
"""No field that anybody reads is deeper. Values that are, become null where a decoder gives up on them."""

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def flattened(content: bytes) -> bytes:
    """The same JSON without what is nested too deep for a decoder that recurses. The API server stores up to 10,000 levels,
    in managedFields for instance, and anybody may write them: one object must not make its whole kind unreadable."""
    parts: list[bytes] = []
    depth, taken = 0, 0
    cut = -1
    for match in _TOKEN.finditer(content):
        token = match.group()
        if token in b"[{":
            depth += 1
            if depth > MOST_LEVELS and cut < 0:
                cut = match.start()
        elif token in b"]}":
            depth -= 1
            if depth == MOST_LEVELS and cut >= 0:
                parts += (content[taken:cut], b"null")
                taken, cut = match.end(), -1
    parts.append(content[taken:])
    return b"".join(parts)


def _decoded(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    try:
        return decoder.decode(content)
    except RecursionError:
        return decoder.decode(flattened(content))


def accept_list(metadata_only: bool) -> str:
    """The Accept header of a list."""
    return METADATA_ONLY_LIST if metadata_only else JSON


PatchKind = Literal["strategic", "json", "merge"]
_PATCH_TYPES: Final[dict[PatchKind, str]] = {
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
}

_CONNECT_SECONDS: Final = 10.0
# The API server gives up by itself after 60 s (kube-apiserver --request-timeout) and then says so.
_TIMEOUT: Final = aiohttp.ClientTimeout(total=70, sock_connect=_CONNECT_SECONDS)


class Cause(NamedTuple):
    """One of the causes in a Status: machine-readable; `field` is set for validation errors."""

    reason: str
    field: str


class ApiError(Exception):
    """The API server refused (status >= 400), or there was no answer (status 0). Never holds a body."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str = "",
        *,
        retry_after: float | None = None,
        causes: tuple[Cause, ...] = (),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status: Final = status
        self.reason: Final = reason
        """As Kubernetes names it ("Conflict", "AlreadyExists", ...); for status 0 one of "Connection",
        "Timeout", "Credentials", "Undecodable"."""
        self.message: Final = message
        self.retry_after: Final = retry_after
        self.causes: Final = causes

    def has_cause(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in self.causes)

    def blames(self, field: str) -> bool:
        """Is `field` one of those that validation refused?"""
        return any(cause.field == field for cause in self.causes)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    resource_version: str
    continue_token: str = ""


class WatchEvent(NamedTuple, Generic[T]):
    """ADDED, MODIFIED or DELETED with the object; BOOKMARK without. An ERROR is raised instead."""

    type: str
    object: T | None
    resource_version: str = ""
    """Of a bookmark; that of an object is in the object."""


class _ListMeta(msgspec.Struct, gc=False):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_token: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct, Generic[T], gc=False):
    metadata: _ListMeta
    items: list[T] | None = None  # null is how Go writes an empty slice that was never made


class _Line(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, gc=False):
    metadata: _ListMeta


class _StatusCause(msgspec.Struct, gc=False):
    reason: str = ""
    field: str = ""


class _StatusDetails(msgspec.Struct, gc=False):
    causes: list[_StatusCause] | None = None
    retry_after: float = msgspec.field(name="retryAfterSeconds", default=0)


class _Status(msgspec.Struct, gc=False):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


_LINES: Final = msgspec.json.Decoder(_Line)
_BOOKMARKS: Final = msgspec.json.Decoder(_Bookmark)
_STATUSES: Final = msgspec.json.Decoder(_Status)


@functools.cache
def _cached_decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def _decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    hashable: Any = type_
    return _cached_decoder(hashable)


def _list_decoder(item: type[T]) -> msgspec.json.Decoder[_List[T]]:
    listed: Any = _List[item]  # type: ignore[valid-type]  # msgspec wants the type that is known at run time only
    return _cached_decoder(listed)


def path_of(collection: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """`/api/v1/pods`, `shop`, `web-0`, `status` -> `/api/v1/namespaces/shop/pods/web-0/status`."""
    prefix, _, plural = collection.rpartition("/")
    scope = f"{prefix}/namespaces/{namespace}" if namespace else prefix
    return "/".join(part for part in (scope, plural, name, subresource) if part)


_ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):[0-9]{1,5}")
_PLAIN_PATH = re.compile(r"(/[-._:a-zA-Z0-9]+)+")


@functools.lru_cache(maxsize=1024)
def resource_of(path: str) -> str:
    """The plural in a path, for metrics: object and namespace names must not become label values."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces" and parts[2] not in ("status", "finalize"):
        parts = parts[2:]
    return parts[0] if parts else "discovery"


def default_namespace(kubeconfig: str | None = None) -> str:
    """That of the kubeconfig's current context, as kubectl takes it; `default` where it names none."""
    path = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        _, active = kube_config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except (kube_config.ConfigException, OSError):
        return "default"
    return str(active["context"].get("namespace") or "default")


class Api:
    """One authenticated connection pool to one API server."""

    def __init__(self, client: ApiClient, reload: Callable[[], Any]) -> None:
        self._client = client
        self._reload = reload
        """Reads the credentials again into the client's configuration (async)."""
        self._reloading = asyncio.Lock()
        # A factory made for overriding; sharing it keeps TLS, proxies and buffer sizes the official ones.
        rest = client.rest_client
        self._session: aiohttp.ClientSession = rest._create_pool_manager()
        rest.pool_manager = self._session
        self._fixed: dict[str, Any] = {}
        """Arguments of every request, as rest.py sets them."""
        if client.configuration.tls_server_name:
            self._fixed["server_hostname"] = client.configuration.tls_server_name
        if rest.proxy:
            self._fixed["proxy"] = rest.proxy
        if rest.proxy_headers:
            self._fixed["proxy_headers"] = rest.proxy_headers
        self.on_request: Callable[[str, str, int], None] = lambda verb, resource, status: None
        """Called once per answer with (verb, resource, status); status 0 when there was none."""

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> "Api":
        """With `kubeconfig`, else as a pod, else with $KUBECONFIG or ~/.kube/config."""
        configuration = Configuration()

        async def load() -> None:
            if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                # It re-reads the token each minute by itself.
                kube_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
                return
            # persist_config: we never write to a person's kubeconfig. $KUBECONFIG is read here because the
            # official default is fixed when the module is imported.
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                kubeconfig or os.environ.get("KUBECONFIG"),
                client_configuration=configuration,
                persist_config=False,
            )

        await load()
        client = ApiClient(configuration)
        client.user_agent = f"versionedconfig/{version('versionedconfig')}"
        return cls(client, load)

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(
        self, path: str, *, type: type[T], params: Mapping[str, str] | None = None, accept: str = JSON
    ) -> T:
        return await self._call("get", "GET", path, _decoder(type), params=params, accept=accept)

    async def list_page(
        self,
        path: str,
        *,
        item: type[T],
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 500,
        continue_token: str = "",
        resource_version: str = "",
        accept: str = JSON,
    ) -> Page[T]:
        """One page, consistent with the others of its list; of the state at exactly that resource version, if one is given.
        410: the token expired, start over; or the version is not known any more."""
        params = _selectors(field_selector, label_selector) | {"limit": str(limit)}
        if continue_token:
            params["continue"] = continue_token
        elif resource_version:
            params |= {"resourceVersion": resource_version, "resourceVersionMatch": "Exact"}
        listed = await self._call("list", "GET", path, _list_decoder(item), params=params, accept=accept)
        return Page(listed.items or [], listed.metadata.resource_version, listed.metadata.continue_token)

    async def list_pages(
        self,
        path: str,
        *,
        item: type[T],
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 500,
        resource_version: str = "",
        accept: str = JSON,
    ) -> AsyncIterator[Page[T]]:
        """Page after page. A 410 in the middle is the caller's: what it took from earlier pages is stale."""
        token = ""
        while True:
            page = await self.list_page(
                path,
                item=item,
                field_selector=field_selector,
                label_selector=label_selector,
                limit=limit,
                continue_token=token,
                resource_version=resource_version,
                accept=accept,
            )
            yield page
            token = page.continue_token
            if not token:
                return

    async def list_all(
        self,
        path: str,
        *,
        item: type[T],
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 500,
        attempts: int = 3,
    ) -> Page[T]:
        """A one-off live list: without a resourceVersion it is a consistent read, never a cached one."""
        for attempt in range(attempts):
            items: list[T] = []
            resource_version = ""
            try:
                async for page in self.list_pages(
                    path,
                    item=item,
                    field_selector=field_selector,
                    label_selector=label_selector,
                    limit=limit,
                ):
                    items += page.items
                    resource_version = page.resource_version
            except ApiError as error:
                if error.status != 410 or attempt == attempts - 1:
                    raise
            else:
                return Page(items, resource_version)
        raise ValueError("attempts must be positive")

    async def watch(
        self,
        path: str,
        *,
        item: type[T],
        resource_version: str,
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: float = 300,
        silence_seconds: float = 75,
        accept: str = JSON,
    ) -> AsyncGenerator[list[WatchEvent[T]], None]:
        """Events in the batches in which they arrive, until the server ends the stream.

        An ERROR event, a lost connection and silence longer than `silence_seconds` raise ApiError, after the
        events before it were yielded. Close it (contextlib.aclosing) when leaving early.
        """
        params = _selectors(field_selector, label_selector) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(timeout_seconds)),
        }
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)
        objects = _decoder(item)
        with _connection_errors():
            response = await self._send(
                "watch", "GET", path, params=params, body=None, headers={"Accept": accept}, limits=limits
            )
            try:
                async for lines in _lines(response.content):
                    batch: list[WatchEvent[T]] = []
                    failure: ApiError | None = None
                    for line in lines:
                        try:
                            event = _decoded(_LINES, line)
                            if event.type == "BOOKMARK":
                                bookmark = _BOOKMARKS.decode(event.object)
                                batch.append(WatchEvent("BOOKMARK", None, bookmark.metadata.resource_version))
                            elif event.type == "ERROR":
                                failure = _error(_STATUSES.decode(event.object), default_status=500)
                                break
                            else:
                                batch.append(WatchEvent(event.type, _decoded(objects, bytes(event.object))))
                        except msgspec.MsgspecError as error:
                            failure = _undecodable(error)
                            break
                    if batch:
                        yield batch
                    if failure:
                        raise failure
            finally:
                # Not release(): an unfinished stream can not be given back to the pool.
                response.close()

    async def create(
        self,
        path: str,
        body: object,
        *,
        type: type[T],
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> T:
        return await self._call(
            "create",
            "POST",
            path,
            _decoder(type),
            params={"fieldManager": FIELD_MANAGER, **(params or {})},
            body=msgspec.json.encode(body),
            content_type=JSON,
            accept=accept,
        )

    async def patch(
        self,
        path: str,
        body: object,
        *,
        kind: PatchKind,
        type: type[T],
        subresource: str = "",
        params: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> T:
        return await self._call(
            "patch",
            "PATCH",
            f"{path}/{subresource}" if subresource else path,
            _decoder(type),
            params={"fieldManager": FIELD_MANAGER, **(params or {})},
            body=msgspec.json.encode(body),
            content_type=_PATCH_TYPES[kind],
            accept=accept,
        )

    async def delete(
        self, path: str, *, uid: str, resource_version: str = "", propagation: str = "Background"
    ) -> None:
        """Deletes that incarnation and no other: the API server answers 409 when a precondition fails."""
        preconditions = {"uid": uid}
        if resource_version:
            preconditions["resourceVersion"] = resource_version
        options = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": preconditions,
            "propagationPolicy": propagation,
        }
        await self._call(
            "delete",
            "DELETE",
            path,
            _decoder(msgspec.Raw),
            body=msgspec.json.encode(options),
            content_type=JSON,
            accept=METADATA_ONLY,
        )

    async def _call(
        self,
        verb: str,
        method: str,
        path: str,
        decoder: msgspec.json.Decoder[T],
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
        accept: str = JSON,
    ) -> T:
        headers = {"Accept": accept}
        if content_type:
            headers["Content-Type"] = content_type
        with _connection_errors():
            async with await self._send(
                verb, method, path, params=params or {}, body=body, headers=headers, limits=_TIMEOUT
            ) as response:
                content = await response.read()
        try:
            return _decoded(decoder, content)
        except msgspec.MsgspecError as error:
            raise _undecodable(error) from None

    async def _send(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str],
        body: bytes | None,
        headers: dict[str, str],
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The answer, its body still unread. Nothing is retried but what a stale token had refused."""
        # The server compresses what is larger than 128 kB if asked to; inside a cluster that costs more
        # time on both sides than it saves on the wire.
        headers |= {"Accept-Encoding": "identity"}
        # Names come from objects that anybody may have written, and an HTTP client folds dots: a path that is none of
        # plain segments would ask for something else than it seems to.
        if not _PLAIN_PATH.fullmatch(path) or ".." in path.split("/") or "." in path.split("/"):
            raise ValueError("a path with segments that are no names")
        fresh = False
        while True:
            authentication = await self._authentication()
            try:
                response = await self._session.request(
                    method,
                    self._client.configuration.host + path,
                    params=params,
                    data=body,
                    headers=headers | authentication,
                    timeout=limits,
                    **self._fixed,
                )
            except (aiohttp.ClientError, TimeoutError, OSError):
                self.on_request(verb, resource_of(path), 0)
                raise
            self.on_request(verb, resource_of(path), response.status)
            if response.status < 400:
                return response
            async with response:
                # Exec plugins and token files of a kubeconfig are read once by the official loader; a bound
                # token of a pod may be younger than its one-minute cache. A 401 was not executed, so even a
                # write may be sent again.
                if response.status == 401 and not fresh and await self._reauthenticate(authentication):
                    fresh = True
                    continue
                raise await _refusal(response)

    async def kubelet_metrics(self, endpoint: str) -> AsyncIterator[bytes]:
        """The lines of a kubelet's /metrics, from the kubelet itself: through the API server it would need the right to
        do anything there (nodes/proxy). Its certificate must be of the cluster's CA, since it gets our credentials.

        Raises:
            ApiError: it does not answer, or refuses.
        """
        if not _ENDPOINT.fullmatch(endpoint):
            raise ValueError("not an address and a port")
        with _connection_errors():
            authentication = await self._authentication()
            async with self._session.get(
                f"https://{endpoint}/metrics", headers=authentication, timeout=_TIMEOUT, allow_redirects=False
            ) as response:
                self.on_request("get", "kubelet", response.status)
                if response.status != 200:
                    raise await _refusal(response)
                async for lines in _lines(response.content):
                    for line in lines:
                        yield line

    async def _authentication(self) -> dict[str, str]:
        headers = dict(self._client.default_headers)
        try:
            await self._client.update_params_for_auth(headers, None, ["BearerToken"], "", "", None)
        except (kube_config.ConfigException, OSError) as error:
            raise ApiError(0, "Credentials", type(error).__name__) from error
        if "authorization" in headers:
            # A token file may end in a newline, which is no header value; client-go trims it too.
            headers["authorization"] = headers["authorization"].strip()
        return headers

    async def _reauthenticate(self, used: dict[str, str]) -> bool:
        """Reads the credentials again; is there now something else than what was just refused?"""
        async with self._reloading:
            if await self._authentication() == used:
                try:
                    await self._reload()
                except (kube_config.ConfigException, OSError) as error:
                    raise ApiError(0, "Credentials", type(error).__name__) from error
            return await self._authentication() != used


def _selectors(field_selector: str, label_selector: str) -> dict[str, str]:
    selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {name: value for name, value in selectors.items() if value}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """The complete lines of each chunk. `readline` would refuse the longest ones; a cut one is dropped, since
    the watch that resumes gets that event again."""
    partial: list[bytes] = []
    async for chunk in content.iter_any():
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join((*partial, complete[0]))
            partial = []
            yield [line for line in complete if line]
        if rest:
            partial.append(rest)


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ApiError(0, "Timeout", type(error).__name__) from error
    except aiohttp.ClientConnectorError as error:
        raise ApiError(0, "Connection", str(error)) from error  # host, port and errno
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(0, "Connection", type(error).__name__) from error


def _undecodable(error: Exception) -> ApiError:
    # msgspec names the place and the types, never a value.
    return ApiError(0, "Undecodable", str(error))


async def _refusal(response: aiohttp.ClientResponse) -> ApiError:
    try:
        status = _STATUSES.decode(await response.read())
    except msgspec.MsgspecError:  # a proxy, or a server that is shutting down
        status = _Status()
    try:
        retry_after = float(response.headers.get("Retry-After", ""))
    except ValueError:
        retry_after = None
    status.code = response.status
    return _error(
        status, default_status=response.status, default_reason=response.reason or "", retry_after=retry_after
    )


def _error(
    status: _Status, *, default_status: int, default_reason: str = "", retry_after: float | None = None
) -> ApiError:
    details = status.details or _StatusDetails()
    causes = tuple(Cause(cause.reason, cause.field) for cause in details.causes or ())
    message = status.message
    fields = [f"{cause.field} ({cause.reason})" for cause in causes if cause.field]
    if fields:  # a validation message quotes the values that it refuses
        message = ", ".join(fields)
    elif status.code == 400:  # a decoding message quotes what stands around the fault: |..c3VwZXItc2VjcmV0..|
        message = "the API server could not read the request"
    return ApiError(
        status.code or default_status,
        status.reason or default_reason,
        message,
        retry_after=retry_after if retry_after is not None else details.retry_after or None,
        causes=causes,
    )
