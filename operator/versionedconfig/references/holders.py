"""Who holds what: the referrers that keep protection on, of every kind in the catalogue that holds. Pure bookkeeping.

Most of it is one index per kind. Three sorts of references need a second object: a class whose references hold
variables is resolved for each object that chooses it, a binding of admission policies takes the kind of its parameter
from the policy, and its parameter may be chosen by labels, or by a name in whatever namespace; such a *pattern* is
matched against an incarnation when somebody asks.

The same class, filled from live lists, answers before a release.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from versionedconfig.model import ConfigKey, Incarnation, ObjectKey, Reference
from versionedconfig.references.compiled import Compiled
from versionedconfig.references.index import Keys, ReferenceIndex
from versionedconfig.references.rules import (
    CONFIG_MAP,
    LITERAL,
    OWN,
    SECRET,
    Chooses,
    FieldRule,
    KindRules,
    Path,
    expand,
    is_path,
    parse_path,
)
from versionedconfig.references.selector import Requirement, Selector, matches

PODS: Final = "pods"
BOTH: Final = frozenset({CONFIG_MAP, SECRET})


class Referrer(NamedTuple):
    """An object that refers to a config object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Pattern(NamedTuple):
    """A reference to whatever incarnation matches."""

    kind: str
    namespace: str = ""
    """Empty: any."""
    name: str = ""
    """Empty: any."""
    selector: Selector = ()
    asked: bool = False
    """Only those that ask for protection: the name alone does not prove a use."""

    def matches(self, life: Incarnation) -> bool:
        """It means this one."""
        return (
            self.kind == life.key.kind
            and self.namespace in ("", life.namespace)
            and self.name in ("", life.name)
            and (life.asked or not self.asked)
            and matches(self.selector, dict(life.labels))
        )


class Choice(NamedTuple):
    """The class that an object chose, and the values that it gives to variables."""

    link: str
    values: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]


class Parameter(NamedTuple):
    """What a binding of admission policies says of its parameter; its kind stands on the policy."""

    policy: str
    name: str
    namespace: str
    selector: Selector | None


