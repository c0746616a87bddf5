"""The operator's view of the cluster: one mirror per kind, and the indexes kept in step with them.

Knows which kinds are watched; projection.py says what is kept of each. Knows nothing of what is done about it. Controllers
read it and are told keys, never objects.
"""

import dataclasses
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from versionedconfig.kube.api import Api
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import (
    ConfigKey,
    Incarnation,
    Node,
    ObjectKey,
    WorkloadKey,
    owner_by_name,
)
from versionedconfig.projection import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PODS_RULES,
    REPLICA_SETS,
    SECRETS,
    WORKLOADS,
    Namespace,
    PodKept,
    holder_sources,
    source_resource,
)
from versionedconfig.references import Holders, Kept, ReferenceIndex, Source
from versionedconfig.references.index import Keys
from versionedconfig.settings import Settings
from versionedconfig.workload import CONTROLLER_REVISION, JOB, PATHS, REPLICA_SET, Revision, Workload


class View:
    """Mirrors and indexes. Set the callbacks before `run`; they are told keys, and must not block or raise.

    Attributes:
        holders: whoever keeps protection on: pods and cluster-scoped objects.
        templates: workloads by the ConfigKeys of their templates.
        revisions: old revisions of workloads, and unfinished Jobs, by the ConfigKeys of theirs.
    """

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self.config_changed: Callable[[ConfigKey], None] = _ignore
        """An incarnation came, went or changed, or its set of holders became empty or stopped being so."""
        self.usage_changed: Callable[[ConfigKey], None] = _ignore
        """Pods, templates or revisions began or ceased to refer to the key, a revision's number changed, or a pod that
        refers to it came into trouble or out of it."""
        self.pods_counted: Callable[[ConfigKey], None] = _ignore
        """The number of pods that refer to the key changed."""
        self.version_changed: Callable[[ObjectKey], None] = _ignore
        """A version of that VersionedConfig came, went or changed."""
        self.workload_changed: Callable[[WorkloadKey, frozenset[ConfigKey]], None] = _ignore
        """A workload changed; with every key that it refers to now or referred to before."""
        self.namespace_changed: Callable[[str], None] = _ignore
        """A namespace began to go, or is left alone or no longer."""
        self.pod_taken: Callable[[str, Keys], None] = _ignore
        """A pod was force-deleted: its node, and what it referred to."""
        self.pod_left: Callable[[Keys], None] = _ignore
        """A pod ended or was taken: what it referred to."""
        self.life_changed: Callable[[Incarnation | None, Incarnation | None], None] = _ignore
        """An incarnation came, went or changed: before, and now."""
        self.node_changed: Callable[[Node | None, Node | None], None] = _ignore
        """A node came, went or changed: before, and now."""

        self.sources: list[Source] = [*holder_sources(settings.hold)]
        """Of holders other than pods, and of what helps to read them."""
        kinds = {"pods": PODS_RULES, **{source.id: source.rules for source in self.sources}}
        self.holders = Holders(kinds, self._holders_changed, self._patterns_changed)
        self.templates: ReferenceIndex[WorkloadKey] = ReferenceIndex(self._template_names)
        self.revisions: ReferenceIndex[WorkloadKey] = ReferenceIndex(self._usage)
        self._claimed: defaultdict[ObjectKey, set[ConfigKey]] = defaultdict(set)
        """By the VersionedConfig whose version it would be: what templates refer to."""
        self._set_owners: dict[str, str] = {}
        """uid of each ReplicaSet to that of its controller: pods know the ReplicaSet alone."""
        self._troubled: defaultdict[str, dict[str, PodKept]] = defaultdict(dict)
        """By namespace and name."""
        self._owned: defaultdict[ObjectKey, set[ConfigKey]] = defaultdict(set)

        self.nodes: Mirror[Node] = Mirror(api, NODES, self._on_node)
        pods = dataclasses.replace(PODS, field_selector=settings.pod_selector)
        self.pods: Mirror[PodKept] = Mirror(api, pods, self._on_pod)
        self.config_maps: Mirror[Incarnation] = Mirror(api, CONFIG_MAPS, self._on_config)
        self.secrets: Mirror[Incarnation] = Mirror(api, SECRETS, self._on_config)
        self.namespaces: Mirror[Namespace] = Mirror(api, NAMESPACES, self._on_namespace)
        self.workloads: dict[str, Mirror[Workload]] = {
            kind: Mirror(api, resource, self._on_workload) for kind, resource in WORKLOADS.items()
        }
        """By kind; ReplicaSets are apart, since most of them are revisions."""
        self.custom: dict[str, Resource[Workload]] = {}
        """People's own kinds among them, by the id of what tells of each: live lists ask these too."""
        self._replica_sets: Mirror[Workload | Revision] = Mirror(api, REPLICA_SETS, self._on_replica_set)
        self._followers: dict[str, Mirror[Revision]] = {
            kind: Mirror(api, resource, functools.partial(self._on_revision, kind))
            for kind, resource in ((CONTROLLER_REVISION, CONTROLLER_REVISIONS), (JOB, JOBS))
        }
        self.referrers: tuple[Mirror[Kept], ...] = tuple(
            Mirror(api, source_resource(source), self._on_referrer(source.id)) for source in self.sources
        )

    @property
    def mirrors(self) -> tuple[Mirror[Any], ...]:
        """All of them, in the order in which they should start."""
        return (
            self.namespaces,
            self.nodes,
            self.config_maps,
            self.secrets,
            self.pods,
            *self.workloads.values(),
            self._replica_sets,
            *self._followers.values(),
            *self.referrers,
        )

    @property
    def needed(self) -> tuple[Mirror[Any], ...]:
        """Those without which nothing can be done. Other kinds that hold may come later, or be broken (a definition whose
        conversion fails): to protect, what is known is enough, and to release, a live list is asked in any case."""
        return tuple(mirror for mirror in self.mirrors if not mirror.resource.may_be_absent)

    @property
    def synced(self) -> bool:
        """Every kind that is needed was listed whole."""
        return all(mirror.synced for mirror in self.needed)

    def deaf(self, silence_seconds: float) -> list[str]:
        """Kinds of which nothing was heard for so long, listed or not."""
        since = time.monotonic() - silence_seconds
        return [mirror.resource.name for mirror in self.needed if mirror.last_heard < since]

    def incarnation(self, key: ConfigKey) -> Incarnation | None:
        """The life that the key has now, if any."""
        mirror = self.config_maps if key.kind == "ConfigMap" else self.secrets
        return mirror.objects.get(ObjectKey(key.namespace, key.name))

    def incarnations(self) -> Iterator[Incarnation]:
        """All of both kinds."""
        yield from self.config_maps.objects.values()
        yield from self.secrets.objects.values()

    def versions(self, owner: ObjectKey) -> list[Incarnation]:
        """The versions of a VersionedConfig."""
        return [life for life in self.made(owner) if not life.alias]

    def made(self, owner: ObjectKey) -> list[Incarnation]:
        """The same, with the alias: two where the VersionedConfig was of the other kind before."""
        found = (self.incarnation(key) for key in self._owned.get(owner, ()))
        return [life for life in found if life is not None]

    def lost(self, owner: ObjectKey, kind: str) -> frozenset[str]:
        """Names of versions of a VersionedConfig that templates refer to, and that are not there any more."""
        claimed = self._claimed.get(owner, ())
        return frozenset(key.name for key in claimed if key.kind == kind and self.incarnation(key) is None)

    def owners(self) -> Iterator[ObjectKey]:
        """Every VersionedConfig that has versions or an alias, whether it still exists or not."""
        return iter(list(self._owned))

    def terminating(self, namespace: str) -> bool:
        """The namespace is being deleted."""
        kept = self.namespaces.objects.get(ObjectKey("", namespace))
        return kept is not None and kept.deleting

    def ignored(self, namespace: str) -> bool:
        """Somebody asked to leave the whole namespace alone."""
        kept = self.namespaces.objects.get(ObjectKey("", namespace))
        return kept is not None and kept.ignored

    def node(self, name: str) -> Node | None:
        """The node of that name."""
        return self.nodes.objects.get(ObjectKey("", name))

    def used(self, life: Incarnation) -> bool:
        """A holder, a template, an old revision or an unfinished Job refers to it."""
        return self.in_use(life) or bool(self.revisions.referrers(life.key))

    def in_use(self, life: Incarnation) -> bool:
        """The same, but for old revisions: nothing runs with them."""
        jobs = (one for one in self.revisions.referrers(life.key) if one.kind == JOB)
        return self.holders.held(life) or bool(self.templates.referrers(life.key)) or any(jobs)

    def collection(self, kind: str) -> str:
        """Path of the collection of a kind of workloads, over all namespaces."""
        return PATHS[kind] if kind in PATHS else self.workloads[kind].resource.path

    def add_workloads(self, kind: str, resource: Resource[Workload]) -> Mirror[Workload]:
        """The mirror of a further kind of workloads; they count from `use_workloads` on."""

        def changed(old: Workload | None, new: Workload | None) -> None:
            if self.workloads.get(kind) is mirror:
                self._on_workload(old, new)

        mirror = Mirror(self._api, resource, changed)
        return mirror

    def use_workloads(self, kind: str, mirror: Mirror[Workload]) -> None:
        """From now on these are the workloads of that kind, instead of any other ones."""
        before = self.workloads[kind].objects if kind in self.workloads else {}
        self.workloads[kind] = mirror
        for key in {*before, *mirror.objects}:
            self._on_workload(before.get(key), mirror.objects.get(key))

    def drop_workloads(self, kind: str, mirror: Mirror[Workload]) -> None:
        """They are no workloads any more, unless others of that kind are in their place."""
        if self.workloads.get(kind) is mirror:
            del self.workloads[kind]
            for workload in list(mirror.objects.values()):
                self._on_workload(workload, None)

    def workload(self, key: WorkloadKey) -> Workload | None:
        """The workload of that name."""
        name = ObjectKey(key.namespace, key.name)
        if key.kind == REPLICA_SET:
            found = self._replica_sets.objects.get(name)
            return found if isinstance(found, Workload) else None
        mirror = self.workloads.get(key.kind)
        return mirror.objects.get(name) if mirror is not None else None

    def revision(self, key: WorkloadKey) -> Revision | None:
        """The old revision, or unfinished Job, of that name."""
        name = ObjectKey(key.namespace, key.name)
        if key.kind == REPLICA_SET:
            found = self._replica_sets.objects.get(name)
            return found if isinstance(found, Revision) else None
        return self._followers[key.kind].objects.get(name)

    def latest_revisions(self, namespace: str) -> dict[str, int]:
        """The highest revision of each workload of a namespace, by the workload's uid."""
        latest: dict[str, int] = {}
        for mirror in (self._replica_sets, self._followers[CONTROLLER_REVISION]):
            for key, one in mirror.objects.items():
                if key.namespace == namespace and isinstance(one, Revision):
                    latest[one.owner_uid] = max(one.revision, latest.get(one.owner_uid, 0))
        return latest

    def troubled(self, namespace: str) -> Iterator[tuple[str, PodKept]]:
        """Pods of a namespace with a container that does not start, or was started again, each with the uid of its
        workload."""
        for pod in self._troubled.get(namespace, {}).values():
            yield self.workload_uid(pod), pod

    def workload_uid(self, pod: PodKept) -> str:
        """uid of the workload that the pod is one of; of a ReplicaSet or a Job where that is nobody's revision."""
        return self._set_owners.get(pod.owner, pod.owner)

    def pods_of(self, key: ConfigKey) -> Iterator[PodKept]:
        """Those that refer to the key."""
        found = (self.pods.objects.get(pod) for pod in self.holders.pods(key))
        return (pod for pod in found if pod is not None)

    def _on_pod(self, old: PodKept | None, new: PodKept | None) -> None:
        changed = new or old
        if changed is None:
            return
        key = ObjectKey(changed.namespace, changed.name)
        self.holders.put("pods", key, new)
        if new is None and changed.forced and changed.node:
            self.pod_taken(changed.node, changed.keys)
        if new is None and changed.node:
            self.pod_left(changed.keys)
        before, now = _condition(old), _condition(new)
        if new is not None and any(now):
            self._troubled[key.namespace][key.name] = new
        elif any(before):
            self._troubled[key.namespace].pop(key.name, None)
            if not self._troubled[key.namespace]:
                del self._troubled[key.namespace]
        if before != now:
            for one in changed.keys:
                self._usage(one)
        if old is None or new is None:
            for one in changed.keys:
                self.pods_counted(one)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        self.node_changed(old, new)

    def add_source(self, source: Source) -> Mirror[Kept]:
        """A further kind that holds, from when its mirror is run; it counts in live lists from `trust` on."""
        self.holders.add(source.id, source.rules)
        return Mirror(self._api, source_resource(source), self._on_referrer(source.id))

    def trust(self, source: Source) -> None:
        """Its mirror is synced: from now on nothing is released without asking this kind too."""
        if source not in self.sources:
            self.sources.append(source)

    def drop_source(self, source: Source) -> None:
        """It holds nothing any more."""
        if source in self.sources:
            self.sources.remove(source)
        self.holders.drop(source.id)

    def _on_referrer(self, resource: str) -> Callable[[Kept | None, Kept | None], None]:
        def changed(old: Kept | None, new: Kept | None) -> None:
            if (either := new or old) is not None:
                self.holders.put(resource, ObjectKey(either.namespace, either.name), new)

        return changed

    def _on_config(self, old: Incarnation | None, new: Incarnation | None) -> None:
        for life in (old, new):
            if life is not None and (name := _maker(life)):
                owner = ObjectKey(life.namespace, name)
                if life is new:
                    self._owned[owner].add(life.key)
                elif new is None or _maker(new) != name:
                    self._owned[owner].discard(life.key)
                    if not self._owned[owner]:
                        del self._owned[owner]
                self.version_changed(owner)
        self.life_changed(old, new)
        if (changed := new or old) is not None:
            self.config_changed(changed.key)

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and (new.deleting or new.ignored != (old is not None and old.ignored)):
            self.namespace_changed(new.name)

    def _on_workload(self, old: Workload | None, new: Workload | None) -> None:
        changed = new or old
        if changed is None:
            return
        key = changed.key
        before = self.templates.keys_of(key)
        references = new.references if new is not None else ()
        keys = tuple(sorted({ConfigKey(ref.kind, key.namespace, ref.name) for ref in references}))
        self.templates.put(key, keys)
        self.workload_changed(key, frozenset((*before, *keys)))

    def _on_replica_set(self, old: Workload | Revision | None, new: Workload | Revision | None) -> None:
        # One that is adopted or orphaned turns from the one into the other.
        for life in (old, new):
            if isinstance(life, Revision):
                if life is new:
                    self._set_owners[life.uid] = life.owner_uid
                else:
                    self._set_owners.pop(life.uid, None)
        self._on_workload(
            old if isinstance(old, Workload) else None, new if isinstance(new, Workload) else None
        )
        self._on_revision(
            REPLICA_SET,
            old if isinstance(old, Revision) else None,
            new if isinstance(new, Revision) else None,
        )

    def _on_revision(self, kind: str, old: Revision | None, new: Revision | None) -> None:
        if (changed := new or old) is not None:
            key = WorkloadKey(kind, changed.namespace, changed.name)
            self.revisions.put(key, new.keys if new is not None else ())
        before, now = (set(life.keys) if life is not None else set() for life in (old, new))
        if old is not None and new is not None and old.revision != new.revision:
            before = set()
        # The index tells of the first and the last one alone, and each of them is told of by name.
        for one in before ^ now:
            self._usage(one)

    def _holders_changed(self, key: ConfigKey) -> None:
        self.config_changed(key)
        self.usage_changed(key)

    def _patterns_changed(self) -> None:
        for life in self.incarnations():
            if life.immutable:
                self._holders_changed(life.key)

    def _template_names(self, key: ConfigKey) -> None:
        """Templates begin or cease to refer to it."""
        if name := owner_by_name(key.name):
            owner = ObjectKey(key.namespace, name)
            if self.templates.referrers(key):
                self._claimed[owner].add(key)
            else:
                self._claimed[owner].discard(key)
                if not self._claimed[owner]:
                    del self._claimed[owner]
        self._usage(key)

    def _usage(self, key: ConfigKey) -> None:
        self.usage_changed(key)


def _maker(life: Incarnation) -> str:
    """Name of the VersionedConfig that it was made from."""
    return life.name if life.alias else life.owner


def _condition(pod: PodKept | None) -> tuple[str, str]:
    return (pod.trouble, pod.restarted) if pod is not None else ("", "")


def _ignore(*_: object) -> None:
    pass
