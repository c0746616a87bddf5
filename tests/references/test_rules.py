"""The form of the rules, and what is made of them."""

from typing import Any

import msgspec
import pytest

from versionedconfig.model import Reference
from versionedconfig.references import CATALOGUE, Source
from versionedconfig.references.compiled import Compiled
from versionedconfig.references.rules import FieldRule, KindField, KindRules, expand, parse_path, path_text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (".spec", ("spec",)),
        (".spec.volumes[*].secret.secretName", ("spec", "volumes", "[*]", "secret", "secretName")),
        (".metadata.annotations['a.io/b']", ("metadata", "annotations", "a.io/b")),
        (".spec.secrets[*]", ("spec", "secrets", "[*]")),
    ],
)
def test_paths_are_read_and_written(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == path
    assert path_text(path) == text


@pytest.mark.parametrize(
    "text", ["", "spec", "[*].name", ".spec[0].name", ".spec..name", ".a['b]", ".spec.a b"]
)
def test_what_is_no_path_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        parse_path(text)


def found(rules: list[FieldRule], item: Any, *, lenient: bool = True, root: str = "") -> list[Reference]:
    at = parse_path(root) if root else ()
    compiled = Compiled(((at, rule) for rule in rules), lenient=lenient)
    return compiled.references(msgspec.json.decode(msgspec.json.encode(item), type=compiled.type))


def test_a_list_of_names() -> None:
    rule = FieldRule(path=".spec.secrets[*]", to="Secret")

    assert found([rule], {"spec": {"secrets": ["a", "", "b", 7, None]}}) == [
        Reference("Secret", "a", ("spec", "secrets", 0)),
        Reference("Secret", "b", ("spec", "secrets", 2)),
    ]


def test_namespaces_are_tried_in_turn() -> None:
    rule = FieldRule(path=".a.name", to="Secret", namespace=["namespace", ".claim.namespace"])

    def namespaces(item: Any, root: str = "") -> list[str]:
        return [reference.namespace for reference in found([rule], item, root=root)]

    assert namespaces({"a": {"name": "n", "namespace": "x"}, "claim": {"namespace": "y"}}) == ["x"]
    assert namespaces({"a": {"name": "n", "namespace": ""}, "claim": {"namespace": "y"}}) == ["y"]
    assert namespaces({"a": {"name": "n"}}) == []
    # A path of a fragment starts where the fragment is included.
    item = {"claim": {"namespace": "wrong"}, "l": [{"a": {"name": "n"}, "claim": {"namespace": "y"}}]}
    assert namespaces(item, root=".l[*]") == ["y"]


def test_a_namespace_can_be_given_outright() -> None:
    rule = FieldRule(path=".a", to="Secret", namespace=["=there"])

    assert [reference.namespace for reference in found([rule], {"a": "n"})] == ["there"]


@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        ({"kind": "ConfigMap", "group": ""}, "ConfigMap"),
        ({"kind": "Secret"}, "Secret"),
        ({}, "Secret"),
        ({"kind": "Secret", "group": "example.com"}, None),
        ({"kind": "Widget"}, None),
        ({"kind": 7}, None),
    ],
)
def test_the_kind_stands_beside_the_name(beside: dict[str, Any], kind: str | None) -> None:
    rule = FieldRule(path=".a[*].name", kind_field=KindField(group="group", default="Secret"))

    assert [r.kind for r in found([rule], {"a": [{"name": "n", **beside}]})] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("text", "target"), [("ns/n", ("ns", "n")), ("n", ("", "n")), ("/n", None), ("ns/", None)]
)
def test_namespace_and_name_in_one(text: str, target: tuple[str, str] | None) -> None:
    rule = FieldRule(path=".a", to="Secret", format="namespace/name")

    assert [(r.namespace, r.name) for r in found([rule], {"a": text})] == ([target] if target else [])


ODD: list[Any] = [
    None,
    7,
    True,
    "text",
    [],
    [[]],
    [None],
    {},
    {"b": None},
    {"b": 7},
    {"b": []},
    [{"name": {}}],
]


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_fields_of_another_type_are_no_references(value: Any) -> None:
    """Somebody's rule, or somebody's object, is not what the other one thinks."""
    rules = [
        FieldRule(path=".a[*].name", to="Secret", optional="optional", namespace=["namespace", "own"]),
        FieldRule(path=".c.b.name", kind_field=KindField(group="group")),
    ]

    assert found(rules, {"a": value, "c": value}) == []


def test_rules_that_contradict_each_other_are_told() -> None:
    rules = [FieldRule(path=".a.name", to="Secret"), FieldRule(path=".a[*].name", to="Secret")]

    with pytest.raises(ValueError, match="contradict each other"):
        found(rules, {})


@pytest.mark.parametrize("both", [{}, {"to": "Secret", "kind_field": KindField()}])
def test_a_rule_tells_the_kind_in_one_way(both: dict[str, Any]) -> None:
    kind = KindRules("Widget", "widgets", "v1", references=[FieldRule(path=".a", **both)])

    with pytest.raises(ValueError, match="either to, or kindField"):
        list(expand(kind, {}))


def test_the_whole_catalogue_is_sound() -> None:
    resources = [kind.resource for kind in CATALOGUE.kinds]
    assert len(set(resources)) == len(resources)
    for kind in CATALOGUE.kinds:
        Source(kind, CATALOGUE.fragments)
        rules = [(*root, *parse_path(rule.path)) for root, rule in expand(kind, CATALOGUE.fragments)]
        assert len(set(rules)) == len(rules), kind.kind
        if kind.scope == "Cluster":
            # They have no namespace of their own.
            assert all("own" not in rule.namespace for _, rule in expand(kind, CATALOGUE.fragments)), (
                kind.kind
            )
        for linked in (kind.chooses.classes if kind.chooses else "", kind.binds):
            assert not linked or linked in resources
