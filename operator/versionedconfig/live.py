"""Live lists that prove that nobody holds: consistent reads, never a cache.

Knows which kinds hold and how to list them; decides nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from versionedconfig.kube.api import Api, ApiError, accept_list, path_of
from versionedconfig.kube.mirror import Resource
from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.projection import CONTROLLER_REVISIONS, JOBS, REPLICA_SETS, WORKLOADS, PodItem
from versionedconfig.references import Holders, Kept, Source, referenced_names
from versionedconfig.settings import Settings
from versionedconfig.workload import Workload

logger = logging.getLogger(__name__)

TEMPLATES: tuple[Resource[Any], ...] = (*WORKLOADS.values(), REPLICA_SETS, CONTROLLER_REVISIONS, JOBS)

Listed = list[tuple[ObjectKey, Kept]]


class LiveLists:
    """One for the process: questions about different namespaces that come at the same time share the lists of other kinds
    than pods. Only kinds that can refer to what is asked for are listed, so that one that cannot be read keeps nothing
    waiting that it has nothing to do with."""

    def __init__(
        self,
        api: Api,
        sources: Callable[[], Iterable[Source]],
        pod_selector: str = Settings().pod_selector,
        custom: Callable[[], Mapping[str, Resource[Any]]] = dict,
    ) -> None:
        """
        Args:
            sources: tells all kinds but pods that hold, or help to read one that does.
            pod_selector: field selector of pods that hold.
            custom: tells people's own kinds of workloads, by the id of what tells of each.
        """
        self._api = api
        self._sources = sources
        self._pod_selector = pod_selector
        self._custom = custom
        self._running: dict[str, asyncio.Task[Listed]] = {}
        self._next: dict[str, asyncio.Task[Listed]] = {}
        """Not begun yet, so whoever asks now may have its answer. Both by the source's id."""

        self.unreadable: Callable[[str, ApiError], Awaitable[None]] = _nobody
        """Told the id of a source that cannot be listed, so that nothing can be released that it may hold."""

    async def held(
        self, namespace: str, lives: list[Incarnation], *, pods_only: bool = False
    ) -> set[ConfigKey]:
        """Which of these incarnations of one namespace something holds. Raises ApiError where a list failed: then
        nothing is known."""
        names = {(life.key.kind, life.key.name) for life in lives}
        used: set[tuple[str, str]] = set()
        path = path_of("/api/v1/pods", namespace)
        async for page in self._api.list_pages(path, item=PodItem, field_selector=self._pod_selector):
            for pod in page.items:
                used.update(name for name in referenced_names(pod.spec) if name in names)
        others = Holders({})
        if not pods_only:
            others = await self._others({kind for kind, _ in names}, namespace)
        return {life.key for life in lives if (life.key.kind, life.key.name) in used or others.held(life)}

    async def referred(self, namespace: str, *, revisions: bool = True) -> set[ConfigKey]:
        """What the templates of a namespace refer to, those of its unfinished Jobs and, if asked for, of old revisions
        included. Raises ApiError where a list failed."""
        found: set[ConfigKey] = set()
        for source_id, resource in (*(("", one) for one in TEMPLATES), *self._custom().items()):
            path = path_of(resource.path, namespace)
            try:
                async for page in self._api.list_pages(path, item=resource.item):
                    for one in map(resource.project, page.items):
                        if isinstance(one, Workload):
                            found.update(ConfigKey(r.kind, namespace, r.name) for r in one.references)
                        elif revisions or resource is JOBS:
                            found.update(one.keys)
            except ApiError as error:
                if error.status != 404:  # a custom kind that is gone
                    if source_id:
                        await self.unreadable(source_id, error)
                    raise
        return found

    async def close(self) -> None:
        """End the lists that nobody waits for any more: they outlive whoever asked."""
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _others(self, kinds: set[str], namespace: str) -> Holders:
        """Everything that may hold such objects but pods, from lists that begin after this call."""
        sources = [
            source for source in self._sources() if any(source.may_refer(kind, namespace) for kind in kinds)
        ]
        holders = Holders({source.id: source.rules for source in sources})
        listed = await asyncio.gather(*map(self._list, sources))
        for source, found in zip(sources, listed, strict=True):
            for key, kept in found:
                holders.put(source.id, key, kept)
        return holders

    async def _list(self, source: Source) -> Listed:
        if source.id not in self._next:
            self._next[source.id] = asyncio.create_task(self._after(self._running.get(source.id), source))
        try:
            return await asyncio.shield(self._next[source.id])
        except ApiError as error:
            logger.warning(
                "cannot be listed: what it may hold is not released",
                extra={"resource": source.rules.resource, "status": error.status},
            )
            await self.unreadable(source.id, error)
            raise

    async def _after(self, running: asyncio.Task[Listed] | None, source: Source) -> Listed:
        if running is not None:
            await asyncio.wait([running])
        mine = self._running[source.id] = self._next.pop(source.id)
        try:
            return await self._read(source)
        finally:
            if self._running.get(source.id) is mine:
                del self._running[source.id]

    async def _read(self, source: Source) -> Listed:
        found: Listed = []
        try:
            async for page in self._api.list_pages(
                source.rules.api_path, item=source.item, accept=accept_list(source.metadata_only)
            ):
                kept = map(source.kept, page.items)
                found += [(ObjectKey(one.namespace, one.name), one) for one in kept]
        except ApiError as error:
            # Not served here, see Resource.may_be_absent.
            if error.status != 404:
                raise
        return found


async def _nobody(source_id: str, error: ApiError) -> None:
    pass
