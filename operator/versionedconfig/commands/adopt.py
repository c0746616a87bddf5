"""`versionedconfig adopt`: a VersionedConfig for a ConfigMap or Secret that is there, as YAML or applied at once.

Reads with the user's own rights, asks adoption.py what follows, and shows or creates it.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgspec
import yaml

from versionedconfig.commands.adoption import (
    Adoption,
    Cluster,
    Existing,
    Fixed,
    Move,
    Named,
    Options,
    Plan,
    Referrer,
    Stored,
    plan,
    pods_replaced,
    writers,
)
from versionedconfig.commands.configs import Refused, forbidden, key_of, not_installed
from versionedconfig.commands.steer import MANAGER
from versionedconfig.kube.api import METADATA_ONLY_LIST, Api, ApiError, path_of
from versionedconfig.model import GROUP, NAME_ANNOTATION, ConfigKey, ObjectKey, owner_by_name, owner_of
from versionedconfig.projection import (
    JOBS,
    PODS,
    PodItem,
    WorkloadItem,
    api_path,
    job,
    pod_kept,
    workload,
)
from versionedconfig.resource import PATH, Metadata, Spec, Status
from versionedconfig.settings import Settings
from versionedconfig.versions.content import OPAQUE, Content
from versionedconfig.workload import DAEMON_SET, PATHS, REPLICA_SET

POLICIES: Final = "versionedconfig-"
"""How the names of our admission policies begin."""

BINDINGS: Final = "/apis/admissionregistration.k8s.io/{}/mutatingadmissionpolicybindings"
UNFINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"


# -- what is decoded -------------------------------------------------------------------------------------------------


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Owner(_Struct, frozen=True):
    kind: str
    name: str
    controller: bool = False

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class _Managed(_Struct, frozen=True):
    manager: str = ""
    fields_v1: dict[str, msgspec.Raw] = {}


class _Metadata(_Struct, frozen=True):
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    managed_fields: list[_Managed] | None = None

    @property
    def controller(self) -> str:
        return next((str(owner) for owner in self.owner_references or () if owner.controller), "")


class _Object(_Struct, frozen=True):
    """Whose it is."""

    metadata: _Metadata


class _Config(_Struct, frozen=True):
    """A ConfigMap or Secret with its content; its repr shows nothing of it."""

    metadata: _Metadata
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    type: str = ""
    immutable: bool | None = None

    def __repr__(self) -> str:
        return "<_Config>"


class _VersionedConfig(_Struct, frozen=True):
    metadata: Metadata
    spec: Spec
    status: Status = Status()


class _DeploymentStatus(_Struct, frozen=True):
    ready_replicas: int = 0


class _Deployment(_Struct, frozen=True):
    status: _DeploymentStatus = _DeploymentStatus()


# -- reading ---------------------------------------------------------------------------------------------------------


async def find(api: Api, options: Options) -> Plan:
    """Everything that is needed, live, and what follows from it.

    Raises:
        Refused: what was named is not there, or may not be read.
    """
    for named in (*options.workloads, *options.objects):
        key_of(options.namespace, named.name)
    if Settings().excluded(options.namespace):
        return plan(options, (), ())
    asked = await asyncio.gather(*(_workload(api, options.namespace, named) for named in options.workloads))
    objects = await asyncio.gather(*(_stored(api, options.namespace, named) for named in options.objects))
    unseen: list[str] = []
    others = [one async for one in _referrers(api, options.namespace, unseen)]
    known = {one.named for one in asked}
    fixed = await _fixed(api, options.namespace)
    cluster = await _cluster(api, options.namespace, tuple(unseen))
    referrers = [*asked, *(one for one in others if one.named not in known)]
    return plan(options, referrers, objects, fixed=fixed, cluster=cluster)


async def _workload(api: Api, namespace: str, named: Named) -> Referrer:
    try:
        raw = await api.get(path_of(PATHS[named.kind], namespace, named.name), type=msgspec.Raw)
    except ApiError as error:
        plural = PATHS[named.kind].rpartition("/")[2]
        raise _told(error, named, namespace, plural) from None
    found = _referrer(named.kind, raw)
    if named.kind == REPLICA_SET and found.owner:
        raise Refused(f"{named} is a revision of {found.owner}: name that instead")
    return found


async def _stored(api: Api, namespace: str, named: Named) -> Stored:
    key = ConfigKey(named.kind, namespace, named.name)
    try:
        found = await api.get(api_path(key), type=_Config)
    except ApiError as error:
        raise _told(error, named, namespace, f"{named.kind.lower()}s") from None
    meta = found.metadata
    type_ = (found.type or OPAQUE) if named.kind == "Secret" else ""
    content = Content(named.kind, found.data or {}, found.binary_data or {}, type_)
    labels, annotations = meta.labels or {}, meta.annotations or {}
    version = ConfigKey(named.kind, namespace, content.version_name(named.name))
    return Stored(
        key=key,
        content=content,
        immutable=found.immutable is True,
        writers=writers(map(str, meta.owner_references or ()), _managers(meta), labels, annotations),
        extras=tuple(sorted(one for one in {**labels, **annotations} if not _is_ours(one))),
        owner=owner_of(key, found.immutable is True, annotations.get(NAME_ANNOTATION, "")),
        taken=await _taken(api, version),
        existing=await _existing(api, ObjectKey(namespace, named.name)),
    )


def _told(error: ApiError, named: Named, namespace: str, plural: str) -> Exception:
    if error.status == 403:
        return forbidden("get", namespace, plural)
    if error.status == 404:
        return Refused(f"there is no {named} in namespace {namespace}; -n names another namespace")
    return error


def _managers(meta: _Metadata) -> list[str]:
    """Who wrote content, and not only a label or a finalizer."""
    content = {"f:data", "f:binaryData", "f:stringData"}
    return [one.manager for one in meta.managed_fields or () if not content.isdisjoint(one.fields_v1)]


def _is_ours(key: str) -> bool:
    return key.startswith((f"{GROUP}/", "kubectl.kubernetes.io/"))


async def _taken(api: Api, key: ConfigKey) -> bool:
    """Somebody else's object has the version's name."""
    try:
        found = await api.get(api_path(key), type=_Config)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    annotation = (found.metadata.annotations or {}).get(NAME_ANNOTATION, "")
    return owner_of(key, found.immutable is True, annotation) != owner_by_name(key.name)


async def _existing(api: Api, key: ObjectKey) -> Existing | None:
    try:
        found = await api.get(path_of(PATH, *key), type=_VersionedConfig)
    except ApiError as error:
        if error.status == 403:
            raise forbidden("get", key.namespace) from None
        if error.status != 404:
            raise
        return None
    deleting = found.metadata.deletion_timestamp is not None
    return Existing(found.spec, deleting, tuple(found.status.versions))


async def _referrers(api: Api, namespace: str, unseen: list[str]) -> AsyncIterator[Referrer]:
    """Every workload of the namespace; ReplicaSets of Deployments are none."""
    for kind, path in PATHS.items():
        try:
            async for page in api.list_pages(path_of(path, namespace), item=msgspec.Raw):
                for raw in page.items:
                    found = _referrer(kind, raw)
                    if kind != REPLICA_SET or not found.owner:
                        yield found
        except ApiError as error:
            if error.status != 403:
                raise
            unseen.append(f"no right to list {path.rpartition('/')[2]}")


def _referrer(kind: str, raw: msgspec.Raw) -> Referrer:
    item = msgspec.json.decode(raw, type=WorkloadItem)
    owner = msgspec.json.decode(raw, type=_Object).metadata.controller
    strategy = item.spec.update_strategy
    rolling = strategy.rolling_update if strategy is not None else None
    pods, note = pods_replaced(
        kind,
        item.status.desired_number_scheduled if kind == DAEMON_SET else item.spec.replicas,
        partition=rolling.partition if rolling is not None else 0,
        on_delete=strategy is not None and strategy.type == "OnDelete",
        paused=item.spec.paused,
    )
    return Referrer(workload(kind)(item), pods, note, owner)


async def _fixed(api: Api, namespace: str) -> list[Fixed] | None:
    """Pods and Jobs of nobody's that have not finished; None where they may not be listed."""
    found = []
    try:
        async for pods in api.list_pages(
            path_of(PODS.path, namespace), item=PodItem, field_selector=UNFINISHED
        ):
            for pod in map(pod_kept, pods.items):
                if not pod.owner:
                    found.append(Fixed(Named("Pod", pod.name), tuple((k.kind, k.name) for k in pod.keys)))
        async for jobs in api.list_pages(path_of(JOBS.path, namespace), item=WorkloadItem):
            for one in map(job, jobs.items):
                if not one.owner_uid:
                    found.append(Fixed(Named("Job", one.name), tuple((k.kind, k.name) for k in one.keys)))
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return found


