"""What a reference rule is: a field of some kind that names a ConfigMap or Secret. Pure data and its checks.

The catalogue that we ship and the rules that people add have this one form. `compiled.py` turns rules into something
that decodes and walks objects.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

CONFIG_MAP: Final = "ConfigMap"
SECRET: Final = "Secret"  # noqa: S105 - the kind's name

EACH: Final = "[*]"
"""The step of a path that goes through every element of a list."""

POD_SPEC: Final = "PodSpec"
"""The fragment that is a pod's spec."""

OWN: Final = "own"
"""Among the alternatives for a namespace: the referrer's own."""

LITERAL: Final = "="
"""Among the alternatives for a namespace: begins the namespace itself."""

Path = tuple[str, ...]
"""Keys, and EACH."""

MOST_STEPS: Final = 30

_PLAIN: Final = re.compile(r"[A-Za-z_$][-A-Za-z0-9_$]*")
_STEP: Final = re.compile(r"\.([A-Za-z_$][-A-Za-z0-9_$]*)|\['([^']+)'\]|(\[\*\])")


def parse_path(text: str) -> Path:
    """`.spec.volumes[*].secret.secretName`, keys with other characters as `['example.com/key']`: the part of JSONPath
    that a CustomResourceDefinition's printer columns take, and `[*]`.

    Raises:
        ValueError: it is none.
    """
    steps: list[str] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(
                f"{text!r} is no path: write it like .spec.volumes[*].secret.secretName, and a key that holds a dot or "
                "a slash like .metadata.annotations['example.com/key']"
            )
        steps.append(match.group(1) or match.group(2) or EACH)
        position = match.end()
    if len(steps) > MOST_STEPS:
        raise ValueError(f"a path of {len(steps)} steps: no more than {MOST_STEPS} are followed")
    if not steps or steps[0] == EACH:
        raise ValueError(f"{text!r} is no path: it must begin with a field, like .spec")
    return tuple(steps)


def path_text(path: Iterable[str | int]) -> str:
    """The way back from `parse_path`; numbers are places in a list."""
    return "".join(map(_step_text, path))


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if step == EACH:
        return step
    return f".{step}" if _PLAIN.fullmatch(step) else f"['{step}']"


def is_path(alternative: str) -> bool:
    """Among the alternatives for a namespace: it leads there from the root."""
    return alternative.startswith((".", "["))


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    pass


class KindField(_Struct, frozen=True):
    """Beside the name stands which kind it is of."""

    kind: str = "kind"
    """Field beside the name."""
    group: str = ""
    """Field beside the name that must be empty or absent, or hold `v1` where it is an apiVersion; none where empty."""
    default: Literal["ConfigMap", "Secret", ""] = ""
    """The kind where the field is empty."""


class FieldRule(_Struct, frozen=True):
    """One field that holds the name of a config object."""

    path: str
    """To the name, from the object's root or, in a fragment, from where the fragment is included."""
    to: Literal["ConfigMap", "Secret"] | None = None
    """The kind of the object; or it stands beside the name, as `kind_field` says. One of both."""
    kind_field: KindField | None = None
    namespace: list[str] = msgspec.field(default_factory=lambda: [OWN])
    """Where the object's namespace stands; the first that is not empty counts, and without any there is no reference.
    `own`, a field beside the name, a path from the same root as `path` (it begins with a dot), or `=` and the namespace
    itself."""
    optional: str = ""
    """Boolean field beside the name that says that the object may be missing."""
    format: Literal["name", "namespace/name"] = "name"
    """How the field is written; in `namespace/name` the namespace may be missing, and then `namespace` counts."""


class Include(_Struct, frozen=True):
    """A structure with rules of its own, at a place in the object."""

    fragment: str
    at: str
    namespace: list[str] = []
    """Instead of the alternatives that the fragment's rules name."""


class Unrelated(_Struct, frozen=True):
    """A field of a type of Kubernetes that looks like a reference to a config object and is none."""

    type: str
    """As its OpenAPI document names it, without the prefix: `core.v1.Event`."""
    field: str
    why: str


class Chooses(_Struct, frozen=True):
    """An object that chooses a class, whose references may hold variables: `${pvc.name}`. The object gives them values."""

    classes: str
    """The resource of the class, `storageclasses.storage.k8s.io`."""
    link: str
    """Path to the name of the class."""
    variables: dict[str, list[str]]
    """Texts with paths in braces, `pvc-{.metadata.uid}`; the first counts in which no path is empty."""
    annotations: bool = False
    """Its annotations give values too: `${pvc.annotations['key']}`."""


