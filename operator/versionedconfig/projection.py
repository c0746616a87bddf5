"""What is decoded of the objects of each kind, and what is kept of them. Pure, and total: whatever somebody wrote into an
object, a projection gives an answer.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Collection

import msgspec

from versionedconfig.kube.mirror import Resource
from versionedconfig.model import (
    ALIAS_ANNOTATION,
    DELETION_ANNOTATION,
    DIGEST_ANNOTATION,
    IGNORE_ANNOTATION,
    IN_USE_FINALIZER,
    KEEP_ANNOTATION,
    NAME_ANNOTATION,
    ORDER_ANNOTATION,
    QUARANTINE_ANNOTATION,
    RELEASE_ANNOTATION,
    UNUSED_ANNOTATION,
    USER_LABEL,
    ConfigKey,
    Incarnation,
    Node,
    owner_of,
)
from versionedconfig.references import CATALOGUE, Kept, PodSpec, Source, pod_references, referenced_names
from versionedconfig.references.demands import AnyTemplateSpec, demands
from versionedconfig.workload import (
    CRON_JOB,
    DAEMON_SET,
    PATHS,
    REPLICA_SET,
    Numbers,
    Revision,
    Workload,
    health,
)

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


class _Waiting(_Struct, frozen=True):
    reason: str = ""


class _Running(_Struct, frozen=True):
    started_at: str | None = None


class _ContainerState(_Struct, frozen=True):
    waiting: _Waiting | None = None
    running: _Running | None = None


class _ContainerStatus(_Struct, frozen=True):
    name: str
    restart_count: int = 0
    state: _ContainerState = _ContainerState()


class _PodStatus(_Struct, frozen=True):
    phase: str = ""
    init_container_statuses: list[_ContainerStatus] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class PodItem(_Struct, frozen=True):
    """What is decoded of a pod."""

    metadata: _Metadata
    spec: PodSpec
    status: _PodStatus = _PodStatus()


class LabelledMetadata(_Metadata, frozen=True):
    """What is decoded of any object's metadata where labels count."""

    labels: dict[str, str] | None = None


class _ManagedFields(_Struct, frozen=True):
    time: str = ""
    fields_v1: msgspec.Raw = msgspec.field(name="fieldsV1", default=msgspec.Raw(b""))


class _ConfigMetadata(LabelledMetadata, frozen=True):
    managed_fields: msgspec.Raw = msgspec.Raw(b"")
    """Looked into where the object is immutable alone."""


class ConfigItem(_Struct, frozen=True):
    """What is decoded of a ConfigMap or Secret. Its data is never more than a part of the page that came, and gone with it."""

    metadata: _ConfigMetadata
    immutable: bool | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    binary_data: msgspec.Raw = msgspec.Raw(b"")
    type: str = ""
    """Of a Secret."""


class _Template(_Struct, frozen=True):
    spec: PodSpec = PodSpec()


class _RollingUpdate(_Struct, frozen=True):
    partition: int = 0


class _Strategy(_Struct, frozen=True):
    type: str = ""
    rolling_update: _RollingUpdate | None = None


class _RawTemplate(_Struct, frozen=True):
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    """Two parts of the code look into it, with a struct each."""


class _JobSpec(_Struct, frozen=True):
    template: _RawTemplate = _RawTemplate()


class _JobTemplate(_Struct, frozen=True):
    spec: _JobSpec = _JobSpec()


class _WorkloadSpec(_Struct, frozen=True):
    template: _RawTemplate = _RawTemplate()
    job_template: _JobTemplate | None = None
    replicas: int = 1
    paused: bool = False
    update_strategy: _Strategy | None = None


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
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    conditions: list[_Condition] | None = None


class WorkloadItem(_Struct, frozen=True):
    """What is decoded of any workload of Kubernetes' own."""

    metadata: LabelledMetadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()


class _RevisionSpec(_Struct, frozen=True):
    template: _Template = _Template()


class _RevisionData(_Struct, frozen=True):
    spec: _RevisionSpec = _RevisionSpec()


class ControllerRevisionItem(_Struct, frozen=True):
    """What is decoded of a ControllerRevision; its data later, since any controller may keep what it wants in one."""

    metadata: _Metadata
    revision: int = 0
    data: msgspec.Raw = msgspec.Raw(b"{}")


class NamespaceItem(_Struct, frozen=True):
    """What is decoded of a namespace."""

    metadata: _Metadata


class _NodeInfo(_Struct, frozen=True):
    boot_id: str = msgspec.field(name="bootID", default="")
    kubelet_version: str = ""


class _Address(_Struct, frozen=True):
    type: str = ""
    address: str = ""


class _Endpoint(_Struct, frozen=True):
    port: int = msgspec.field(name="Port", default=0)


class _Endpoints(_Struct, frozen=True):
    kubelet_endpoint: _Endpoint = _Endpoint()


class _NodeStatus(_Struct, frozen=True):
    node_info: _NodeInfo = _NodeInfo()
    addresses: list[_Address] | None = None
    daemon_endpoints: _Endpoints = _Endpoints()
    conditions: list[_Condition] | None = None