async def _cluster(api: Api, namespace: str, unseen: tuple[str, ...]) -> Cluster:
    return Cluster(
        installed=await _installed(api, namespace),
        running=await _running(api),
        rewrites=await _rewrites(api),
        unseen=unseen,
    )


async def _installed(api: Api, namespace: str) -> bool:
    try:
        await api.list_page(path_of(PATH, namespace), item=msgspec.Raw, limit=1, accept=METADATA_ONLY_LIST)
    except ApiError as error:
        if error.status == 404:
            return False
        # Whoever may not list them may still create one.
        if error.status != 403:
            raise
    return True


async def _running(api: Api) -> bool | None:
    try:
        path = path_of("/apis/apps/v1/deployments", Settings().own_namespace, "versionedconfig")
        return (await api.get(path, type=_Deployment)).status.ready_replicas > 0
    except ApiError as error:
        if error.status == 404:
            return False
        if error.status != 403:
            raise
        return None


async def _rewrites(api: Api) -> bool | None:
    for version in ("v1", "v1beta1"):
        try:
            async for page in api.list_pages(
                BINDINGS.format(version), item=_Object, accept=METADATA_ONLY_LIST
            ):
                if any(one.metadata.name.startswith(POLICIES) for one in page.items):
                    return True
        except ApiError as error:
            if error.status == 404:  # a cluster that does not know the kind in this version
                continue
            if error.status != 403:
                raise
            return None
        else:
            return False
    return False


