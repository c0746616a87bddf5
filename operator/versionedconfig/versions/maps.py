"""Writes one VersionMap per namespace: which version a logical name means when a workload is created.

An admission policy reads it (manifests/components/rewrite-at-admission). A map that is a moment late does no harm: the
operator moves what was created meanwhile.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.kube.queue import WorkQueue
from versionedconfig.model import API_VERSION, GROUP, ObjectKey
from versionedconfig.view import View

PATH: Final = f"/apis/{GROUP}/{API_VERSION}/versionmaps"
NAME: Final = "versionedconfig"
"""Of each of them: the policy's binding names it."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Metadata(_Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resource_version: str


class Entries(_Struct, frozen=True):
    """Logical names to names of versions."""

    config_maps: dict[str, str] = {}
    secrets: dict[str, str] = {}
    only: dict[str, list[str]] = {}
    """`configMaps/<name>` to the workloads that are meant, as `Deployment/web`; every one where a name is not here."""


class _Item(_Struct, frozen=True):
    metadata: _Metadata
    spec: Entries = Entries()


class VersionMap(msgspec.Struct, frozen=True):
    """What is kept of one."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    entries: Entries


def _kept(item: _Item) -> VersionMap:
    meta = item.metadata
    return VersionMap(meta.namespace, meta.name, meta.uid, meta.resource_version, item.spec)


VERSION_MAPS: Final = Resource(name="versionmaps", path=PATH, item=_Item, project=_kept, may_be_absent=True)


class Meaning(NamedTuple):
    """What a logical name stands for."""

    kind: str
    version: str
    only: tuple[str, ...] | None = None
    """The workloads that are meant; None: every one."""


FIELDS: Final = {"ConfigMap": "configMaps", "Secret": "secrets"}


class VersionMaps:
    """One for the process."""

    def __init__(self, api: Api, view: View) -> None:
        self._api = api
        self._view = view
        self._meant: dict[str, dict[str, Meaning]] = {}
        """By namespace and logical name."""
        self._unknown: set[ObjectKey] = set()
        """VersionedConfigs that were not looked at yet: what the map says of them stays."""
        self.mirror: Mirror[VersionMap] = Mirror(api, VERSION_MAPS, self._changed)
        self.mirror.on_listed = self._look_at_all
        self.queue: WorkQueue[str] = WorkQueue(name="maps")
        self._expected = asyncio.Event()

    async def run(self) -> None:
        """Work for ever."""
        await self.mirror.wait_synced()
        await self._expected.wait()
        self._look_at_all()
        await self.queue.run(self.reconcile)

    def expect(self, owners: Iterable[ObjectKey]) -> None:
        """All VersionedConfigs that there are at the start. Before, nothing is written."""
        self._unknown.update(owners)
        self._expected.set()

    def mean(self, owner: ObjectKey, now: Meaning | None) -> None:
        """What its name stands for from now on."""
        self._unknown.discard(owner)
        meant = self._meant.setdefault(owner.namespace, {})
        if meant.get(owner.name) != now:
            if now is None:
                del meant[owner.name]
            else:
                meant[owner.name] = now
        if not meant:
            del self._meant[owner.namespace]
        self.queue.add(owner.namespace)

    def missing(self) -> Iterator[ObjectKey]:
        """VersionedConfigs whose name the map of their namespace lacks, or tells otherwise than it is meant."""
        for namespace, meant in self._meant.items():
            kept = self.mirror.objects.get(ObjectKey(namespace, NAME))
            entries = kept.entries if kept is not None else Entries()
            there = {"ConfigMap": entries.config_maps, "Secret": entries.secrets}
            if not self._view.terminating(namespace):
                for name, meaning in meant.items():
                    if there[meaning.kind].get(name) != meaning.version:
                        yield ObjectKey(namespace, name)

    async def reconcile(self, namespace: str) -> None:
        """Bring one namespace's map in step."""
        if not self.mirror.counters.lists:
            return  # the CRD is not there
        kept = self.mirror.objects.get(ObjectKey(namespace, NAME))
        present = kept.entries if kept is not None else Entries()
        wanted = self._entries(namespace, present)
        if self._view.terminating(namespace) or wanted == present:
            return
        try:
            await self._write(namespace, kept, present, wanted)
        except ApiError as error:
            # 404: the CRD is not there, or the namespace is gone. 409: it came meanwhile. 422: another one by now. In each
            # case an event follows.
            if error.status not in (404, 409, 422) and not error.has_cause("NamespaceTerminating"):
                raise

    async def _write(
        self, namespace: str, kept: VersionMap | None, present: Entries, wanted: Entries
    ) -> None:
        collection = path_of(PATH, namespace)
        if kept is None:
            body = {
                "apiVersion": f"{GROUP}/{API_VERSION}",
                "kind": "VersionMap",
                "metadata": {"name": NAME},
                "spec": wanted,
            }
            await self._api.create(collection, body, type=msgspec.Raw)
        elif wanted == Entries():
            await self._api.delete(f"{collection}/{NAME}", uid=kept.uid)
        else:
            change = [
                {"op": "test", "path": "/metadata/uid", "value": kept.uid},
                {"op": "replace", "path": "/spec", "value": wanted},
            ]
            await self._api.patch(f"{collection}/{NAME}", change, kind="json", type=msgspec.Raw)

    def _entries(self, namespace: str, present: Entries) -> Entries:
        meant = dict(self._meant.get(namespace, {}))
        for kind, before in (("ConfigMap", present.config_maps), ("Secret", present.secrets)):
            for name, version in before.items():
                if ObjectKey(namespace, name) in self._unknown:
                    only = present.only.get(f"{FIELDS[kind]}/{name}")
                    meant[name] = Meaning(kind, version, None if only is None else tuple(only))
        versions: dict[str, dict[str, str]] = {kind: {} for kind in FIELDS}
        only_for = {}
        for name, meaning in sorted(meant.items()):
            versions[meaning.kind][name] = meaning.version
            if meaning.only is not None:
                only_for[f"{FIELDS[meaning.kind]}/{name}"] = list(meaning.only)
        return Entries(versions["ConfigMap"], versions["Secret"], only_for)

    def _look_at_all(self) -> None:
        for namespace in {*self._meant, *(key.namespace for key in self.mirror.objects)}:
            self.queue.add(namespace)

    def _changed(self, old: VersionMap | None, new: VersionMap | None) -> None:
        if (changed := new or old) is not None:
            self.queue.add(changed.namespace)
