"""Kinds of people's own that carry a pod template: what a ReferenceRule with `workload` keeps of their objects. Pure.

Total, as projection.py is: the API server stores in such an object what its schema lets through, and often that is
anything.
"""

from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from versionedconfig.kube.api import flattened
from versionedconfig.kube.mirror import Resource
from versionedconfig.model import Reference
from versionedconfig.projection import MAX_REASON, LabelledMetadata, controller_of, order_of, revision_of
from versionedconfig.references import CATALOGUE
from versionedconfig.references.compiled import Compiled
from versionedconfig.references.demands import AnyTemplateSpec, Demand, demands
from versionedconfig.references.rules import (
    HealthRules,
    KindRules,
    Path,
    WorkloadRules,
    check_workload,
    expand,
    parse_path,
    template_paths,
)
from versionedconfig.workload import JOB, PATHS, Health, Workload

T = TypeVar("T")

TAKEN: Final = frozenset({*PATHS, JOB})
"""Kinds that need no rule."""

MAX_NAME: Final = 253
"""Characters; a longer text is the name of nothing."""

MAX_DIGITS: Final = 18
"""Of an int64."""


class _Item(msgspec.Struct, frozen=True, gc=False):
    metadata: LabelledMetadata


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: Any = None
    status: Any = None
    reason: Any = None
    message: Any = None


_Scalar = str | int | float | bool | None
_AnyConditions = list[_Condition | list[Any] | _Scalar] | dict[str, Any] | _Scalar


class Place(Generic[T]):
    """One place in an object: decodes what stands there, and nothing else."""

    def __init__(self, path: Path, type: Any) -> None:
        """
        Args:
            type: takes any JSON, so that decoding never fails for what there is.
        """
        self._depth = len(path)
        for step in reversed(path):
            struct: Any = msgspec.defstruct(
                "Place", [("value", type, None)], rename={"value": step}, frozen=True, gc=False
            )
            type = struct | list[Any] | _Scalar
        self._decoder = msgspec.json.Decoder(type)

    def of(self, content: msgspec.Raw) -> T | None:
        """What stands there; None where nothing does."""
        value = _decoded(self._decoder, content)
        for _ in range(self._depth):
            value = getattr(value, "value", None)
        return value


def _decoded(decoder: msgspec.json.Decoder[T], content: msgspec.Raw) -> T | None:
    try:
        try:
            return decoder.decode(content)
        except RecursionError:
            return decoder.decode(flattened(bytes(content)))
    except msgspec.MsgspecError:
        return None


class CustomKind:
    """A kind whose objects a rule makes workloads.

    Attributes:
        kind: what its objects are known by, with their names.
        resource: what a mirror or a list of it needs.
    """

    def __init__(self, rules: KindRules) -> None:
        """Raises ValueError where the rules do not make workloads."""
        check_workload(rules, TAKEN)
        if rules.workload is None:
            raise ValueError("there is no workload in it")
        self.kind = rules.kind
        self.resource: Resource[Workload] = Resource(
            name=rules.resource,
            path=rules.api_path,
            # Looked into several times: no one struct fits whatever may stand in the places that count.
            item=msgspec.Raw,
            project=self.workload,
            may_be_absent=True,
        )
        self._rules: WorkloadRules = rules.workload
        # What is written namespace/name is shown to people and stays as it is: a patch would have to write both.
        fields = [(root, rule) for root, rule in expand(rules, CATALOGUE.fragments) if rule.format == "name"]
        self._compiled = Compiled(fields, lenient=True)
        self._fields = msgspec.json.Decoder(self._compiled.type)
        self._metadata = msgspec.json.Decoder(_Item)
        self._templates = [Place[AnyTemplateSpec](path, AnyTemplateSpec) for path in template_paths(rules)]
        self._observed = Place[Any](parse_path(self._rules.observed_generation), Any)
        health = self._rules.health
        self._told = (
            Place[Any](parse_path(health.phase), Any)
            if health.phase
            else Place[Any](("status", "conditions"), _AnyConditions)
        )

    def workload(self, content: msgspec.Raw) -> Workload:
        """The projection of an object of this kind."""
        item = _decoded(self._metadata, content)
        if item is None:
            # The API server keeps metadata as it has to be, whatever the kind.
            raise ValueError("an object without metadata")
        meta = item.metadata
        observed = generation(self._observed.of(content))
        state, message = judge(self._rules.health, self._told.of(content))
        if observed < meta.generation:
            state = Health.PROGRESSING
            message = f"{self._rules.observed_generation} is not {meta.generation} yet"
        return Workload(
            kind=self.kind,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            pending=max(0, meta.generation - observed),
            references=self._references(content, meta.namespace),
            demands=tuple(dict.fromkeys(self._demands(content))),
            revision=revision_of(meta),
            health=state,
            controlled=bool(controller_of(meta)),
            order=order_of(meta),
            labels=tuple(sorted((meta.labels or {}).items())),
            message=message,
        )

    def _references(self, content: msgspec.Raw, namespace: str) -> tuple[Reference, ...]:
        item = _decoded(self._fields, content)
        found = self._compiled.references(item) if item is not None else ()
        # Each field once, however many rules name it: a patch that tests and replaces a field twice is refused.
        fields = {
            (reference.kind, reference.path): reference
            for reference in found
            if reference.namespace in ("", namespace) and len(reference.name) <= MAX_NAME
        }
        return tuple(fields.values())

    def _demands(self, content: msgspec.Raw) -> Iterable[Demand]:
        for place in self._templates:
            yield from demands(place.of(content))


def generation(value: object) -> int:
    """The number that stands there, as an integer or a text; 0 where none does. Argo Rollouts writes text, and later
    versions of it an integer (pkg/apis/rollouts/v1alpha1/types.go, RolloutStatus)."""
    if type(value) is int:
        return value
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) <= MAX_DIGITS:
        return int(value)
    return 0


def judge(rules: HealthRules, told: object) -> tuple[Health, str]:
    """Health, and why where that is not plain, of an object whose status is about its present generation.

    Args:
        told: what stands at the rules' phase, or in the list of conditions.
    """
    if rules.condition:
        return _by_condition(rules.condition, told)
    if type(told) is not str:
        return Health.PROGRESSING, ""
    if told in rules.healthy:
        return Health.DONE, ""
    if told in rules.failed:
        return Health.FAILED, f"{rules.phase} is {told}"
    if told in rules.paused:
        return Health.PAUSED, f"{rules.phase} is {told}"
    return Health.PROGRESSING, ""


def _by_condition(wanted: str, told: object) -> tuple[Health, str]:
    for condition in told if type(told) is list else ():
        if type(condition) is _Condition and condition.type == wanted:
            if condition.status == "True":
                return Health.DONE, ""
            if condition.status == "False":
                words = [w for w in (condition.reason, condition.message) if type(w) is str and w]
                why = ": ".join(words)[:MAX_REASON]
                return Health.FAILED, f"{wanted} is False" + (f" ({why})" if why else "")
            break
    return Health.PROGRESSING, ""
