"""Rules made quick: a struct type that decodes only the fields which they name, and one walk over it. Pure.

A decoder skips what the type does not name, so a pod's status, a Secret's data and the rest of a spec never become
objects. Measured on a pod with two containers: decoding 3.4 µs and walking 9 µs, against 6.2 µs for decoding alone
into dictionaries.
"""

import functools
import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final, NamedTuple

import msgspec

from versionedconfig.model import Reference
from versionedconfig.references.rules import (
    CONFIG_MAP,
    EACH,
    LITERAL,
    OWN,
    SECRET,
    FieldRule,
    Path,
    is_path,
    parse_path,
    path_text,
)

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
"""Keys that are Python names and clash with nothing that an object has by itself."""


@dataclass(slots=True)
class _Node:
    """What the rules say about one place in an object."""

    attribute: str = ""
    """Of the struct that holds it: a key may be no Python name."""
    fields: dict[str, "_Node"] = field(default_factory=dict)
    each: "_Node | None" = None
    rules: list[tuple[FieldRule, Path]] = field(default_factory=list)
    """Rules whose path ends here, with the root that their absolute paths start from."""

    def at(self, path: Path) -> "_Node":
        """The node at that place below this one, made where it is missing."""
        node = self
        for step in path:
            if step == EACH:
                node.each = node.each or _Node()
                node = node.each
            else:
                attribute = (
                    step
                    if _PLAIN.fullmatch(step) and not keyword.iskeyword(step)
                    else f"field{len(node.fields)}"
                )
                node = node.fields.setdefault(step, _Node(attribute))
        return node

    def getter(self, path: Path) -> tuple[str, ...]:
        """The attributes that lead from here to that place."""
        node, attributes = self, []
        for step in path:
            if step not in node.fields:
                raise ValueError(
                    f"a namespace, a class or a variable cannot stand in a list: {path_text(path)}"
                )
            node = node.fields[step]
            attributes.append(node.attribute)
        return tuple(attributes)


class _Alternative(NamedTuple):
    """Where a namespace may stand."""

    literal: str | None = None
    """The namespace itself; empty: the referrer's own. None: `attributes` lead to it."""
    depth: int = -1
    """Of the object from which the attributes lead, in the walk's ancestors; -1: the one that holds the name."""
    attributes: tuple[str, ...] = ()


class _Leaf(NamedTuple):
    """One rule, ready to be asked."""

    kind: str
    kind_attribute: str
    """Where the kind stands beside the name."""
    group_attribute: str
    namespaces: tuple[_Alternative, ...]
    optional: str
    qualified: bool


class _Step(NamedTuple):
    key: str
    attribute: str
    leaves: tuple[_Leaf, ...]
    each_leaves: tuple[_Leaf, ...]
    """Of a list of names."""
    each: "tuple[_Step, ...]"
    fields: "tuple[_Step, ...]"


class Compiled:
    """The rules of one kind or fragment.

    Attributes:
        type: decode objects into it; every field has a default.
    """

    def __init__(
        self, rules: Iterable[tuple[Path, FieldRule]], also: Iterable[Path] = (), *, lenient: bool = False
    ) -> None:
        """
        Args:
            rules: with the root of each, as `rules.expand` gives them.
            also: further paths to decode.
            lenient: fields may be of any type, and are no references where that is another one than the rule expects.
                For kinds that have no schema known here; otherwise decoding fails as for any broken object.

        Raises:
            ValueError: a path is none, or leads through a list that another one takes for an object.
        """
        top = _Node()
        for root, rule in rules:
            path = (*root, *parse_path(rule.path))
            top.at(path).rules.append((rule, root))
            for name in _beside(rule):
                top.at((*path[:-1], name))
            for alternative in rule.namespace:
                if is_path(alternative):
                    top.at((*root, *parse_path(alternative)))
        for path in also:
            top.at(path)
        self.type: type[msgspec.Struct] = _struct(top, lenient)
        self._top = top
        self._steps = _steps(top, top)

    def getter(self, path: Path) -> Callable[[Any], Any]:
        """What stands at a path without lists that the rules or `also` name; None where nothing does."""
        attributes = self._top.getter(path)
        return lambda item: functools.reduce(lambda value, name: getattr(value, name, None), attributes, item)

    def references(self, item: Any) -> list[Reference]:
        """Every reference in the decoded item; empty names are no references (the kubelet skips them too,
        pkg/api/v1/pod/util.go)."""
        found: list[Reference] = []
        _walk(item, self._steps, (), (item,), found)
        return found

    def names(self, item: Any) -> tuple[tuple[str, str], ...]:
        """The distinct (kind, name) pairs, sorted, of rules that point into the referrer's own namespace without
        further conditions, as all of a pod's do: what an index needs of a pod, in a third of the time."""
        found: set[tuple[str, str]] = set()
        _collect(item, self._steps, found)
        return tuple(sorted(found))


def _beside(rule: FieldRule) -> Iterator[str]:
    if rule.kind_field is not None:
        yield rule.kind_field.kind
        if rule.kind_field.group:
            yield rule.kind_field.group
    if rule.optional:
        yield rule.optional
    for alternative in rule.namespace:
        if alternative != OWN and not alternative.startswith(LITERAL) and not is_path(alternative):
            yield alternative


