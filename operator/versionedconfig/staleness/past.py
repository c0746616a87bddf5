"""What the API server still knows of the last minutes. Reads; decides nothing.

etcd keeps earlier revisions until they are compacted (kube-apiserver --etcd-compaction-interval: every five minutes), and a
list can be asked for at any of them (resourceVersionMatch=Exact). So where an object was deleted and created again shortly
before the operator came, the earlier one and the pods that ran then can still be seen.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.projection import CONFIG_MAPS, SECRETS
from versionedconfig.staleness.pods import CloseItem, ClosePod, close_pod

FAR: Final = 2**22
"""Revisions that are looked through, at most: more writes than a cluster sees between two compactions."""


MOMENTS: Final = 16
MOST: Final = 60
"""Lists of pods since then, at most, evenly spread and when a pod that is there now was written last."""


@dataclass(frozen=True, slots=True)
class Past:
    """Just before an object vanished."""

    life: Incarnation
    pods: tuple[ClosePod, ...]
    """Of its namespace."""
    since: tuple[tuple[ClosePod, ...], ...]
    """The same at some moments since, in order; the last one is now."""


async def look_back(api: Api, key: ConfigKey, live_uid: str) -> Past | None:
    """The object that had the key before the live one (an empty uid: there is none now); None if that is not known any
    more. One that was there for fewer versions than the name was free may be passed over.

    Raises:
        ApiError: something else is wrong.
    """
    resource = CONFIG_MAPS if key.kind == "ConfigMap" else SECRETS
    path = path_of(resource.path, key.namespace)
    selector = f"metadata.name={key.name}"

    async def at(version: int) -> Incarnation | None:
        page = await api.list_page(
            path, item=resource.item, field_selector=selector, limit=1, resource_version=str(version)
        )
        return resource.project(page.items[0]) if page.items else None

    async def is_live(version: int) -> bool:
        found = await at(version)
        return found is not None and found.uid == live_uid

    async def is_none(version: int) -> bool:
        return await at(version) is None

    page = await api.list_page(path, item=resource.item, field_selector=selector, limit=1)
    if not page.resource_version.isdecimal():
        return None
    newest = int(page.resource_version)
    born = await _first(is_live, max(newest - FAR, 0), newest) if live_uid else newest + 1
    try:
        before = born - 1
        # Before the earlier one there was none either: look back in ever longer steps until it is there.
        back, step = before, 1
        while back > 0 and (await at(back)) is None:
            back, step = before - step, step * 2
        if back <= 0:
            return None
        if back < before:
            before = await _first(is_none, back, before) - 1
        life = await at(before)
    except ApiError as error:
        if error.status == 410:
            return None
        raise
    if life is None:
        return None
    pods = await _pods(api, key.namespace, before)
    present = await _pods(api, key.namespace, 0)
    # A pod's last version is mostly that in which it was ready, and those that it replaced were still there.
    using = {int(pod.resource_version) for pod in present if pod.usage(key.kind, key.name) is not None}
    spread = {before + (newest - before) * i // MOMENTS for i in range(1, MOMENTS)}
    moments = sorted(version for version in (*sorted(using)[:MOST], *spread) if before < version <= newest)
    since = [await _pods(api, key.namespace, version) for version in dict.fromkeys(moments)]
    return Past(life, pods, (*since, present))


async def _first(holds: Callable[[int], Awaitable[bool]], low: int, high: int) -> int:
    """The first version from which on it holds, as it does at `high`; what is compacted does not."""
    while high - low > 1:
        middle = (low + high) // 2
        try:
            found = await holds(middle)
        except ApiError as error:
            if error.status != 410:
                raise
            found = False
        low, high = (low, middle) if found else (middle, high)
    return high


async def _pods(api: Api, namespace: str, version: int) -> tuple[ClosePod, ...]:
    path = path_of("/api/v1/pods", namespace)
    pages = api.list_pages(path, item=CloseItem, limit=250, resource_version=str(version or ""))
    return tuple([close_pod(item) async for page in pages for item in page.items])
