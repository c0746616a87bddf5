"""What is decoded of a pod where a name was reused, and what is kept: how it uses each config object, and how far it is. Pure.

Only namespaces with such a name are looked at so closely (controller.py). Which fields reach the kubelet's cache, and when they
are read: k/k pkg/api/v1/pod/util.go (VisitPodSecretNames, VisitPodConfigmapNames), pkg/kubelet/kubelet_pods.go.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from versionedconfig.staleness.record import Consumer, Sight, Start, Usage


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _Metadata(_Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resource_version: str
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class _Reference(_Struct, frozen=True):
    name: str = ""
    optional: bool | None = None


class _ValueFrom(_Struct, frozen=True):
    config_map_key_ref: _Reference | None = None
    secret_key_ref: _Reference | None = None


class _Env(_Struct, frozen=True):
    value_from: _ValueFrom | None = None


class _EnvFrom(_Struct, frozen=True):
    config_map_ref: _Reference | None = None
    secret_ref: _Reference | None = None


class _Mount(_Struct, frozen=True):
    name: str
    sub_path: str = ""
    sub_path_expr: str = ""


class _Container(_Struct, frozen=True):
    name: str
    env: list[_Env] | None = None
    env_from: list[_EnvFrom] | None = None
    volume_mounts: list[_Mount] | None = None


class _Source(_Struct, frozen=True):
    name: str = ""
    secret_name: str = ""
    optional: bool | None = None
    items: list[msgspec.Raw] | None = None


class _ProjectedSource(_Struct, frozen=True):
    config_map: _Source | None = None
    secret: _Source | None = None


class _Projected(_Struct, frozen=True):
    sources: list[_ProjectedSource] | None = None


class _Volume(_Struct, frozen=True):
    name: str
    config_map: _Source | None = None
    secret: _Source | None = None
    projected: _Projected | None = None


class _Spec(_Struct, frozen=True):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    image_pull_secrets: list[_Reference] | None = None


class _Running(_Struct, frozen=True):
    started_at: str | None = None


class _Terminated(_Struct, frozen=True):
    exit_code: int = 0
    started_at: str | None = None


class _State(_Struct, frozen=True):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(_Struct, frozen=True):
    name: str
    state: _State = _State()
    last_state: _State = _State()


class _Condition(_Struct, frozen=True):
    type: str
    status: str
    last_transition_time: str | None = None


class _Status(_Struct, frozen=True):
    phase: str = ""
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    ephemeral_container_statuses: list[_ContainerStatus] | None = None


class CloseItem(_Struct, frozen=True):
    """What is decoded of a pod that is looked at closely."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class ClosePod:
    """What is kept of it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    sight: Sight
    usages: tuple[Usage, ...]

    def usage(self, kind: str, name: str) -> Usage | None:
        """How it uses that object of its namespace."""
        return next((one for one in self.usages if (one.kind, one.name) == (kind, name)), None)


def close_pod(item: CloseItem) -> ClosePod:
    """The projection."""
    meta, status = item.metadata, item.status
    true = {one.type: one for one in status.conditions or () if one.status == "True"}
    scheduled = true["PodScheduled"].last_transition_time if "PodScheduled" in true else None
    set_up = (
        true["PodReadyToStartContainers"].last_transition_time
        if "PodReadyToStartContainers" in true
        else None
    )
    statuses = (
        *((one, True) for one in status.init_container_statuses or ()),
        *((one, False) for one in status.container_statuses or ()),
        *((one, False) for one in status.ephemeral_container_statuses or ()),
    )
    return ClosePod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        sight=Sight(
            uid=meta.uid,
            name=meta.name,
            node=item.spec.node_name,
            # A pod that was made with its node has no such condition before its kubelet writes one.
            scheduled=seconds(scheduled or meta.creation_timestamp),
            set_up=seconds(set_up),
            starts=tuple(_start(one, init) for one, init in statuses),
            ending=meta.deletion_timestamp is not None,
            finished=status.phase in ("Succeeded", "Failed"),
        ),
        usages=tuple(usages(item.spec)),
    )


def seconds(text: str | None) -> float:
    """A timestamp of the API server's as seconds since the epoch; 0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _start(one: _ContainerStatus, init: bool) -> Start:
    running, terminated = one.state.running, one.state.terminated
    last = one.last_state.terminated
    if running is not None:
        return Start(one.name, seconds(running.started_at), running=True, over=False)
    if terminated is not None:
        over = init and terminated.exit_code == 0
        return Start(one.name, seconds(terminated.started_at), running=False, over=over)
    return Start(one.name, seconds(last.started_at) if last is not None else 0.0, running=False, over=False)


