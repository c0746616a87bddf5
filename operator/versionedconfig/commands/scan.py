"""`versionedconfig scan`: a read-only audit of a whole cluster, for people who have not installed anything yet.

What today's objects can tell, and no more: an object that was created after a container had started which needed it cannot
be what that container reads.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape

from versionedconfig.commands.output import show_unseen, some, table
from versionedconfig.commands.reading import Unseen, all_sources, items
from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.projection import CONFIG_MAPS, NEVER_TOUCHED, PODS, SECRETS, ConfigItem
from versionedconfig.references import Holders, Kept, PodSpec, pod_references, referenced_names
from versionedconfig.settings import SYSTEM_NAMESPACES, Settings


class What(StrEnum):
    """Kinds of findings, the worst first."""

    REUSED = "NameReused"
    """It was created anew under pods that had started with another one of that name."""
    UNPROTECTED = "Unprotected"
    """It is immutable and in use, and nothing keeps it from being deleted."""
    FIXED_NAME = "FixedName"
    """It is immutable, and workloads refer to it by a name that says nothing of its content: the next change reuses it."""
    NOT_UPDATED = "NotUpdated"
    """It is mutable, and used where a change never arrives: environment variables and subPath."""


MEANING: Final = {
    What.REUSED: "created again while pods ran that had started with the one before: they, and pods beside them, may read old content",
    What.UNPROTECTED: "immutable and in use, without protection: whoever deletes it and creates it again with other content makes pods read old content",
    What.FIXED_NAME: "immutable under a name without a version or a hash: the next change of its content has to reuse the name",
    What.NOT_UPDATED: "mutable, and used as environment or by subPath: running containers never see a change",
}


WORKLOADS: Final = frozenset({"deployments.apps", "statefulsets.apps", "daemonsets.apps", "cronjobs.batch"})
"""Whose templates people write, and with them the names."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One thing to know about one object."""

    what: What
    kind: str
    namespace: str
    name: str
    users: list[str]
    """Of whom it is true: workloads, or objects without one."""


class Held(msgspec.Struct, frozen=True, order=True):
    """An immutable object that is in use."""

    kind: str
    namespace: str
    name: str
    protected: bool
    holders: list[str]
    """Workloads of the pods, and other objects."""


class Report(msgspec.Struct, rename="camel"):
    """What `scan` found."""

    config_maps: int
    secrets: int
    immutable: int
    held: list[Held]
    """Immutable objects in use."""
    findings: list[Finding]
    not_looked_at: list[str]
    certain: bool
    """Every pod and config object could be looked at."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


class _Owner(_Struct, frozen=True):
    kind: str
    name: str
    controller: bool = False


class _Metadata(_Struct, frozen=True):
    name: str
    namespace: str
    owner_references: list[_Owner] | None = None
    labels: dict[str, str] | None = None


class _Mount(_Struct, frozen=True):
    name: str
    sub_path: str = ""
    sub_path_expr: str = ""


class _Container(_Struct, frozen=True):
    volume_mounts: list[_Mount] | None = None


class _Named(_Struct, frozen=True):
    name: str


class _Mounts(_Struct, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Named] | None = None


class _Running(_Struct, frozen=True):
    started_at: str | None = None


class _State(_Struct, frozen=True):
    running: _Running | None = None


class _ContainerStatus(_Struct, frozen=True):
    state: _State = _State()


class _PodStatus(_Struct, frozen=True):
    container_statuses: list[_ContainerStatus] | None = None


class Pod(_Struct, frozen=True):
    """What a scan reads of a pod."""

    metadata: _Metadata
    spec: msgspec.Raw
    status: _PodStatus = _PodStatus()


class Consumption(NamedTuple):
    """One pod's use of one object."""

    key: ConfigKey
    user: str
    frozen: bool
    """By environment or subPath."""
    started: str
    """RFC 3339, of the container that has run longest; empty while none runs or the object may be missing."""