class NodeItem(_Struct, frozen=True):
    """What is decoded of a node."""

    metadata: _Metadata
    status: _NodeStatus = _NodeStatus()


class PodKept(Kept, frozen=True):
    """What is kept of a pod."""

    node: str = ""
    created: str = ""
    """creationTimestamp as the API server writes it."""
    owner: str = ""
    """uid of its controller; empty for a pod of nobody's."""
    trouble: str = ""
    """Why a container of it does not start, as `CrashLoopBackOff in container web`."""
    restarted: str = ""
    """When a container of it was started again last; empty where none ever was."""
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


TROUBLES = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of the kubelet for a container that waits, which do not pass by themselves (pkg/kubelet/images/types.go,
kuberuntime_manager.go, kuberuntime_container.go). ErrImagePull is not among them: it becomes ImagePullBackOff."""


def _trouble(status: _PodStatus) -> str:
    for statuses in (status.init_container_statuses, status.container_statuses):
        for one in statuses or ():
            if one.state.waiting is not None and one.state.waiting.reason in TROUBLES:
                return sys.intern(f"{one.state.waiting.reason} in container {one.name}")
    return ""


def _restarted(status: _PodStatus) -> str:
    return max(
        (
            one.state.running.started_at or ""
            for one in status.container_statuses or ()
            if one.restart_count and one.state.running is not None
        ),
        default="",
    )


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
        created=sys.intern(meta.creation_timestamp),
        owner=sys.intern(controller_of(meta)),
        trouble=_trouble(item.status),
        restarted=_restarted(item.status),
        # A pod that its kubelet ends is finished first (kubelet status_manager.go, since 1.27): whoever vanishes with no
        # time left and not finished was taken away.
        forced=meta.deletion_grace_period_seconds == 0 and item.status.phase not in ("Succeeded", "Failed"),
    )


def node_kept(item: NodeItem) -> Node:
    """What is kept of a node: whether it may still run a pod that is gone."""
    meta, status = item.metadata, item.status
    ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())
    info, port = status.node_info, status.daemon_endpoints.kubelet_endpoint.port
    address = next((one.address for one in status.addresses or () if one.type == "InternalIP"), "")
    host = f"[{address}]" if ":" in address else address
    endpoint = f"{host}:{port}" if host and port else ""
    return Node(
        meta.name, meta.uid, meta.resource_version, info.boot_id, ready, info.kubelet_version, endpoint
    )


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
            deleted=meta.deletion_timestamp or "",
            ignored=annotations.get(IGNORE_ANNOTATION) == "true" or item.type in NEVER_TOUCHED,
            release=annotations.get(RELEASE_ANNOTATION, "").strip()[:MAX_REASON],
            quarantine=annotations.get(QUARANTINE_ANNOTATION, "")[:MAX_QUARANTINE] if in_use else "",
            owner=owner_of(key, item.immutable is True, annotations.get(NAME_ANNOTATION, "")),
            digest=annotations.get(DIGEST_ANNOTATION, "")[:64],
            unused_since=annotations.get(UNUSED_ANNOTATION, "")[:32],
            alias=not item.immutable and annotations.get(ALIAS_ANNOTATION) == f"{meta.namespace}/{meta.name}",
            kept=KEEP_ANNOTATION in annotations or USER_LABEL in (meta.labels or {}),
            delete_with_owner=annotations.get(DELETION_ANNOTATION) == "Delete",
            labels=tuple(sorted((meta.labels or {}).items())) if item.immutable else (),
            created=meta.creation_timestamp,
            written="" if item.immutable else meta.resource_version,
            fingerprint=_fingerprint(kind, item),
            immutable_since=_immutable_since(meta) if item.immutable else "",
        )

    return project


_SALT = os.urandom(16)
"""Few contents are as easily guessed as those of some Secrets: their fingerprints are worth nothing elsewhere."""


def _fingerprint(kind: str, item: ConfigItem) -> bytes:
    """The API server writes maps in the order of their keys, so equal contents are equal bytes."""
    digest = hashlib.blake2b(item.type.encode(), digest_size=16, key=_SALT if kind == "Secret" else b"")
    for part in (item.data, item.binary_data):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


_MANAGED = msgspec.json.Decoder(list[_ManagedFields])


def _immutable_since(meta: _ConfigMetadata) -> str:
    try:
        managed = _MANAGED.decode(meta.managed_fields) if meta.managed_fields else []
    except msgspec.MsgspecError:
        return ""
    return max((one.time for one in managed if b'"f:immutable"' in bytes(one.fields_v1)), default="")


_POD_SPEC = msgspec.json.Decoder(PodSpec)
_TEMPLATE_SPEC: msgspec.json.Decoder[AnyTemplateSpec] = msgspec.json.Decoder(AnyTemplateSpec)


def workload(kind: str) -> Callable[[WorkloadItem], Workload]:
    """The projection of a workload of that kind."""
    path = (
        ("spec", "jobTemplate", "spec", "template", "spec")
        if kind == CRON_JOB
        else ("spec", "template", "spec")
    )

    def project(item: WorkloadItem) -> Workload:
        meta, spec, status = item.metadata, item.spec, item.status
        template = spec.job_template.spec.template if spec.job_template is not None else spec.template
        numbers = _numbers(kind, item)
        exceeded = next((c for c in status.conditions or () if c.reason == EXCEEDED), None)
        return Workload(
            kind=kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            pending=0 if kind == CRON_JOB else max(0, meta.generation - status.observed_generation),
            references=tuple(
                reference._replace(path=(*path, *reference.path))
                for reference in pod_references(_POD_SPEC.decode(template.spec))
            ),
            demands=demands(_TEMPLATE_SPEC.decode(template.spec)),
            revision=revision_of(meta),
            health=health(numbers),
            running=numbers.wanted > 0 and kind != CRON_JOB,
            controlled=bool(controller_of(meta)),
            order=order_of(meta),
            labels=tuple(sorted((meta.labels or {}).items())),
            message=exceeded.message if exceeded is not None else "",
        )

    return project


EXCEEDED = "ProgressDeadlineExceeded"


def _numbers(kind: str, item: WorkloadItem) -> Numbers:
    spec, status = item.spec, item.status
    strategy = spec.update_strategy or _Strategy()
    of_daemons = kind == DAEMON_SET
    return Numbers(
        kind=kind,
        generation=item.metadata.generation,
        observed_generation=status.observed_generation,
        wanted=status.desired_number_scheduled if of_daemons else spec.replicas,
        total=status.replicas,
        updated=status.updated_number_scheduled if of_daemons else status.updated_replicas,
        available=status.number_available if of_daemons else status.available_replicas,
        partition=strategy.rolling_update.partition if strategy.rolling_update is not None else 0,
        on_delete=strategy.type == "OnDelete",
        paused=spec.paused,
        deadline_exceeded=any(c.reason == EXCEEDED for c in status.conditions or ()),
    )


def replica_set(item: WorkloadItem) -> Workload | Revision:
    """The projection of a ReplicaSet: one of a Deployment is a revision of it, another one a workload by itself."""
    if not controller_of(item.metadata):
        return _STANDALONE(item)
    return _follower(item.metadata, _POD_SPEC.decode(item.spec.template.spec), revision_of(item.metadata))


_STANDALONE = workload(REPLICA_SET)


def controller_revision(item: ControllerRevisionItem) -> Revision:
    """The projection of a ControllerRevision, of a StatefulSet or DaemonSet; those of others refer to nothing."""
    try:
        spec = msgspec.json.decode(item.data, type=_RevisionData).spec.template.spec
    except (msgspec.MsgspecError, RecursionError):
        spec = PodSpec()
    return _follower(item.metadata, spec, item.revision)


def job(item: WorkloadItem) -> Revision:
    """The projection of a Job. One that has finished starts no pods any more, and so refers to nothing."""
    ended = any(c.type in ("Complete", "Failed") and c.status == "True" for c in item.status.conditions or ())
    return _follower(item.metadata, PodSpec() if ended else _POD_SPEC.decode(item.spec.template.spec), 0)


def _follower(meta: _Metadata, spec: PodSpec, number: int) -> Revision:
    return Revision(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        keys=tuple(ConfigKey(kind, meta.namespace, name) for kind, name in referenced_names(spec)),
        revision=number,
        owner_uid=controller_of(meta),
    )


def controller_of(meta: _Metadata) -> str:
    """uid of the object that owns it and writes it; empty where there is none."""
    return next((owner.uid for owner in meta.owner_references or () if owner.controller), "")


def revision_of(meta: _Metadata) -> int:
    """REVISION_ANNOTATION"""
    text = (meta.annotations or {}).get(REVISION_ANNOTATION, "")
    # Anybody can write it, and int() refuses thousands of digits: a projection must not raise.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_REVISION_DIGITS else 0


def order_of(meta: _Metadata) -> int:
    """ORDER_ANNOTATION"""
    text = (meta.annotations or {}).get(ORDER_ANNOTATION, "")
    return int(text) if _ORDER.fullmatch(text) else 0


_ORDER = re.compile(r"-?[0-9]{1,9}")


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
WORKLOADS = {
    kind: Resource(name=path.rpartition("/")[2], path=path, item=WorkloadItem, project=workload(kind))
    for kind, path in PATHS.items()
    if kind != REPLICA_SET
}
REPLICA_SETS = Resource(name="replicasets", path=PATHS[REPLICA_SET], item=WorkloadItem, project=replica_set)
CONTROLLER_REVISIONS = Resource(
    name="controllerrevisions",
    path="/apis/apps/v1/controllerrevisions",
    item=ControllerRevisionItem,
    project=controller_revision,
)
JOBS = Resource(name="jobs", path="/apis/batch/v1/jobs", item=WorkloadItem, project=job)


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


def api_path(key: ConfigKey) -> str:
    """Where the API server keeps a config object."""
    return f"/api/v1/namespaces/{key.namespace}/{key.kind.lower()}s/{key.name}"
