"""The operator's view of the cluster: one mirror per kind, and the indexes kept in step with them.

Knows which kinds are watched and what is kept of each; knows nothing of what is done about it. Controllers read it and
are told keys, never objects.
"""

import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from versionedconfig.kube.api import Api
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import (
    DIGEST_ANNOTATION,
    IGNORE_ANNOTATION,
    IN_USE_FINALIZER,
    NAME_ANNOTATION,
    QUARANTINE_ANNOTATION,
    RELEASE_ANNOTATION,
    ConfigKey,
    Incarnation,
    Node,
    ObjectKey,
    owner_of,
)
from versionedconfig.references import (
    CATALOGUE,
    Holders,
    Kept,
    PodSpec,
    ReferenceIndex,
    Source,
    pod_references,
    referenced_names,
)
from versionedconfig.references.index import Keys
from versionedconfig.settings import Settings
from versionedconfig.workload import DeploymentState, Revision, Workload, health

NEVER_TOUCHED = frozenset(
    {"helm.sh/release.v1", "kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"}
)
"""Types of Secrets that other controllers write and delete by themselves."""

MAX_QUARANTINE = 16_384
"""Characters; quarantine.py writes fewer. Anybody can write more, and of every object."""

MAX_REASON = 200
"""Characters of a reason that are told again."""

REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
MAX_REVISION_DIGITS = 18
"""An int64, as the deployment controller reads it and as our status holds it."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _Owner(_Struct, frozen=True):
    uid: str
    controller: bool = False


class _Metadata(_Struct, frozen=True):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _PodStatus(_Struct, frozen=True):
    phase: str = ""


class PodItem(_Struct, frozen=True):
    """What is decoded of a pod."""

    metadata: _Metadata
    spec: PodSpec
    status: _PodStatus = _PodStatus()


class _ConfigMetadata(_Metadata, frozen=True):
    labels: dict[str, str] | None = None


class ConfigItem(_Struct, frozen=True):
    """What is decoded of a ConfigMap or Secret: never its data."""

    metadata: _ConfigMetadata
    immutable: bool | None = None
    type: str = ""
    """Of a Secret."""


class _Template(_Struct, frozen=True):
    spec: PodSpec = PodSpec()


class _WorkloadSpec(_Struct, frozen=True):
    template: _Template = _Template()
    replicas: int = 1
    paused: bool = False


class _Condition(_Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _WorkloadStatus(_Struct, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    conditions: list[_Condition] | None = None


class WorkloadItem(_Struct, frozen=True):
    """What is decoded of a Deployment or ReplicaSet."""

    metadata: _Metadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()


class NamespaceItem(_Struct, frozen=True):
    """What is decoded of a namespace."""

    metadata: _Metadata


class _NodeInfo(_Struct, frozen=True):
    boot_id: str = msgspec.field(name="bootID", default="")


class _NodeStatus(_Struct, frozen=True):
    node_info: _NodeInfo = _NodeInfo()
    conditions: list[_Condition] | None = None


class NodeItem(_Struct, frozen=True):
    """What is decoded of a node."""

    metadata: _Metadata
    status: _NodeStatus = _NodeStatus()


class PodKept(Kept, frozen=True):
    """What is kept of a pod."""

    node: str = ""
    forced: bool = False
    """It was taken out of the API without asking its kubelet; seen in its last state only."""


class Namespace(msgspec.Struct, frozen=True):
    """What is kept of a namespace."""

    name: str
    uid: str
    resource_version: str
    deleting: bool
    ignored: bool
    namespace: str = ""


def pod_kept(item: PodItem) -> PodKept:
    """What is kept of a pod: what it refers to, and where it runs."""
    meta = item.metadata
    return PodKept(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        keys=tuple(ConfigKey(kind, meta.namespace, name) for kind, name in referenced_names(item.spec)),
        node=sys.intern(item.spec.nodeName or ""),
        # A pod that its kubelet ends is finished first (kubelet status_manager.go, since 1.27): whoever vanishes with no
        # time left and not finished was taken away.
        forced=meta.deletion_grace_period_seconds == 0 and item.status.phase not in ("Succeeded", "Failed"),
    )


def node_kept(item: NodeItem) -> Node:
    """What is kept of a node: whether it may still run a pod that is gone."""
    meta, status = item.metadata, item.status
    ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())
    return Node(meta.name, meta.uid, meta.resource_version, status.node_info.boot_id, ready)


def namespace_kept(item: NamespaceItem) -> Namespace:
    """What is kept of a namespace: whether it is on its way out, or left alone."""
    meta = item.metadata
    ignored = (meta.annotations or {}).get(IGNORE_ANNOTATION) == "true"
    return Namespace(meta.name, meta.uid, meta.resource_version, meta.deletion_timestamp is not None, ignored)


def incarnation(kind: str) -> Callable[[ConfigItem], Incarnation]:
    """The projection of a config object of that kind."""

    def project(item: ConfigItem) -> Incarnation:
        meta = item.metadata
        annotations = meta.annotations or {}
        key = ConfigKey(kind, meta.namespace, meta.name)
        in_use = IN_USE_FINALIZER in (meta.finalizers or ())
        return Incarnation(
            key=key,
            uid=meta.uid,
            resource_version=meta.resource_version,
            immutable=item.immutable is True,
            in_use=in_use,
            deleting=meta.deletion_timestamp is not None,
            ignored=annotations.get(IGNORE_ANNOTATION) == "true" or item.type in NEVER_TOUCHED,
            release=annotations.get(RELEASE_ANNOTATION, "").strip()[:MAX_REASON],
            quarantine=annotations.get(QUARANTINE_ANNOTATION, "")[:MAX_QUARANTINE] if in_use else "",
            owner=owner_of(key, item.immutable is True, annotations.get(NAME_ANNOTATION, "")),
            digest=annotations.get(DIGEST_ANNOTATION, "")[:64],
            labels=tuple(sorted((meta.labels or {}).items())) if item.immutable else (),
            created=meta.creation_timestamp,
        )

    return project


def workload(item: WorkloadItem) -> Workload:
    """The projection of a Deployment."""
    meta, spec, status = item.metadata, item.spec, item.status
    stuck = next((c for c in status.conditions or () if c.reason == "ProgressDeadlineExceeded"), None)
    state = DeploymentState(
        generation=meta.generation,
        observed_generation=status.observed_generation,
        wanted=spec.replicas,
        total=status.replicas,
        updated=status.updated_replicas,
        available=status.available_replicas,
        paused=spec.paused,
        deadline_exceeded=stuck is not None,
    )
    return Workload(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        pending=max(0, meta.generation - status.observed_generation),
        references=tuple(pod_references(spec.template.spec)),
        revision=_revision(meta),
        health=health(state),
        message=stuck.message if stuck is not None else "",
    )


def revision(item: WorkloadItem) -> Revision:
    """The projection of a ReplicaSet."""
    meta = item.metadata
    owner = next((owner.uid for owner in meta.owner_references or () if owner.controller), "")
    return Revision(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        keys=tuple(
            ConfigKey(kind, meta.namespace, name) for kind, name in referenced_names(item.spec.template.spec)
        ),
        revision=_revision(meta),
        owner_uid=owner,
    )


def _revision(meta: _Metadata) -> int:
    text = (meta.annotations or {}).get(REVISION_ANNOTATION, "")
    # Anybody can write it, and int() refuses thousands of digits: a projection must not raise.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_REVISION_DIGITS else 0


CONFIG_PAGE = 50
"""Each may have more than a MiB, and a page is in memory whole."""

PODS = Resource(name="pods", path="/api/v1/pods", item=PodItem, project=pod_kept)
CONFIG_MAPS = Resource(
    name="configmaps",
    path="/api/v1/configmaps",
    item=ConfigItem,
    project=incarnation("ConfigMap"),
    page_limit=CONFIG_PAGE,
)
SECRETS = Resource(
    name="secrets",
    path="/api/v1/secrets",
    item=ConfigItem,
    project=incarnation("Secret"),
    page_limit=CONFIG_PAGE,
)
NAMESPACES = Resource(
    name="namespaces", path="/api/v1/namespaces", item=NamespaceItem, project=namespace_kept
)
NODES = Resource(name="nodes", path="/api/v1/nodes", item=NodeItem, project=node_kept)
DEPLOYMENTS = Resource(
    name="deployments", path="/apis/apps/v1/deployments", item=WorkloadItem, project=workload
)
REPLICA_SETS = Resource(
    name="replicasets", path="/apis/apps/v1/replicasets", item=WorkloadItem, project=revision
)


PODS_RULES = next(kind for kind in CATALOGUE.kinds if kind.resource == "pods")


def holder_sources(hold: Collection[str] = ()) -> tuple[Source, ...]:
    """Every kind, pods apart, that holds or that is needed to read one that does.

    Args:
        hold: kinds that hold beside those of which the catalogue says so, as `ingresses.networking.k8s.io`.

    Raises:
        ValueError: one of them is not in the catalogue.
    """
    if unknown := set(hold) - {kind.resource for kind in CATALOGUE.kinds}:
        known = ", ".join(sorted(kind.resource for kind in CATALOGUE.kinds if not kind.holder))
        raise ValueError(f"no rules for {', '.join(sorted(unknown))}: these can be told to hold: {known}")
    holding = [
        kind for kind in CATALOGUE.kinds if (kind.holder or kind.resource in hold) and kind is not PODS_RULES
    ]
    helping = {kind.linked for kind in holding}
    return tuple(
        Source(kind, CATALOGUE.fragments)
        for kind in CATALOGUE.kinds
        if kind in holding or kind.resource in helping
    )


def api_path(key: ConfigKey) -> str:
    """Where the API server keeps a config object."""
    return f"/api/v1/namespaces/{key.namespace}/{key.kind.lower()}s/{key.name}"


class View:
    """Mirrors and indexes. Set the callbacks before `run`; they are told keys, and must not block or raise.

    Attributes:
        holders: whoever keeps protection on: pods and cluster-scoped objects.
        templates: Deployments by the ConfigKeys of their templates.
        revisions: ReplicaSets by the ConfigKeys of theirs.
    """

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self.config_changed: Callable[[ConfigKey], None] = _ignore
        """An incarnation came, went or changed, or its set of holders became empty or stopped being so."""
        self.usage_changed: Callable[[ConfigKey], None] = _ignore
        """Pods, templates or revisions began or ceased to refer to the key, or a revision's number changed."""
        self.version_changed: Callable[[ObjectKey], None] = _ignore
        """A version of that VersionedConfig came, went or changed."""
        self.workload_changed: Callable[[ObjectKey, frozenset[ConfigKey]], None] = _ignore
        """A Deployment changed; with every key that it refers to now or referred to before."""
        self.namespace_changed: Callable[[str], None] = _ignore
        """A namespace began to go, or is left alone or no longer."""
        self.pod_taken: Callable[[str, Keys], None] = _ignore
        """A pod was force-deleted: its node, and what it referred to."""

        self.sources: list[Source] = [*holder_sources(settings.hold)]
        """Of holders other than pods, and of what helps to read them."""
        kinds = {"pods": PODS_RULES, **{source.id: source.rules for source in self.sources}}
        self.holders = Holders(kinds, self._holders_changed, self._patterns_changed)
        self.templates = ReferenceIndex(self._usage)
        self.revisions = ReferenceIndex(self._usage)
        self._owned: defaultdict[ObjectKey, set[ConfigKey]] = defaultdict(set)

        self.nodes: Mirror[Node] = Mirror(api, NODES, _ignore)
        pods = dataclasses.replace(PODS, field_selector=settings.pod_selector)
        self.pods: Mirror[PodKept] = Mirror(api, pods, self._on_pod)
        self.config_maps: Mirror[Incarnation] = Mirror(api, CONFIG_MAPS, self._on_config)
        self.secrets: Mirror[Incarnation] = Mirror(api, SECRETS, self._on_config)
        self.namespaces: Mirror[Namespace] = Mirror(api, NAMESPACES, self._on_namespace)
        self.deployments: Mirror[Workload] = Mirror(api, DEPLOYMENTS, self._on_workload)
        self.replica_sets: Mirror[Revision] = Mirror(api, REPLICA_SETS, self._on_revision)
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
            self.deployments,
            self.replica_sets,
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
        found = (self.incarnation(key) for key in self._owned.get(owner, ()))
        return [version for version in found if version is not None]

    def owners(self) -> Iterator[ObjectKey]:
        """Every VersionedConfig that has versions, whether it still exists or not."""
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
        """A holder, a template or a ReplicaSet refers to it."""
        return (
            self.holders.held(life)
            or bool(self.templates.referrers(life.key))
            or bool(self.revisions.referrers(life.key))
        )

    def _on_pod(self, old: PodKept | None, new: PodKept | None) -> None:
        if (changed := new or old) is not None:
            self.holders.put("pods", ObjectKey(changed.namespace, changed.name), new)
            if new is None and changed.forced and changed.node:
                self.pod_taken(changed.node, changed.keys)

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
            if life is not None and life.owner:
                owner = ObjectKey(life.namespace, life.owner)
                if life is new:
                    self._owned[owner].add(life.key)
                elif new is None or new.owner != life.owner:
                    self._owned[owner].discard(life.key)
                    if not self._owned[owner]:
                        del self._owned[owner]
                self.version_changed(owner)
        if (changed := new or old) is not None:
            self.config_changed(changed.key)

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and (new.deleting or new.ignored != (old is not None and old.ignored)):
            self.namespace_changed(new.name)

    def _on_workload(self, old: Workload | None, new: Workload | None) -> None:
        changed = new or old
        if changed is None:
            return
        key = ObjectKey(changed.namespace, changed.name)
        before = self.templates.keys_of(key)
        references = new.references if new is not None else ()
        keys = tuple(sorted({ConfigKey(ref.kind, key.namespace, ref.name) for ref in references}))
        self.templates.put(key, keys)
        self.workload_changed(key, frozenset((*before, *keys)))

    def _on_revision(self, old: Revision | None, new: Revision | None) -> None:
        if (changed := new or old) is not None:
            self.revisions.put(
                ObjectKey(changed.namespace, changed.name), new.keys if new is not None else ()
            )
        if old is not None and new is not None and old.revision != new.revision:
            for key in new.keys:
                self._usage(key)

    def _holders_changed(self, key: ConfigKey) -> None:
        self.config_changed(key)
        self.usage_changed(key)

    def _patterns_changed(self) -> None:
        for life in self.incarnations():
            if life.immutable:
                self._holders_changed(life.key)

    def _usage(self, key: ConfigKey) -> None:
        self.usage_changed(key)


def source_resource(source: Source) -> Resource[Kept]:
    """What a mirror of it lists. Its kind may be absent: that of a CustomResourceDefinition, or a newer one."""
    return Resource(
        name=source.rules.resource,
        path=source.rules.api_path,
        item=source.item,
        project=source.kept,
        may_be_absent=True,
        metadata_only=source.metadata_only,
    )


def _ignore(*_: object) -> None:
    pass