_SCALARS: Any = str | int | float | bool | None


def _struct(node: _Node, lenient: bool) -> type[msgspec.Struct]:
    fields = [(child.attribute, _type(child, lenient), None) for child in node.fields.values()]
    renamed = {child.attribute: key for key, child in node.fields.items()}
    # gc=False: these are trees that live for one decode; the collector need not walk them.
    return msgspec.defstruct("Decoded", fields, rename=renamed, frozen=True, gc=False)


def _type(node: _Node, lenient: bool) -> Any:
    if sum(map(bool, (node.each, node.fields, node.rules))) > 1:
        raise ValueError(
            "two paths contradict each other: where one has a name or an object, another has a list or fields"
        )
    if node.each is not None:
        listed: Any = list[_type(node.each, lenient)]  # type: ignore[misc]
        return listed | dict[str, Any] | _SCALARS if lenient else listed | None
    if node.fields:
        struct: Any = _struct(node, lenient)
        return struct | list[Any] | _SCALARS if lenient else struct | None
    return Any


def _steps(node: _Node, top: _Node) -> tuple[_Step, ...]:
    return tuple(
        _Step(
            key=key,
            attribute=child.attribute,
            leaves=tuple(_leaf(rule, root, node, top) for rule, root in child.rules),
            each_leaves=tuple(_leaf(rule, root, _Node(), top) for rule, root in child.each.rules)
            if child.each
            else (),
            each=_steps(child.each, top) if child.each else (),
            fields=_steps(child, top),
        )
        for key, child in node.fields.items()
    )


def _leaf(rule: FieldRule, root: Path, holder: _Node, top: _Node) -> _Leaf:
    alternatives = []
    for text in rule.namespace:
        if text == OWN:
            alternatives.append(_Alternative(literal=""))
        elif text.startswith(LITERAL):
            alternatives.append(_Alternative(literal=text.removeprefix(LITERAL)))
        elif is_path(text):
            path = parse_path(text)
            depth = sum(step != EACH for step in root)
            alternatives.append(_Alternative(None, depth, top.at(root).getter(path)))
        else:
            alternatives.append(_Alternative(attributes=holder.getter((text,))))
    field = rule.kind_field
    return _Leaf(
        kind=field.default if field is not None else rule.to or "",
        kind_attribute=holder.fields[field.kind].attribute if field is not None else "",
        group_attribute=holder.fields[field.group].attribute if field is not None and field.group else "",
        namespaces=tuple(alternatives),
        optional=holder.fields[rule.optional].attribute if rule.optional else "",
        qualified=rule.format == "namespace/name",
    )


def _collect(item: Any, steps: tuple[_Step, ...], found: set[tuple[str, str]]) -> None:
    # Unpacked at once and without attribute look-ups: most fields are absent, and this runs for every pod.
    for _, attribute, leaves, _, each, fields in steps:
        value = getattr(item, attribute)
        if value is None:
            continue
        if leaves:
            if value:
                found.add((leaves[0][0], intern(value)))
        elif fields:
            _collect(value, fields, found)
        elif each:
            for element in value:
                _collect(element, each, found)


def _walk(
    item: Any,
    steps: tuple[_Step, ...],
    path: tuple[str | int, ...],
    ancestors: tuple[Any, ...],
    found: list[Reference],
) -> None:
    for key, attribute, leaves, each_leaves, each, fields in steps:
        value = getattr(item, attribute)
        if value is None:
            continue
        if leaves:
            for leaf in leaves:
                _add(leaf, value, item, (*path, key), ancestors, found)
        elif fields:
            if isinstance(value, msgspec.Struct):
                _walk(value, fields, (*path, key), (*ancestors, value), found)
        elif isinstance(value, list):
            for index, element in enumerate(value):
                for leaf in each_leaves:
                    _add(leaf, element, None, (*path, key, index), ancestors, found)
                if each and isinstance(element, msgspec.Struct):
                    _walk(element, each, (*path, key, index), (*ancestors, element), found)


def _add(
    leaf: _Leaf,
    name: Any,
    holder: Any,
    path: tuple[str | int, ...],
    ancestors: tuple[Any, ...],
    found: list[Reference],
) -> None:
    if not isinstance(name, str) or not name:
        return
    kind = leaf.kind
    if leaf.kind_attribute:
        kind = getattr(holder, leaf.kind_attribute) or leaf.kind
        group = getattr(holder, leaf.group_attribute) if leaf.group_attribute else ""
        if kind not in (CONFIG_MAP, SECRET) or group not in ("", "v1", None):
            return
    namespace = ""
    if leaf.qualified and "/" in name:
        namespace, _, name = name.partition("/")
        if not namespace or not name:
            return
    else:
        for alternative in leaf.namespaces:
            if alternative.literal is not None:
                namespace = alternative.literal
                break
            value = holder if alternative.depth < 0 else ancestors[alternative.depth]
            for attribute in alternative.attributes:
                value = getattr(value, attribute, None)
            if isinstance(value, str) and value:
                namespace = value
                break
        else:
            return
    optional = bool(leaf.optional) and getattr(holder, leaf.optional) is True
    found.append(Reference(kind, name, path, optional, namespace))
