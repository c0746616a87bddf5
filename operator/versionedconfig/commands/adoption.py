"""What `versionedconfig adopt` would write and what would follow from it: from what there is to a plan. Pure.

A VersionedConfig has the name of the object that it takes over, since that is what pod templates name. The object itself
stays as it is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from versionedconfig.commands.output import some
from versionedconfig.model import API_VERSION, GROUP, ConfigKey, owner_by_name
from versionedconfig.references.demands import missing
from versionedconfig.references.rules import path_text
from versionedconfig.resource import KIND, Spec, VersionStatus
from versionedconfig.settings import Settings
from versionedconfig.versions.content import OPAQUE, Content, content_problems, content_size
from versionedconfig.workload import CRON_JOB, DEPLOYMENT, REPLICA_SET, Health, Workload

SETTLE_SECONDS: Final = 5
"""Of VersionedConfigs with a workload in common: all of them must be there before the first one moves it, also where a
client sends one after the other to an API server far away."""

CLIENT_SIDE_BYTES: Final = 250_000
"""Client-side `kubectl apply` keeps a second copy in an annotation, and annotations have 256 KiB."""

STORED_BYTES: Final = 1_400_000
"""etcd takes 1.5 MiB in one request."""

WORKLOADS: Final = {
    "deployment": "Deployment",
    "deploy": "Deployment",
    "statefulset": "StatefulSet",
    "sts": "StatefulSet",
    "daemonset": "DaemonSet",
    "ds": "DaemonSet",
    "cronjob": "CronJob",
    "cj": "CronJob",
    "replicaset": "ReplicaSet",
    "rs": "ReplicaSet",
}
OBJECTS: Final = {"configmap": "ConfigMap", "cm": "ConfigMap", "secret": "Secret"}
FIXED: Final = {"pod": "a pod", "po": "a pod", "job": "a Job's template"}
"""What nobody can change, the operator included."""

PEOPLE: Final = re.compile(r"kubectl.*|before-first-apply|k9s|Mozilla|node-fetch|OpenAPI-Generator|dashboard")
"""Field managers of clients in the hands of people: who wrote with one of them may not come back."""

TOOLS: Final = {
    "meta.helm.sh/": "Helm",
    "helm.sh/": "Helm",
    "argocd.argoproj.io/": "Argo CD",
    "kustomize.toolkit.fluxcd.io/": "Flux",
    "helm.toolkit.fluxcd.io/": "Flux",
    "reconcile.external-secrets.io/": "External Secrets",
    "cert-manager.io/": "cert-manager",
    "sealedsecrets.bitnami.com/": "Sealed Secrets",
    "secrets-store.csi.k8s.io/": "the Secrets Store CSI driver",
    "kapp.k14s.io/": "kapp",
    "objectset.rio.cattle.io/": "Rancher",
}
"""Who leaves labels or annotations that begin so."""


# -- what there is ---------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    """One object, as somebody typed it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class _Struct(msgspec.Struct, frozen=True):
    pass


class Options(_Struct, frozen=True):
    """What was asked for."""

    namespace: str
    workloads: tuple[Named, ...]
    objects: tuple[Named, ...]
    everyone: bool = False
    """Every workload that refers to an object moves, not only those that were named."""
    by_reference: bool | None = None
    """True: all content by reference; False: none; None: that of Secrets."""
    program: str = "versionedconfig"
    """As people call it."""


class Referrer(_Struct, frozen=True):
    """A workload, with what decides about its pods."""

    workload: Workload
    pods: int = 0
    """How many are replaced when its template changes."""
    note: str = ""
    """What else becomes of its pods."""
    owner: str = ""
    """Its controller, as `Widget/web`."""

    @property
    def named(self) -> Named:
        """It, as people name it."""
        return Named(self.workload.kind, self.workload.name)


class Fixed(_Struct, frozen=True):
    """A pod or Job without a controller: it keeps its references to its end."""

    named: Named
    keys: tuple[tuple[str, str], ...]
    """Kind and name of what it refers to."""


class Existing(_Struct, frozen=True):
    """The VersionedConfig that has the name already. Its repr shows no content: that of Spec is masked."""

    spec: Spec
    deleting: bool = False
    versions: tuple[VersionStatus, ...] = ()


class Stored(_Struct, frozen=True):
    """A ConfigMap or Secret. Its repr shows no content: that of Content is masked."""

    key: ConfigKey
    content: Content
    immutable: bool = False
    writers: tuple[str, ...] = ()
    """Who writes it, apart from people."""
    extras: tuple[str, ...] = ()
    """Keys of its labels and annotations."""
    owner: str = ""
    """The VersionedConfig that it is a version of."""
    taken: bool = False
    """Another object has the name of the version that would be made."""
    existing: Existing | None = None