# -- writing ---------------------------------------------------------------------------------------------------------


async def apply(api: Api, made: Plan) -> list[ObjectKey]:
    """Create the VersionedConfigs. All are tried first, so that one is not left alone because another is refused.

    Raises:
        Refused: one of them cannot be created; says what was.
    """
    bodies = made.manifests
    for body in bodies:
        await _create(api, made.namespace, body, {"dryRun": "All"}, "nothing was written")
    created: list[ObjectKey] = []
    for body in bodies:
        names = ", ".join(key.name for key in created)
        so_far = f"{names} was created before it: run this again" if names else "nothing was written"
        await _create(api, made.namespace, body, {}, so_far)
        created.append(ObjectKey(made.namespace, body["metadata"]["name"]))
    return created


async def _create(
    api: Api, namespace: str, body: dict[str, Any], params: dict[str, str], so_far: str
) -> None:
    name = body["metadata"]["name"]
    try:
        await api.create(
            path_of(PATH, namespace),
            body,
            type=msgspec.Raw,
            params={"fieldManager": MANAGER, "fieldValidation": "Strict", **params},
        )
    except ApiError as error:
        if error.status == 404:
            raise not_installed() from None
        if error.status == 403 and "cannot create resource" in error.message:
            raise Refused(f"{forbidden('create', namespace)}; {so_far}") from None
        if error.status == 409:
            raise Refused(
                f"VersionedConfig {name} was created while this ran; {so_far}: run it again"
            ) from None
        raise Refused(f"VersionedConfig {name} is refused: {error.message or error}; {so_far}") from None


# -- showing ---------------------------------------------------------------------------------------------------------


def told(made: Plan) -> list[str]:
    """What follows, line by line; never a value."""
    lines = [_adoption_text(made.namespace, one) for one in made.adoptions if one.manifest]
    for move in made.moves:
        lines += _move_texts(move)
    if made.moves:
        pods = sum(move.pods for move in made.moves)
        lines.append(f"in all {_count(pods, 'pod')} restart{'s' if pods == 1 else ''}, once each")
    lines += [f"note: {note}" for note in made.notes]
    lines += [f"warning: {warning}" for warning in made.warnings]
    return lines


def _adoption_text(namespace: str, one: Adoption) -> str:
    how = "by reference (spec.from)" if one.by_reference else "with a copy of its content"
    what = f"{_count(one.keys, 'key')}, {_count(one.size, 'byte')}"
    return (
        f"VersionedConfig {namespace}/{one.key.name} takes over {one.key.kind} {one.key.name} {how}: {what}, "
        f"as version {one.version}"
    )


def _move_texts(move: Move) -> list[str]:
    pods = f"{_count(move.pods, 'pod')} restart{'s' if move.pods == 1 else ''}" if move.pods else ""
    fate = "; ".join(filter(None, (pods, move.note))) or "no pods now"
    along = "" if move.asked else " (comes along)"
    return [
        f"{move.workload}{along} is moved: {fate}",
        *(f"  {path}: {old} -> {new}" for path, old, new in move.fields),
    ]


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


_PLAIN: Final = re.compile(r"[A-Za-z][-A-Za-z0-9_./]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


class _Dumper(yaml.SafeDumper):
    """YAML that every reader takes for the same: kubectl's knows numbers and words that PyYAML leaves unquoted, such as
    1e3, 0o17 and y."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _scalar(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"'
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = ""
    elif _is_block(text):
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style or None)


def _is_block(text: str) -> bool:
    """It can stand there as it is, to be read and compared line by line: no character that readers may take for
    something else, nor blanks that they may lose."""
    lines = text.split("\n")
    return (
        len(lines) > 1
        and not text.endswith("\n\n")
        and bool(lines[0])
        and not lines[0][0].isspace()
        and all(line == line.rstrip() and not line.startswith("\t") for line in lines)
        and all(character in "\n\t" or character.isprintable() for character in text)
        and "\ufeff" not in text
    )


_Dumper.add_representer(str, _scalar)


def to_yaml(manifests: Iterable[dict[str, Any]]) -> str:
    """One document for each."""
    return yaml.dump_all(
        manifests,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        explicit_start=True,
    )
