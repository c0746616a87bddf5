"""Writes one VersionMap per namespace: which version a logical name means when a workload is created.

An admission policy reads it (manifests/components/rewrite-at-admission). A map that is a moment late does no harm: the
operator moves what was created meanwhile.
"""

import asyncio
from collections.abc import Iterable
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

    def mean(self, owner: ObjectKey, kind: str, version: str) -> None:
        """What its name stands for from now on; empty: nothing."""
        self._unknown.discard(owner)
        meant = self._meant.setdefault(owner.namespace, {})
        now = Meaning(kind, version) if version else None
        if meant.get(owner.name) != now:
            if now is None:
                del meant[owner.name]
            else:
                meant[owner.name] = now
        if not meant:
            del self._meant[owner.namespace]
        self.queue.add(owner.namespace)

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
            # 404: another one by now, the CRD is not there, or the namespace is gone. 409: it came meanwhile. In each case
            # an event follows.
            if error.status not in (404, 409) and not error.has_cause("NamespaceTerminating"):
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
            spec = {
                field: {**dict.fromkeys(before.keys() - now.keys()), **now}
                for field, before, now in (
                    ("configMaps", present.config_maps, wanted.config_maps),
                    ("secrets", present.secrets, wanted.secrets),
                )
            }
            body = {"metadata": {"uid": kept.uid}, "spec": spec}
            await self._api.patch(f"{collection}/{NAME}", body, kind="merge", type=msgspec.Raw)

    def _entries(self, namespace: str, present: Entries) -> Entries:
        found: dict[str, dict[str, str]] = {"ConfigMap": {}, "Secret": {}}
        for kind, before in (("ConfigMap", present.config_maps), ("Secret", present.secrets)):
            for name, version in before.items():
                if ObjectKey(namespace, name) in self._unknown:
                    found[kind][name] = version
        for name, meaning in self._meant.get(namespace, {}).items():
            found[meaning.kind][name] = meaning.version
        return Entries(found["ConfigMap"], found["Secret"])

    def _look_at_all(self) -> None:
        for namespace in {*self._meant, *(key.namespace for key in self.mirror.objects)}:
            self.queue.add(namespace)

    def _changed(self, old: VersionMap | None, new: VersionMap | None) -> None:
        if (changed := new or old) is not None:
            self.queue.add(changed.namespace)