class Cluster(_Struct, frozen=True):
    """What of the operator can be seen. None: it may not be looked at."""

    installed: bool = True
    """VersionedConfigs are served."""
    running: bool | None = None
    """The operator's Deployment, where it usually is, has a pod that is ready."""
    rewrites: bool | None = None
    """An admission policy puts the version's name into what is applied with the logical one."""
    unseen: tuple[str, ...] = ()
    """Kinds that may not be listed, and why: who else refers is not known."""


SEEN: Final = Cluster(running=True, rewrites=True)
"""All is there."""


# -- what would be ---------------------------------------------------------------------------------------------------


class Manifest(_Struct, frozen=True):
    """A VersionedConfig as it is to be applied; its repr shows nothing of it."""

    body: dict[str, Any]

    def __repr__(self) -> str:
        return "<Manifest>"

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["metadata"]["name"])


class Adoption(_Struct, frozen=True):
    """What becomes of one object."""

    key: ConfigKey
    version: str
    keys: int
    size: int
    by_reference: bool
    manifest: Manifest | None
    """None: a VersionedConfig like this is there already."""


class Move(_Struct, frozen=True):
    """A workload that is moved: once, however many objects it refers to."""

    workload: Named
    asked: bool
    """It was named; otherwise it comes along."""
    fields: tuple[tuple[str, str, str], ...]
    """Path, the name that stands there, and the one that will."""
    pods: int
    note: str


