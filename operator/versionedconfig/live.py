"""Live lists that prove that nobody holds: consistent reads, never a cache.

Knows which kinds hold and how to list them; decides nothing.
"""

import asyncio
from collections.abc import Callable, Iterable

from versionedconfig.kube.api import Api, ApiError, accept_list
from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.references import Holders, Source, referenced_names
from versionedconfig.settings import Settings
from versionedconfig.view import PodItem


class LiveLists:
    """One for the process: questions about different namespaces that come at the same time share the lists of
    cluster-scoped kinds."""

    def __init__(
        self, api: Api, sources: Callable[[], Iterable[Source]], pod_selector: str = Settings().pod_selector
    ) -> None:
        """
        Args:
            sources: tells all kinds but pods that hold, or help to read one that does.
            pod_selector: field selector of pods that hold.
        """
        self._api = api
        self._sources = sources
        self._pod_selector = pod_selector
        self._running: asyncio.Task[Holders] | None = None
        self._next: asyncio.Task[Holders] | None = None
        """Not begun yet, so whoever asks now may have its answer."""

    async def held(
        self, namespace: str, lives: list[Incarnation], *, pods_only: bool = False
    ) -> set[ConfigKey]:
        """Which of these incarnations of one namespace something holds. Raises ApiError where a list failed: then
        nothing is known."""
        names = {(life.key.kind, life.key.name) for life in lives}
        used: set[tuple[str, str]] = set()
        path = f"/api/v1/namespaces/{namespace}/pods"
        async for page in self._api.list_pages(path, item=PodItem, field_selector=self._pod_selector):
            for pod in page.items:
                used.update(name for name in referenced_names(pod.spec) if name in names)
        others = Holders({}) if pods_only else await self._others()
        return {life.key for life in lives if (life.key.kind, life.key.name) in used or others.held(life)}

    async def _others(self) -> Holders:
        """Everything that holds but pods, from lists that begin after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[Holders] | None) -> Holders:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        sources = list(self._sources())
        holders = Holders({source.id: source.rules for source in sources})
        for source in sources:
            try:
                async for page in self._api.list_pages(
                    source.rules.api_path, item=source.item, accept=accept_list(source.metadata_only)
                ):
                    for item in page.items:
                        kept = source.kept(item)
                        holders.put(source.id, ObjectKey(kept.namespace, kept.name), kept)
            except ApiError as error:
                # Not served here, see Resource.may_be_absent.
                if error.status != 404:
                    raise
        return holders