class HealthRules(_Struct, frozen=True):
    """How to tell from an object's status whether its template is through: by a phase, or by a condition."""

    phase: str = ""
    """Path to a text. What is in none of the lists below means that it is on its way."""
    healthy: list[str] = []
    failed: list[str] = []
    paused: list[str] = []
    """It goes on when somebody says so; a rollout does not wait for that."""
    condition: str = ""
    """Type of a condition in .status.conditions: True is healthy, False failed, anything else on its way."""


class WorkloadRules(_Struct, frozen=True):
    """The objects of a kind are workloads: VersionedConfigs move them."""

    health: HealthRules
    observed_generation: str = ".status.observedGeneration"
    """Path to the generation that the status is about: an integer, or a text that holds one."""


class KindRules(_Struct, frozen=True):
    """The rules of one kind."""

    kind: str
    plural: str
    version: str
    group: str = ""
    scope: Literal["Namespaced", "Cluster"] = "Namespaced"
    holds: bool | None = None
    """Its objects keep protection on. By default cluster-scoped kinds do."""
    include: list[Include] = []
    references: list[FieldRule] = []
    chooses: Chooses | None = None
    workload: WorkloadRules | None = None
    binds: str = ""
    """A binding of admission policies: the resource of its policies, on which the kind of its parameter stands."""

    @property
    def linked(self) -> str:
        """The resource that its objects need to be read: of their class, or of their policy; empty where there is none."""
        return self.chooses.classes if self.chooses else self.binds

    @property
    def holder(self) -> bool:
        """Whether its objects hold, where no setting says otherwise."""
        return self.scope == "Cluster" if self.holds is None else self.holds

    @property
    def resource(self) -> str:
        """`ingresses.networking.k8s.io`, as kubectl and RBAC write it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_path(self) -> str:
        """Of the collection over all namespaces."""
        return (
            f"/apis/{self.group}/{self.version}/{self.plural}"
            if self.group
            else f"/api/{self.version}/{self.plural}"
        )


class Catalogue(_Struct, frozen=True):
    """All rules."""

    fragments: dict[str, list[FieldRule]]
    kinds: list[KindRules]
    unrelated: list[Unrelated]


STATUS: Final = "status"


def template_paths(kind: KindRules) -> list[Path]:
    """Where the pod specs of a workload stand, those in lists apart."""
    paths = [parse_path(include.at) for include in kind.include if include.fragment == POD_SPEC]
    return [path for path in paths if EACH not in path]


def check_workload(kind: KindRules, taken: Collection[str]) -> None:
    """Nothing where the kind has no workload.

    Args:
        taken: kinds that are workloads already.

    Raises:
        ValueError: its objects cannot be moved, or nobody could tell how they are.
    """
    if kind.workload is None:
        return
    health = kind.workload.health
    if kind.kind in taken:
        raise ValueError(f"workload: {kind.kind} is moved without a rule; targets are known by kind and name")
    if kind.scope != "Namespaced":
        raise ValueError("workload: only objects in a namespace can be moved, so scope must be Namespaced")
    if kind.holds:
        raise ValueError("workload: its pods hold what they use, so holds must not be true")
    if not template_paths(kind):
        raise ValueError("workload: include a PodSpec whose path has no [*], like .spec.template.spec")
    if bool(health.phase) == bool(health.condition):
        raise ValueError("workload.health: give either phase or condition")
    lists = [*health.healthy, *health.failed, *health.paused]
    if health.phase and not health.healthy:
        raise ValueError("workload.health: name at least one phase in healthy")
    if health.condition and lists:
        raise ValueError("workload.health: healthy, failed and paused are for a phase, not for a condition")
    if len(set(lists)) < len(lists):
        raise ValueError("workload.health: a phase stands twice in healthy, failed and paused")
    for text in (kind.workload.observed_generation, *filter(None, [health.phase])):
        path = parse_path(text)
        if path[0] != STATUS or len(path) == 1 or EACH in path:
            raise ValueError(f"workload: {text} must lead through .status, and through no list")


def expand(kind: KindRules, fragments: Mapping[str, list[FieldRule]]) -> Iterator[tuple[Path, FieldRule]]:
    """Every rule of a kind, those of its fragments included, with the root that its paths start from.

    Raises:
        ValueError: a path is none, a fragment is not known, or a rule does not tell the kind in exactly one way.
    """
    for rule in kind.references:
        if (rule.to is None) == (rule.kind_field is None):
            raise ValueError(f"{rule.path}: give either to, or kindField")
        yield (), rule
    for include in kind.include:
        if include.fragment not in fragments:
            raise ValueError(f"{include.fragment!r} is no fragment: there are {', '.join(sorted(fragments))}")
        root = parse_path(include.at)
        for rule in fragments[include.fragment]:
            yield (
                root,
                msgspec.structs.replace(rule, namespace=include.namespace) if include.namespace else rule,
            )