@dataclass(slots=True)
class _Draft:
    """Of one Usage."""

    reads: bool = False
    follows: bool = False
    pulls: bool = False
    required: bool = False
    fragile: bool = False
    env: dict[str, bool] = field(default_factory=dict)
    """Containers, and whether they need the object."""
    sub_path: set[str] = field(default_factory=set)


def usages(spec: _Spec) -> Iterator[Usage]:
    """How a pod spec uses each config object that it names."""
    drafts: defaultdict[tuple[str, str], _Draft] = defaultdict(_Draft)
    containers = (*(spec.init_containers or ()), *(spec.containers or ()), *(spec.ephemeral_containers or ()))
    for one in containers:
        for kind, reference in _variables(one):
            if reference.name:
                env = drafts[kind, reference.name].env
                env[one.name] = env.get(one.name, False) or not reference.optional
    for volume in spec.volumes or ():
        mounts = [
            (one.name, bool(mount.sub_path or mount.sub_path_expr))
            for one in containers
            for mount in one.volume_mounts or ()
            if mount.name == volume.name
        ]
        sources = list(_sources(volume))
        for kind, name, source in sources:
            draft = drafts[kind, name]
            if not mounts:
                continue  # counted, and never read (desired_state_of_world_populator.go)
            draft.reads = True
            draft.required |= not source.optional
            draft.fragile |= len(sources) > 1 or bool(source.items)
            draft.follows |= any(not sub_path for _, sub_path in mounts)
            draft.sub_path.update(container for container, sub_path in mounts if sub_path)
    for reference in spec.image_pull_secrets or ():
        if reference.name:
            draft = drafts["Secret", reference.name]
            draft.reads = draft.pulls = True
    for (kind, name), draft in drafts.items():
        yield Usage(
            kind=kind,
            name=name,
            reads=draft.reads,
            follows=draft.follows,
            pulls=draft.pulls,
            required=draft.required,
            fragile=draft.fragile,
            consumers=tuple(
                Consumer(
                    one.name,
                    one.name in draft.env,
                    one.name in draft.sub_path,
                    draft.env.get(one.name, False),
                )
                for one in containers
                if one.name in draft.env or one.name in draft.sub_path
            ),
        )


def _variables(container: _Container) -> Iterator[tuple[str, _Reference]]:
    for env in container.env or ():
        if (source := env.value_from) is not None:
            if source.config_map_key_ref is not None:
                yield "ConfigMap", source.config_map_key_ref
            if source.secret_key_ref is not None:
                yield "Secret", source.secret_key_ref
    for each in container.env_from or ():
        if each.config_map_ref is not None:
            yield "ConfigMap", each.config_map_ref
        if each.secret_ref is not None:
            yield "Secret", each.secret_ref


def _sources(volume: _Volume) -> Iterator[tuple[str, str, _Source]]:
    if volume.config_map is not None:
        yield "ConfigMap", volume.config_map.name, volume.config_map
    if volume.secret is not None:
        yield "Secret", volume.secret.secret_name, volume.secret
    for source in (volume.projected.sources if volume.projected is not None else None) or ():
        if source.config_map is not None:
            yield "ConfigMap", source.config_map.name, source.config_map
        if source.secret is not None:
            yield "Secret", source.secret.name, source.secret