class Kept(msgspec.Struct, frozen=True):
    """What is kept of a referrer."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    keys: Keys = ()
    """What it refers to by itself."""
    templates: Keys = ()
    """The same with variables in name or namespace."""
    choice: Choice | None = None
    parameter: Parameter | None = None
    parameter_kinds: frozenset[str] | None = None
    """Of a policy: which of both kinds its parameter is of."""


class Source:
    """One kind of the catalogue, ready to be listed: what to decode of its objects, and what is kept.

    Attributes:
        rules: of the kind.
        id: the resource; people's own rules have another one, since they may be about a kind of the catalogue too.
        item: decode objects into it.
        metadata_only: nothing else of its objects is looked at.
        crosses: its objects may refer to another namespace than their own.
    """

    def __init__(self, rules: KindRules, fragments: dict[str, list[FieldRule]], id: str = "") -> None:
        """Raises ValueError where the rules are none."""
        self.rules = rules
        self.id = id or rules.resource
        chooses = rules.chooses
        expanded = list(expand(rules, fragments))
        self._targets = frozenset(_targets(rule) for _, rule in expanded)
        self.metadata_only = rules.chooses is None and not rules.binds and not _is_policy(rules)
        self.metadata_only &= all(
            (*root, *parse_path(rule.path))[0] == "metadata" and not any(map(is_path, rule.namespace))
            for root, rule in expanded
        )
        self.crosses = any(rule.namespace != [OWN] or rule.format != "name" for _, rule in expanded)
        self._compiled = Compiled(expanded, _paths(rules), lenient=True)
        self.item: type[msgspec.Struct] = self._compiled.type
        self._link = self._compiled.getter(parse_path(chooses.link)) if chooses else None
        self._variables = _variables(chooses, self._compiled) if chooses else ()
        self._annotations = (
            self._compiled.getter(("metadata", "annotations")) if chooses and chooses.annotations else None
        )

    def may_refer(self, kind: str, namespace: str) -> bool:
        """Whether any object of this kind can refer to such a one at all."""
        return any(
            (kinds is None or kind in kinds) and (namespaces is None or namespace in namespaces)
            for kinds, namespaces in self._targets or ((None, None),)
        )

    def references(self, item: Any) -> list[Reference]:
        """Every reference of a decoded object, with the field that it stands in."""
        return self._compiled.references(item)

    def kept(self, item: Any) -> Kept:
        """What is kept of a decoded object."""
        meta = item.metadata
        namespace = _text(meta.namespace)
        keys: set[ConfigKey] = set()
        templates: set[ConfigKey] = set()
        for reference in self._compiled.references(item):
            target = reference.namespace or namespace
            if target:
                key = ConfigKey(reference.kind, target, reference.name)
                (templates if "$" in reference.name or "$" in target else keys).add(key)
        return Kept(
            namespace=namespace,
            name=_text(meta.name),
            uid=_text(meta.uid),
            resource_version=_text(meta.resourceVersion),
            keys=tuple(sorted(keys)),
            templates=tuple(sorted(templates)),
            choice=self._choice(item),
            parameter=_parameter(item) if self.rules.binds else None,
            parameter_kinds=_parameter_kinds(item) if _is_policy(self.rules) else None,
        )

    def _choice(self, item: Any) -> Choice | None:
        link = _text(self._link(item)) if self._link else ""
        if not link:
            return None
        values = []
        for name, texts in self._variables:
            for parts in texts:
                found = [part if isinstance(part, str) else _text(part(item)) for part in parts]
                if all(found):
                    values.append((name, "".join(found)))
                    break
        annotations = self._annotations(item) if self._annotations else None
        pairs = sorted(annotations.items()) if isinstance(annotations, dict) else ()
        # A longer value cannot be a name, and anybody can write 256 kB into each claim.
        short = tuple(
            (key, value) for key, value in pairs if isinstance(value, str) and len(value) <= MAX_NAME
        )
        return Choice(link, tuple(values), short)


ANNOTATIONS: Final = "annotations"
MAX_NAME: Final = 253
METADATA: Final[tuple[Path, ...]] = tuple(
    ("metadata", name) for name in ("name", "namespace", "uid", "resourceVersion")
)
_BRACES: Final = re.compile(r"\{([^}]*)\}")
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_Part = str | Callable[[Any], Any]
"""Of a variable's value: a literal, or where it stands."""


def _targets(rule: FieldRule) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """Kinds and namespaces that a rule can lead to; None: any."""
    literal = [text.removeprefix(LITERAL) for text in rule.namespace if text.startswith(LITERAL)]
    known = len(literal) == len(rule.namespace) and rule.format == "name"
    return (
        frozenset({rule.to}) if rule.to is not None else None,
        frozenset(literal) if known else None,
    )


def _paths(rules: KindRules) -> Iterator[Path]:
    yield from METADATA
    if rules.binds:
        yield from (("spec", "policyName"), ("spec", "paramRef"))
    if _is_policy(rules):
        yield ("spec", "paramKind")
    if rules.chooses:
        yield parse_path(rules.chooses.link)
        for texts in rules.chooses.variables.values():
            for text in texts:
                yield from (parse_path(path) for path in _BRACES.findall(text))
        if rules.chooses.annotations:
            yield ("metadata", "annotations")


def _is_policy(rules: KindRules) -> bool:
    return rules.group == "admissionregistration.k8s.io" and rules.kind.endswith("AdmissionPolicy")


def _variables(chooses: Chooses, compiled: Compiled) -> tuple[tuple[str, tuple[tuple[_Part, ...], ...]], ...]:
    def parts(text: str) -> tuple[_Part, ...]:
        found: list[_Part] = []
        for index, part in enumerate(_BRACES.split(text)):
            if index % 2:
                found.append(compiled.getter(parse_path(part)))
            elif part:
                found.append(part)
        return tuple(found)

    return tuple((name, tuple(parts(text) for text in texts)) for name, texts in chooses.variables.items())