_SPEC: Final = msgspec.json.Decoder(PodSpec)
_MOUNTS: Final = msgspec.json.Decoder(_Mounts)
VERSIONED: Final = re.compile(
    r".*(-[2456789bcdfghkmt]{10}|-[0-9a-f]{6,64}|-[0-9a-z]{10}|[-.]?v?\d+([.-]\d+)*)$"
)
"""kubectl's and kustomize's hashes, hexadecimal digests, generated names, and numbers."""


def consumptions(pod: Pod) -> Iterator[Consumption]:
    """Every use of a config object by one pod."""
    mounts = _MOUNTS.decode(pod.spec)
    by_sub_path = {
        mount.name
        for container in (*(mounts.containers or ()), *(mounts.init_containers or ()))
        for mount in container.volume_mounts or ()
        if mount.sub_path or mount.sub_path_expr
    }
    volumes = [volume.name for volume in mounts.volumes or ()]
    starts = [
        status.state.running.started_at
        for status in pod.status.container_statuses or ()
        if status.state.running is not None and status.state.running.started_at
    ]
    for reference in pod_references(_SPEC.decode(pod.spec)):
        first, index, *rest = reference.path
        if first == "imagePullSecrets":
            continue
        is_volume = first == "volumes" and isinstance(index, int)
        yield Consumption(
            ConfigKey(reference.kind, pod.metadata.namespace, reference.name),
            user(pod.metadata),
            volumes[index] in by_sub_path
            if is_volume and isinstance(index, int)
            else rest[0] in ("env", "envFrom"),
            min(starts) if starts and not reference.optional else "",
        )


def user(metadata: _Metadata) -> str:
    """The workload that a pod is of, as people know it."""
    owner = next((owner for owner in metadata.owner_references or () if owner.controller), None)
    if owner is None:
        return f"Pod {metadata.name}"
    hashed = (metadata.labels or {}).get("pod-template-hash")
    if owner.kind == "ReplicaSet" and hashed and owner.name.endswith(f"-{hashed}"):
        return f"Deployment {owner.name.removesuffix(f'-{hashed}')}"
    return f"{owner.kind} {owner.name}"


def examine(
    lives: Iterable[Incarnation],
    uses: Iterable[Consumption],
    holders: Holders,
    templates: dict[ConfigKey, set[str]],
) -> Iterator[Finding]:
    """The findings. `templates` tells which workloads name an object in their pod template."""
    by_key: defaultdict[ConfigKey, list[Consumption]] = defaultdict(list)
    for use in uses:
        by_key[use.key].append(use)
    for life in lives:
        consumed = by_key.get(life.key, [])

        def finding(what: What, users: Iterable[str], key: ConfigKey = life.key) -> Finding:
            return Finding(what, *key, sorted(set(users)))

        if life.ignored or life.namespace in SYSTEM_NAMESPACES:
            continue
        if not life.immutable:
            if still := [use.user for use in consumed if use.frozen]:
                yield finding(What.NOT_UPDATED, still)
            continue
        if earlier := [use.user for use in consumed if use.started and use.started < life.created]:
            yield finding(What.REUSED, earlier)
        if not life.in_use and holders.held(life):
            yield finding(What.UNPROTECTED, _holders(life, (use.user for use in consumed), holders))
        if life.key in templates and not life.owner and not VERSIONED.fullmatch(life.name):
            yield finding(What.FIXED_NAME, templates[life.key])


def who_holds(lives: Iterable[Incarnation], uses: Iterable[Consumption], holders: Holders) -> Iterator[Held]:
    """Of each immutable object that is in use, who uses it."""
    users: defaultdict[ConfigKey, set[str]] = defaultdict(set)
    for use in uses:
        users[use.key].add(use.user)
    for life in lives:
        if holders.held(life):
            yield Held(*life.key, life.in_use, sorted(_holders(life, users[life.key], holders)))


def _holders(life: Incarnation, users: Iterable[str], holders: Holders) -> set[str]:
    """The workloads of its pods, and whatever else holds it."""
    return {str(referrer) for referrer in holders.referrers(life) if referrer.kind != "Pod"}.union(users)


