"""ReferenceRules: what is read of them, whatever somebody wrote; the CRD refuses most of the bad ones before."""

from typing import Any

import msgspec
import pytest

from versionedconfig.rulebook import Rule, RuleItem, rule

WIDGET = {"group": "example.com", "version": "v1", "kind": "Widget", "plural": "widgets"}


def read(spec: Any) -> Rule:
    metadata = {"name": "widgets", "uid": "u", "resourceVersion": "1", "generation": 1}
    body = msgspec.json.encode({"metadata": metadata, "spec": spec})
    return rule(msgspec.json.decode(body, type=RuleItem))


def test_a_rule_becomes_a_source() -> None:
    kept = read(
        {**WIDGET, "holds": True, "references": [{"path": ".spec.tls[*].secretName", "to": "Secret"}]}
    )
    source = kept.source

    assert source is not None
    assert (source.id, source.rules.resource, source.rules.holder) == (
        "referencerules/u/1",
        "widgets.example.com",
        True,
    )
    body = {"metadata": {"name": "w", "namespace": "n"}, "spec": {"tls": [{"secretName": "s"}]}}
    item = msgspec.json.decode(msgspec.json.encode(body), type=source.item)
    assert source.kept(item).keys == (("Secret", "n", "s"),)


def test_a_kind_with_a_pod_template() -> None:
    source = read({**WIDGET, "include": [{"fragment": "PodSpec", "at": ".spec.template.spec"}]}).source

    assert source is not None
    assert not source.rules.holder
    spec = {"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}
    body = {"metadata": {"name": "w", "namespace": "n"}, "spec": {"template": {"spec": spec}}}
    item = msgspec.json.decode(msgspec.json.encode(body), type=source.item)
    assert source.kept(item).keys == (("ConfigMap", "n", "c"),)


WORKLOAD = {"health": {"condition": "Ready"}}
POD_SPEC = [{"fragment": "PodSpec", "at": ".spec.template.spec"}]


def test_a_kind_whose_objects_are_moved() -> None:
    kept = read({**WIDGET, "include": POD_SPEC, "workload": WORKLOAD})

    assert kept.custom is not None
    assert (kept.custom.kind, kept.custom.resource.path) == ("Widget", "/apis/example.com/v1/widgets")
    assert kept.source is not None  # refs and scan go on to see it
    assert not kept.source.rules.holder


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "Expected `object`"),
        ({**WIDGET, "references": [{"path": "spec", "to": "Secret"}]}, "is no path"),
        ({**WIDGET, "references": [{"path": ".a", "to": "Pod"}]}, "to"),
        ({**WIDGET, "references": [{"path": ".a"}]}, "either to, or kindField"),
        (
            {**WIDGET, "references": [{"path": ".a", "to": "Secret"}, {"path": ".a[*]", "to": "Secret"}]},
            "list",
        ),
        ({**WIDGET, "include": [{"fragment": "Nothing", "at": ".a"}]}, "is no fragment"),
        ({**WIDGET, "include": [{"fragment": "PodSpec", "at": "a"}]}, "is no path"),
        ({"kind": "Widget"}, "missing required field"),
        ({**WIDGET, "include": POD_SPEC, "workload": {}}, "missing required field `health`"),
        ({**WIDGET, "include": POD_SPEC, "workload": {"health": {}}}, "either phase or condition"),
        ({**WIDGET, "include": POD_SPEC, "workload": WORKLOAD, "kind": "Deployment"}, "moved without a rule"),
    ],
)
def test_a_mistake_is_told_and_makes_no_source(spec: Any, problem: str) -> None:
    kept = read(spec)

    assert problem in kept.problem
    assert kept.source is None
    assert kept.custom is None