class Plan(_Struct, frozen=True):
    """All of it."""

    namespace: str
    adoptions: tuple[Adoption, ...] = ()
    moves: tuple[Move, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Why nothing may be written."""
    installed: bool = True
    """VersionedConfigs are served."""

    @property
    def manifests(self) -> list[dict[str, Any]]:
        """What is to be created."""
        return [one.manifest.body for one in self.adoptions if one.manifest is not None]


def parse(words: Iterable[str]) -> tuple[tuple[Named, ...], tuple[Named, ...]]:
    """Workloads and config objects, each once, from words like `deploy/web` and `configmaps/app-config`.

    Raises:
        ValueError: says what a word should be.
    """
    workloads: dict[Named, None] = {}
    objects: dict[Named, None] = {}
    for word in words:
        prefix, slash, name = word.partition("/")
        # As kubectl, with the group, and in the plural.
        kind = prefix.lower().partition(".")[0]
        singular = kind if kind in WORKLOADS else kind.removesuffix("s")
        if not slash or not name:
            raise ValueError(f"{word!r} is no object: write kind/name, such as deployment/web or secret/db")
        if singular in WORKLOADS:
            workloads[Named(WORKLOADS[singular], name)] = None
        elif singular in OBJECTS:
            objects[Named(OBJECTS[singular], name)] = None
        elif singular in FIXED:
            raise ValueError(f"{word!r}: {FIXED[singular]} cannot change, so it cannot be moved to a version")
        else:
            known = ", ".join(sorted({*map(str.lower, WORKLOADS.values()), "configmap", "secret"}))
            raise ValueError(f"{word!r}: {prefix!r} is none of {known}")
    if not workloads:
        raise ValueError("name a workload, such as deployment/web")
    if not objects:
        raise ValueError("name a ConfigMap or Secret, such as configmap/app-config or secret/db")
    twice = [name for name, count in Counter(found.name for found in objects).items() if count > 1]
    if twice:
        raise ValueError(
            f"configmap/{twice[0]} and secret/{twice[0]} have one name, and only one VersionedConfig can have it: "
            "adopt one of them, or give the other one a new name in the template first"
        )
    return tuple(workloads), tuple(objects)


def writers(
    owners: Iterable[str], managers: Iterable[str], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> tuple[str, ...]:
    """Who writes an object, apart from people: in words that say from where it is known.

    Args:
        owners: of ownerReferences, as `Kind/name`.
        managers: field managers that wrote content.
    """
    found = dict.fromkeys(owners, "ownerReferences")
    for key in (*annotations, *labels):
        for prefix, tool in TOOLS.items():
            if key.startswith(prefix):
                found.setdefault(tool, key)
    if managed_by := labels.get("app.kubernetes.io/managed-by"):
        found.setdefault(managed_by, "app.kubernetes.io/managed-by")
    for manager in managers:
        if manager and not PEOPLE.fullmatch(manager):
            found.setdefault(manager, "managedFields")
    return tuple(f"{who} ({where})" for who, where in found.items())


def plan(
    options: Options,
    referrers: Sequence[Referrer],
    objects: Sequence[Stored],
    *,
    fixed: Sequence[Fixed] | None = (),
    cluster: Cluster = SEEN,
) -> Plan:
    """What would be written, and what would follow.

    Args:
        referrers: all workloads of the namespace, or at least those that were named.
        objects: those that were named, in that order.
        fixed: pods and Jobs without a controller; None: they may not be listed.
    """
    if Settings().excluded(options.namespace):
        problem = (
            f"the operator makes nothing in namespace {options.namespace}: there is nothing to adopt it for"
        )
        return Plan(options.namespace, problems=(problem,))
    takes = [_Take(options, stored, referrers, cluster) for stored in objects]
    problems = [problem for take in takes for problem in take.problems()]
    if problems:
        return Plan(options.namespace, problems=tuple(dict.fromkeys(problems)))
    new = [take for take in takes if take.existing is None]
    shared = _shared(new)
    moves = _moves(options, new)
    adoptions = tuple(
        Adoption(
            key=take.key,
            version=take.version,
            keys=len(take.stored.content.data) + len(take.stored.content.binary_data),
            size=content_size(take.stored.content),
            by_reference=take.by_reference,
            manifest=None if take.stored.existing else Manifest(take.manifest(shared)),
        )
        for take in takes
    )
    manifests = Plan(options.namespace, adoptions).manifests
    notes = [note for take in takes for note in take.notes(fixed or ())]
    if moves and fixed is None:
        notes.append(
            "whether pods or Jobs without a controller refer to it could not be seen: those are never changed"
        )
    if shared:
        notes.append(
            f"rollout.settleSeconds is {SETTLE_SECONDS}, so that all of them are there before the first one moves a "
            "workload that they share: its pods restart once"
        )
    notes += _about_applying(cluster) if moves else ()
    warnings = [warning for take in takes for warning in take.warnings()]
    warnings += _about_workloads(moves, referrers)
    warnings += _about_cluster(cluster)
    warnings += _about_size(manifests)
    return Plan(
        options.namespace,
        adoptions,
        moves,
        tuple(dict.fromkeys(notes)),
        tuple(warnings),
        installed=cluster.installed,
    )


class _Take:
    """One object that is taken over."""

    def __init__(
        self, options: Options, stored: Stored, referrers: Sequence[Referrer], cluster: Cluster
    ) -> None:
        self.options = options
        self.stored = stored
        self.cluster = cluster
        self.key = stored.key
        self.named = Named(stored.key.kind, stored.key.name)
        self.existing = stored.existing
        self.version = stored.content.version_name(stored.key.name)
        secret = stored.key.kind == "Secret"
        self.by_reference = secret if options.by_reference is None else options.by_reference
        # What was moved before refers to a version.
        versions = {version.name for version in self.existing.versions} if self.existing else set()
        self.names = frozenset({self.key.name, *versions})
        self.users = [one for one in referrers if self.fields(one)]
        self.asked = [one for one in self.users if one.named in options.workloads]
        # What a controller owns is no target, unless it is listed.
        free = [one for one in self.users if one not in self.asked and not one.owner]
        self.moved = [one for one in self.users if one in self.asked or (options.everyone and one in free)]
        self.others = [] if options.everyone else free
        self._named = [one for one in referrers if one.named in options.workloads]

    def fields(self, referrer: Referrer) -> list[tuple[str, str, str]]:
        """The references to it."""
        return [
            (path_text(ref.path), ref.name, self.version)
            for ref in referrer.workload.references
            if ref.kind == self.key.kind and ref.name in self.names
        ]

    def problems(self) -> list[str]:
        """Why it cannot be taken over."""
        stored, key = self.stored, self.key
        if stored.owner:
            return [
                f"{self.named} is a version already, of VersionedConfig {stored.owner}: change the content there"
            ]
        if not self.asked:
            names = " and ".join(str(one.named) for one in self._named)
            there = sorted(
                {f"{ref.kind}/{ref.name}" for one in self._named for ref in one.workload.references}
            )
            refers = f"refers to {some(there, 10)}" if there else "refers to nothing"
            return [f"{names} does not refer to {self.named}, {refers}: name what it refers to"]
        found = list(content_problems(key.name, stored.content))
        if found:
            return [f"{self.named}: {problem}" for problem in found]
        if self.existing is not None:
            return self._differences(self.existing)
        if stored.taken:
            return [
                f"{key.kind} {self.version} exists and is no version of a VersionedConfig {key.name}, which would "
                "need that name: rename or delete it"
            ]
        return [
            f"{one.named}: {sentence}, in {self.named}"
            for one in self.moved
            for sentence in missing(
                one.workload.demands,
                {key.name},
                key.kind,
                stored.content.data,
                binary_keys=stored.content.binary_data,
            )
        ]

    def _differences(self, existing: Existing) -> list[str]:
        name, namespace = self.key.name, self.key.namespace
        edit = f"kubectl edit vcfg {name} -n {namespace}"
        if existing.deleting:
            return [f"VersionedConfig {name} is being deleted: wait until it is gone, and run this again"]
        wanted = msgspec.convert(self.manifest(False)["spec"], Spec)
        if existing.spec.kind != wanted.kind:
            return [
                f"a VersionedConfig {name} of kind {existing.spec.kind} exists already, and only one can have the name: "
                f"give {self.named} a new name, in the template too, and adopt that"
            ]
        fields = ("type", "data", "stringData", "binaryData", "from")
        if differing := [field for field in fields if _of(existing.spec, field) != _of(wanted, field)]:
            return [
                f"a VersionedConfig {name} exists already, with another {' and '.join(differing)}: "
                f"change the content there, with {edit}; or delete it first (versions in use stay)"
            ]
        return [
            f"a VersionedConfig {name} exists already and does not move {one.named}: add "
            f"{{kind: {one.named.kind}, name: {one.named.name}}} to its spec.rollout.targets, with {edit}"
            for one in self.moved
            if not existing.spec.rollout.means(one.workload)
        ]

    def manifest(self, shared: bool) -> dict[str, Any]:
        """The VersionedConfig."""
        content = self.stored.content
        spec: dict[str, Any] = {}
        if content.kind == "Secret":
            spec["kind"] = "Secret"
            if content.type != OPAQUE:
                spec["type"] = content.type
        if self.by_reference:
            spec["from"] = [{"kind": self.key.kind, "name": self.key.name}]
        else:
            if content.data:
                spec["data"] = dict(content.data)
            if content.binary_data:
                spec["binaryData"] = dict(content.binary_data)
        rollout: dict[str, Any] = {}
        limited = not self.options.everyone and (self.others or self.cluster.unseen)
        if limited or any(one.owner for one in self.asked):
            rollout["targets"] = [one.named._asdict() for one in self.moved]
        if shared:
            rollout["settleSeconds"] = SETTLE_SECONDS
        if rollout:
            spec["rollout"] = rollout
        return {
            "apiVersion": f"{GROUP}/{API_VERSION}",
            "kind": KIND,
            "metadata": {"name": self.key.name, "namespace": self.key.namespace},
            "spec": spec,
        }

    def notes(self, fixed: Iterable[Fixed]) -> list[str]:
        """What to know."""
        named, stored = self.named, self.stored
        if self.existing is not None:
            return [f"VersionedConfig {named.name} exists already and says the same: nothing to do"]
        notes = []
        for one in self.others:
            notes.append(f"{one.named} refers to {named} too and stays as it is; --all takes it along")
        refs = f"{self.options.program} refs {named.kind.lower()} {named.name} -n {self.key.namespace}"
        if self.by_reference:
            notes.append(f"{named} stays, and content is changed there: each change makes a version")
        else:
            notes.append(
                f"{named} stays as it is, and what is moved does not read it any more; it may be deleted once nothing "
                f"refers to it: {refs}"
            )
        if stored.immutable and not self.by_reference:
            notes.append(
                f"{named} is immutable already, which is fine: its content is in the VersionedConfig"
            )
        for each in fixed:
            if tuple(named) in each.keys:
                notes.append(f"{each.named} refers to {named} and is never changed: it keeps it to its end")
        if stored.extras:
            notes.append(
                f"labels and annotations of {named} are not taken over ({some(list(stored.extras), 5)}): "
                "those that versions need go into spec.metadata"
            )
        return notes

    def warnings(self) -> list[str]:
        """What to think about."""
        named, stored = self.named, self.stored
        if self.existing is not None:
            return []
        warnings = []
        if stored.writers and not self.by_reference:
            warnings.append(
                f"{named} is written by {some(list(stored.writers))}: what comes from there later will not reach the "
                "VersionedConfig, which has a copy; --from makes it follow the object"
            )
        if stored.immutable and self.by_reference:
            inline = f", or take its content with {'--inline' if named.kind == 'Secret' else 'no --from'}"
            warnings.append(
                f"{named} is immutable, and so will be what is taken from it: for other content name another object "
                f"in spec.from{inline}"
            )
        if named.kind == "Secret" and not self.by_reference:
            warnings.append(
                f"the values of {named} stand in the manifest: whoever may read VersionedConfigs can read them, and so "
                "can whoever sees this output or the repository that it is put into"
            )
        if owner_by_name(named.name):
            warnings.append(
                f"the name {named.name} ends with a hash, as kustomize's generators and --append-hash make them: "
                "let the generator stop that first, or the next build names another object"
            )
        return warnings


def _of(spec: Spec, field: str) -> object:
    if field == "type":
        return spec.type or OPAQUE
    attributes = {"stringData": "string_data", "binaryData": "binary_data", "from": "from_"}
    return getattr(spec, attributes.get(field, field))


def _shared(takes: Sequence[_Take]) -> bool:
    """Some workload is moved on account of more than one of them."""
    counts = Counter(one.named for take in takes for one in take.moved)
    return any(count > 1 for count in counts.values())


def _moves(options: Options, takes: Sequence[_Take]) -> tuple[Move, ...]:
    fields: dict[Named, list[tuple[str, str, str]]] = {}
    moved: dict[Named, Referrer] = {}
    for take in takes:
        for one in take.moved:
            fields.setdefault(one.named, []).extend(take.fields(one))
            moved[one.named] = one
    asked = {named: named in options.workloads for named in moved}
    return tuple(
        Move(named, asked[named], tuple(fields[named]), moved[named].pods, moved[named].note)
        for named in sorted(moved, key=lambda named: (not asked[named], named))
    )


def _about_workloads(moves: Iterable[Move], referrers: Iterable[Referrer]) -> list[str]:
    by_name = {one.named: one for one in referrers}
    warnings = []
    for move in moves:
        one = by_name[move.workload]
        if one.owner:
            warnings.append(
                f"{one.named} is written by {one.owner} (ownerReferences): where that writes the old name back, change "
                "it there"
            )
        if one.workload.health in (Health.PROGRESSING, Health.FAILED):
            warnings.append(
                f"{one.named} is not through with its present template: wait for it, or see to it first"
            )
    return warnings


def _about_applying(cluster: Cluster) -> list[str]:
    match cluster.rewrites:
        case True:
            return [
                "manifests of workloads can be applied again as they are: at admission the old name becomes that of the "
                "version"
            ]
        case False:
            return [
                "applying a workload's manifest again writes the old name back, and the operator moves it once more: see "
                '"Applying a manifest again" in the README'
            ]
    return [
        "whether applying a workload's manifest again restarts its pods could not be seen: without the admission "
        "policy that puts the version's name in, it does"
    ]


def _about_cluster(cluster: Cluster) -> list[str]:
    warnings = []
    if not cluster.installed:
        warnings.append(
            "this cluster does not know VersionedConfigs: `kubectl apply -k manifests/base` comes first"
        )
    elif cluster.running is False:
        warnings.append(
            "no operator was seen to run (Deployment versionedconfig in namespace versionedconfig-system): without one "
            "nothing happens"
        )
    if cluster.unseen:
        warnings.append(
            f"{'; '.join(cluster.unseen)}: who else refers is not known for sure, and only what was named is moved"
        )
    return warnings


def _about_size(manifests: Iterable[dict[str, Any]]) -> list[str]:
    warnings = []
    for manifest in manifests:
        size, name = len(msgspec.json.encode(manifest)), manifest["metadata"]["name"]
        if size > STORED_BYTES:
            warnings.append(
                f"VersionedConfig {name} has {size} bytes and may be too large to be stored: use --from"
            )
        elif size > CLIENT_SIDE_BYTES:
            warnings.append(
                f"VersionedConfig {name} has {size} bytes, too much for client-side apply: use "
                "`kubectl apply --server-side`"
            )
    return warnings


def pods_replaced(
    kind: str, wanted: int, *, partition: int = 0, on_delete: bool = False, paused: bool = False
) -> tuple[int, str]:
    """How many pods a new template replaces, and what becomes of the others."""
    if kind == CRON_JOB:
        return 0, "its next Job gets it"
    if kind == REPLICA_SET or on_delete:
        return 0, "its pods get it when somebody deletes them"
    if kind == DEPLOYMENT and paused:
        return 0, f"it is paused: its pods ({wanted}) restart when it is resumed"
    if partition:
        return max(0, wanted - partition), f"pods with a number below {partition} keep what they have"
    return wanted, ""
