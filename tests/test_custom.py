"""Workloads of people's own kinds: what is kept of any object that the API server may store, and when one is through."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from versionedconfig.custom import CustomKind, generation, judge
from versionedconfig.references.rules import HealthRules, KindRules
from versionedconfig.workload import Health, Workload

ROLLOUT: dict[str, Any] = {
    "group": "argoproj.io",
    "version": "v1alpha1",
    "kind": "Rollout",
    "plural": "rollouts",
    "include": [{"fragment": "PodSpec", "at": ".spec.template.spec"}],
    "references": [
        {"path": ".spec.extra[*].secretName", "to": "Secret"},
        {"path": ".spec.far.name", "to": "Secret", "namespace": ["namespace", "own"]},
        {"path": ".spec.written", "to": "Secret", "format": "namespace/name"},
    ],
    "workload": {
        "health": {
            "phase": ".status.phase",
            "healthy": ["Healthy"],
            "failed": ["Degraded"],
            "paused": ["Paused"],
        }
    },
}
KNATIVE: dict[str, Any] = {
    "group": "serving.knative.dev",
    "version": "v1",
    "kind": "Service",
    "plural": "services",
    "include": [{"fragment": "PodSpec", "at": ".spec.template.spec"}],
    "workload": {"health": {"condition": "Ready"}},
}
META: dict[str, Any] = {
    "name": "web",
    "namespace": "shop",
    "uid": "u",
    "resourceVersion": "1",
    "generation": 3,
}
POD: dict[str, Any] = {
    "containers": [
        {
            "name": "c",
            "env": [{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "MODE"}}}],
            "envFrom": [{"configMapRef": {"name": "app"}}],
        }
    ]
}


def custom(rules: dict[str, Any]) -> CustomKind:
    return CustomKind(msgspec.convert(rules, KindRules))


def kept(document: object, rules: dict[str, Any] = ROLLOUT) -> Workload:
    """As a list and a watch do it."""
    return custom(rules).workload(msgspec.Raw(json.dumps(document).encode()))


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_a_rollout() -> None:
    meta = {**META, "labels": {"app": "web"}, "annotations": {"versionedconfig.io/order": "7"}}
    spec = {"template": {"spec": POD}, "extra": [{}, {"secretName": "tls"}]}
    found = kept({"metadata": meta, "spec": spec, "status": {"observedGeneration": "2", "phase": "Healthy"}})

    at = ("spec", "template", "spec", "containers", 0)
    assert {(r.kind, r.name, r.path) for r in found.references} == {
        ("ConfigMap", "app", (*at, "env", 0, "valueFrom", "configMapKeyRef", "name")),
        ("ConfigMap", "app", (*at, "envFrom", 0, "configMapRef", "name")),
        ("Secret", "tls", ("spec", "extra", 1, "secretName")),
    }
    assert [(d.kind, d.name, d.path, d.key) for d in found.demands] == [
        ("ConfigMap", "app", "spec.containers[c].env[MODE]", "MODE")
    ]
    assert (found.kind, found.namespace, found.name, found.uid) == ("Rollout", "shop", "web", "u")
    assert (found.generation, found.pending, found.order) == (3, 1, 7)
    assert found.labels == (("app", "web"),)
    assert (found.health, found.running) == (Health.PROGRESSING, True)
    assert found.message == ".status.observedGeneration is not 3 yet"


def test_only_fields_of_its_own_namespace_are_moved() -> None:
    def names(**spec: Any) -> list[str]:
        return [reference.name for reference in kept({"metadata": META, "spec": spec}).references]

    assert names(far={"name": "a"}) == ["a"]
    assert names(far={"name": "a", "namespace": "shop"}) == ["a"]
    assert names(far={"name": "a", "namespace": "other"}) == []
    assert names(written="shop/a") == names(written="a") == []
    assert names(extra=[{"secretName": "a" * 254}]) == []


def test_a_field_that_two_rules_name_is_moved_once() -> None:
    twice = {**ROLLOUT, "references": [ROLLOUT["references"][0]] * 2}

    found = kept({"metadata": META, "spec": {"extra": [{"secretName": "a"}]}}, twice)

    assert len(found.references) == 1


def test_two_templates() -> None:
    include = [
        {"fragment": "PodSpec", "at": ".spec.leader"},
        {"fragment": "PodSpec", "at": ".spec.leader.inner"},
        {"fragment": "PodSpec", "at": ".spec.workers[*].pod"},
    ]
    spec = {"leader": {**POD, "inner": POD}, "workers": [{"pod": POD}]}

    found = kept({"metadata": META, "spec": spec}, {**ROLLOUT, "include": include, "references": []})

    assert {reference.path[:3] for reference in found.references} == {
        ("spec", "leader", "containers"),
        ("spec", "leader", "inner"),
        ("spec", "workers", 0),
    }
    assert len(found.demands) == 1  # the same of both


def test_what_nests_too_deep_is_absent_and_nothing_else() -> None:
    spec = f'{{"template":{{"spec":{json.dumps(POD)}}},"deep":{"[" * 9000 + "]" * 9000}}}'
    document = f'{{"metadata":{json.dumps(META)},"spec":{spec},"status":{{"phase":"Healthy","observedGeneration":3}}}}'

    found = custom(ROLLOUT).workload(msgspec.Raw(document.encode()))

    assert len(found.references) == 2
    assert found.health is Health.DONE


KINDS = [custom(ROLLOUT), custom(KNATIVE)]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
KEYS = st.sampled_from(
    [
        "spec",
        "template",
        "containers",
        "env",
        "envFrom",
        "valueFrom",
        "configMapKeyRef",
        "configMapRef",
        "secretRef",
        "name",
        "key",
        "volumes",
        "configMap",
        "items",
        "extra",
        "secretName",
        "far",
        "namespace",
        "written",
        "status",
        "phase",
        "observedGeneration",
        "conditions",
        "type",
        "value",
        "path",
    ]
)
ANYTHING = st.recursive(
    SCALARS | st.sampled_from(["Healthy", "Ready", "True", "False"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)


@settings(deadline=None)
@given(spec=ANYTHING, template=ANYTHING, pod=ANYTHING, status=ANYTHING, conditions=ANYTHING)
def test_any_object_has_an_answer(spec: Any, template: Any, pod: Any, status: Any, conditions: Any) -> None:
    for document in (
        {"metadata": META, "spec": spec, "status": status},
        {"metadata": META, "spec": {"template": template}, "status": {"conditions": conditions}},
        {"metadata": META, "spec": {"template": {"spec": pod}}, "status": {"conditions": [conditions]}},
    ):
        for kind in KINDS:
            found = kind.workload(msgspec.Raw(json.dumps(document).encode()))
            assert found.key.name == "web"
            assert all(isinstance(reference.name, str) for reference in found.references)
            assert found.pending >= 0


# -- health ----------------------------------------------------------------------------------------------------------

PHASES = HealthRules(phase=".status.phase", healthy=["Healthy"], failed=["Degraded"], paused=["Paused"])


@pytest.mark.parametrize(
    ("phase", "health"),
    [
        ("Healthy", Health.DONE),
        ("Degraded", Health.FAILED),
        ("Paused", Health.PAUSED),
        ("Progressing", Health.PROGRESSING),
        ("", Health.PROGRESSING),
        (None, Health.PROGRESSING),
        (["Healthy"], Health.PROGRESSING),
        (True, Health.PROGRESSING),
    ],
)
def test_phases(phase: object, health: Health) -> None:
    assert judge(PHASES, phase)[0] is health
    found = kept({"metadata": META, "status": {"phase": phase, "observedGeneration": "3"}})
    assert found.health is health


@pytest.mark.parametrize(
    ("conditions", "health", "message"),
    [
        ([{"type": "Ready", "status": "True"}], Health.DONE, ""),
        ([{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}], Health.DONE, ""),
        ([{"type": "Ready", "status": "False"}], Health.FAILED, "Ready is False"),
        (
            [{"type": "Ready", "status": "False", "reason": "RevisionFailed", "message": "no pod"}],
            Health.FAILED,
            "Ready is False (RevisionFailed: no pod)",
        ),
        ([{"type": "Ready", "status": "Unknown", "message": "wait"}], Health.PROGRESSING, ""),
        ([{"type": "Ready"}], Health.PROGRESSING, ""),
        ([{"type": "Other", "status": "True"}], Health.PROGRESSING, ""),
        ([None, 7, "Ready", ["Ready"]], Health.PROGRESSING, ""),
        ({"type": "Ready", "status": "True"}, Health.PROGRESSING, ""),
        (None, Health.PROGRESSING, ""),
    ],
)
def test_conditions(conditions: object, health: Health, message: str) -> None:
    found = kept({"metadata": META, "status": {"conditions": conditions, "observedGeneration": 3}}, KNATIVE)

    assert (found.health, found.message) == (health, message)


@pytest.mark.parametrize("observed", [None, 2, "2", "x", "", 3.0, True, "٣", "9" * 19, {"a": 3}])
def test_a_status_about_an_earlier_generation_says_nothing(observed: object) -> None:
    for phase in ("Healthy", "Degraded", "Paused"):
        found = kept({"metadata": META, "status": {"phase": phase, "observedGeneration": observed}})
        assert found.health is Health.PROGRESSING


@pytest.mark.parametrize("observed", [3, "3", 4, "9" * 18])
def test_a_status_about_this_generation(observed: object) -> None:
    found = kept({"metadata": META, "status": {"phase": "Healthy", "observedGeneration": observed}})

    assert (found.health, found.pending) == (Health.DONE, 0)


def test_generations() -> None:
    assert [generation(value) for value in (5, "5", "-5", " 5", 5.0, False, None)] == [5, 5, 0, 0, 0, 0, 0]


# -- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "Deployment"}, "is moved without a rule"),
        ({"kind": "ReplicaSet"}, "is moved without a rule"),
        ({"kind": "Job"}, "is moved without a rule"),
        ({"scope": "Cluster"}, "scope must be Namespaced"),
        ({"holds": True}, "holds must not be true"),
        ({"include": []}, "include a PodSpec"),
        ({"include": [{"fragment": "PersistentVolumeSpec", "at": ".spec"}]}, "include a PodSpec"),
        ({"include": [{"fragment": "PodSpec", "at": ".spec.jobs[*].spec"}]}, "include a PodSpec"),
        ({"workload": {"health": {}}}, "give either phase or condition"),
        ({"workload": {"health": {"phase": ".status.a", "condition": "Ready"}}}, "give either phase"),
        ({"workload": {"health": {"phase": ".status.a"}}}, "at least one phase in healthy"),
        ({"workload": {"health": {"condition": "Ready", "failed": ["a"]}}}, "are for a phase"),
        (
            {"workload": {"health": {"phase": ".status.a", "healthy": ["a"], "failed": ["a"]}}},
            "stands twice",
        ),
        ({"workload": {"health": {"phase": ".spec.a", "healthy": ["a"]}}}, "through .status"),
        ({"workload": {"health": {"phase": ".status", "healthy": ["a"]}}}, "through .status"),
        ({"workload": {"health": {"phase": ".status.a[*]", "healthy": ["a"]}}}, "through no list"),
        ({"workload": {"health": {"condition": "R"}, "observedGeneration": "status"}}, "is no path"),
        ({"workload": {"health": {"condition": "R"}, "observedGeneration": ""}}, "is no path"),
    ],
)
def test_rules_that_make_no_workloads(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace(".", r"\.")):
        custom({**ROLLOUT, **change})