async def scan(api: Api, namespace: str = "") -> Report:
    """Read the cluster, or one namespace. Raises ApiError where the API server does not answer."""
    unseen = Unseen()
    if namespace:
        try:
            await api.get(f"/api/v1/namespaces/{namespace}", type=msgspec.Raw)
        except ApiError as error:
            if error.status == 404:
                raise ValueError(f"there is no namespace {namespace}") from None
            if error.status != 403:  # whoever may not read namespaces may read what is in one
                raise
    lives: list[Incarnation] = []
    counts = {}
    for resource in (CONFIG_MAPS, SECRETS):
        counts[resource.name] = 0
        try:
            async for page in api.list_pages(path_of(resource.path, namespace), item=ConfigItem):
                counts[resource.name] += len(page.items)
                lives += [resource.project(item) for item in page.items if item.type not in NEVER_TOUCHED]
        except ApiError as error:
            unseen.note(resource.name, error)
    sources = await all_sources(api, unseen)
    holders = Holders({source.id: source.rules for source in sources})
    templates: defaultdict[ConfigKey, set[str]] = defaultdict(set)
    helping = {source.rules.linked for source in sources}
    for source in sources:
        rules = source.rules
        has_template = source.id in WORKLOADS or rules.workload is not None
        if source.id == "pods" or not (rules.holder or rules.resource in helping or has_template):
            continue
        async for item in items(api, source, unseen, namespace=namespace):
            kept = source.kept(item)
            if has_template:
                for key in kept.keys:
                    templates[key].add(f"{rules.kind} {kept.name}")
            else:
                holders.put(source.id, ObjectKey(kept.namespace, kept.name), kept)
    uses: list[Consumption] = []
    path = path_of(PODS.path, namespace)
    try:
        async for pods in api.list_pages(path, item=Pod, field_selector=Settings().pod_selector):
            for pod in pods.items:
                meta, names = pod.metadata, referenced_names(_SPEC.decode(pod.spec))
                keys = tuple(ConfigKey(kind, meta.namespace, name) for kind, name in names)
                holders.put(
                    "pods",
                    ObjectKey(meta.namespace, meta.name),
                    Kept(meta.namespace, meta.name, "", "", keys),
                )
                uses += consumptions(pod)
    except ApiError as error:
        unseen.note("pods", error)
    immutable = [life for life in lives if life.immutable]
    return Report(
        config_maps=counts["configmaps"],
        secrets=counts["secrets"],
        immutable=len(immutable),
        held=sorted(who_holds(immutable, uses, holders)),
        findings=sorted(examine(lives, uses, holders, templates), key=_order),
        not_looked_at=unseen.reasons,
        certain=not unseen.essential,
    )


def _order(finding: Finding) -> tuple[int, str, str, str]:
    return list(What).index(finding.what), finding.namespace, finding.kind, finding.name


def show(report: Report, console: Console, shown_objects: int = 30) -> None:
    """As tables, the worst first."""
    console.print(
        f"{report.config_maps} ConfigMaps and {report.secrets} Secrets; {report.immutable} are immutable, "
        f"{len(report.held)} of them in use, {sum(held.protected for held in report.held)} protected.",
        highlight=False,
    )
    if report.held:
        rows = table("KIND", "NAMESPACE", "NAME", "PROTECTED", "HELD BY")
        for held in report.held[:shown_objects]:
            protected = "yes" if held.protected else "no"
            rows.add_row(held.kind, held.namespace, held.name, protected, escape(some(held.holders)))
        console.print(rows)
        if (more := len(report.held) - shown_objects) > 0:
            console.print(f"and {more} more: -o json lists all")
    for what in What:
        found = [finding for finding in report.findings if finding.what == what]
        if not found:
            continue
        console.print(f"\n[bold]{what.value}[/] ({len(found)}): {MEANING[what]}", highlight=False)
        rows = table("KIND", "NAMESPACE", "NAME", "USED BY")
        for finding in found:
            rows.add_row(finding.kind, finding.namespace, finding.name, escape(some(finding.users)))
        console.print(rows)
    if not report.findings and report.certain:
        console.print("Nothing to worry about.")
    elif not report.certain:
        console.print("[yellow]Too little could be looked at to tell.[/]")
    show_unseen(console, report.not_looked_at)