def _parameter(item: Any) -> Parameter | None:
    spec = item.spec
    reference = getattr(spec, "paramRef", None)
    if not isinstance(reference, dict):
        return None
    found = reference.get("selector")
    selector = None
    if isinstance(found, dict):
        labels = found.get("matchLabels") or {}
        expressions = found.get("matchExpressions") or ()
        selector = (
            *(Requirement(key, "In", (value,)) for key, value in sorted(labels.items())),
            *(Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in expressions),
        )
    return Parameter(
        _text(spec.policyName), _text(reference.get("name")), _text(reference.get("namespace")), selector
    )


def _parameter_kinds(item: Any) -> frozenset[str]:
    kind = getattr(item.spec, "paramKind", None)
    if isinstance(kind, dict) and kind.get("apiVersion") == "v1" and kind.get("kind") in BOTH:
        return frozenset({kind["kind"]})
    return frozenset()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def resolve(templates: Keys, choice: Choice) -> Iterator[ConfigKey]:
    """The keys that a class means for the object that chose it. A variable without a value makes none: the driver
    refuses to work then too (external-provisioner pkg/controller/controller.go, resolveTemplate)."""
    values = dict(choice.values)
    values.update((f"{ANNOTATIONS}['{key}']", value) for key, value in choice.annotations)

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        before, bracket, key = name.partition("[")
        return (
            values.get(f"{ANNOTATIONS}[{key}" if bracket and before.endswith(".annotations") else name) or "$"
        )

    for kind, namespace, name in templates:
        key = ConfigKey(kind, _VARIABLE.sub(value, namespace), _VARIABLE.sub(value, name))
        if "$" not in key.namespace + key.name:
            yield key


def _parameters(parameter: Parameter, kinds: frozenset[str]) -> tuple[Keys, tuple[Pattern, ...]]:
    _, name, namespace, selector = parameter
    if selector is not None:
        return (), tuple(Pattern(kind, namespace, selector=selector) for kind in sorted(kinds))
    if not name:
        return (), ()
    if namespace:
        return tuple(ConfigKey(kind, namespace, name) for kind in sorted(kinds)), ()
    # The object of that name in the namespace of whatever is admitted, and which those are nobody can tell.
    return (), tuple(Pattern(kind, name=name, asked=True) for kind in sorted(kinds))


def _link_name(kept: Kept) -> str:
    if kept.choice is not None:
        return kept.choice.link
    return kept.parameter.policy if kept.parameter is not None else ""


class Holders:
    """Put what is kept of each referrer; ask who holds an incarnation."""

    def __init__(
        self,
        kinds: Mapping[str, KindRules],
        changed: Callable[[ConfigKey], None] | None = None,
        patterns_changed: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            kinds: all that are put, by their source's id, those which only help to read others included.
            changed: told each ConfigKey whose set of holders of one kind became empty or stopped being so.
            patterns_changed: told when an incarnation that no key names may have become held or free.
        """
        self._changed = changed
        self._kinds = dict(kinds)
        self._patterns_changed = patterns_changed or (lambda: None)
        self._indexes: dict[str, ReferenceIndex[ObjectKey]] = {
            resource: ReferenceIndex(changed) for resource in self._kinds
        }
        self._kept: dict[str, dict[ObjectKey, Kept]] = defaultdict(dict)
        """Of kinds that take part in a join."""
        self._patterns: dict[tuple[str, ObjectKey], tuple[Pattern, ...]] = {}
        self._unresolved: dict[tuple[str, ObjectKey], int] = {}
        self._linked: defaultdict[tuple[str, str], set[tuple[str, ObjectKey]]] = defaultdict(set)
        """By resource and name of the linked class or policy: who depends on it."""
        self._links = {resource: rules.linked for resource, rules in self._kinds.items() if rules.linked}
        self._linked_resources = frozenset(self._links.values())

    def add(self, resource: str, rules: KindRules) -> None:
        """A further source; not one that takes part in a join."""
        self._kinds[resource] = rules
        self._indexes[resource] = ReferenceIndex(self._changed)

    def drop(self, resource: str) -> None:
        """A source that was added holds nothing any more."""
        index = self._indexes.get(resource)
        if index is not None:
            for referrer in index.all():
                index.remove(referrer)
            del self._indexes[resource], self._kinds[resource]

    def put(self, resource: str, key: ObjectKey, kept: Kept | None) -> None:
        """Say what is there now; None: it is gone."""
        if resource in self._links:
            before = self._kept[resource].get(key)
            for one, act in ((before, set.discard), (kept, set.add)):
                if one is not None and (name := _link_name(one)):
                    act(self._linked[self._links[resource], name], (resource, key))
        if resource in self._links or resource in self._linked_resources:
            if kept is None:
                self._kept[resource].pop(key, None)
            else:
                self._kept[resource][key] = kept
        self._refresh(resource, key, kept)
        if resource in self._linked_resources:
            for dependent, its_key in list(self._linked.get((resource, key.name), ())):
                self._refresh(dependent, its_key, self._kept[dependent][its_key])

    def held(self, life: Incarnation, *, pods_only: bool = False) -> bool:
        """Something refers to it that keeps protection on."""
        if pods_only:
            return bool(self._indexes[PODS].referrers(life.key))
        return any(index.referrers(life.key) for index in self._indexes.values()) or any(
            pattern.matches(life) for patterns in self._patterns.values() for pattern in patterns
        )

    def pods(self, key: ConfigKey) -> Collection[ObjectKey]:
        """Pods that refer to the key; not to be changed or kept."""
        return self._indexes[PODS].referrers(key)

    def referrers(self, life: Incarnation) -> list[Referrer]:
        """All of them, in no order."""
        found = [
            Referrer(self._kinds[resource].kind, *key)
            for resource, index in self._indexes.items()
            for key in index.referrers(life.key)
        ]
        return found + self._matching(lambda pattern: pattern.matches(life))

    def possible(self, life: Incarnation) -> list[Referrer]:
        """Who may refer to it, where the name alone does not prove it."""
        return self._matching(lambda pattern: pattern._replace(asked=False).matches(life))

    def _matching(self, means: Callable[[Pattern], bool]) -> list[Referrer]:
        return [
            Referrer(self._kinds[resource].kind, *key)
            for (resource, key), patterns in self._patterns.items()
            if any(map(means, patterns))
        ]

    @property
    def references(self) -> int:
        """How many there are, patterns apart."""
        return sum(index.references for index in self._indexes.values())

    @property
    def unresolved(self) -> int:
        """References with variables that nothing gives a value to."""
        return sum(self._unresolved.values())

    def _refresh(self, resource: str, key: ObjectKey, kept: Kept | None) -> None:
        keys = kept.keys if kept is not None else ()
        patterns: tuple[Pattern, ...] = ()
        unresolved = 0
        if kept is not None and kept.choice is not None:
            chosen = self._kept[self._links[resource]].get(ObjectKey("", kept.choice.link))
            if chosen is not None:
                found = set(resolve(chosen.templates, kept.choice))
                unresolved = len(chosen.templates) - len(found)
                keys = tuple(sorted({*keys, *found}))
        if kept is not None and kept.parameter is not None:
            policy = self._kept[self._links[resource]].get(ObjectKey("", kept.parameter.policy))
            # The policy may come later: until then its parameter may be of either kind.
            kinds = BOTH if policy is None else policy.parameter_kinds or frozenset()
            keys, patterns = _parameters(kept.parameter, kinds)
        self._indexes[resource].put(key, keys)
        if unresolved:
            self._unresolved[resource, key] = unresolved
        else:
            self._unresolved.pop((resource, key), None)
        if self._patterns.get((resource, key), ()) != patterns:
            if patterns:
                self._patterns[resource, key] = patterns
            else:
                del self._patterns[resource, key]
            self._patterns_changed()
