"""Who holds what among cluster-scoped kinds: volumes, classes, bindings (G13 to G16 of the acceptance cases)."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.references import CATALOGUE, Holders, Kept, Source

SOURCES = {kind.resource: Source(kind, CATALOGUE.fragments) for kind in CATALOGUE.kinds}
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
CLASSES = "storageclasses.storage.k8s.io"
CLAIMS = "persistentvolumeclaims"


def kept(resource: str, name: str, namespace: str = "", annotations: Any = None, **fields: Any) -> Kept:
    """As the mirror would keep that object."""
    source = SOURCES[resource]
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "annotations": annotations or {},
    }
    body = msgspec.json.encode({"metadata": metadata, **fields})
    return source.kept(msgspec.json.decode(body, type=source.item))


class World(Holders):
    """Holders of every kind, with objects as an API server gives them."""

    def __init__(self) -> None:
        super().__init__({source.id: source.rules for source in SOURCES.values()})

    def there(self, resource: str, name: str, namespace: str = "", **fields: Any) -> "World":
        self.put(resource, ObjectKey(namespace, name), kept(resource, name, namespace, **fields))
        return self

    def gone(self, resource: str, name: str, namespace: str = "") -> "World":
        self.put(resource, ObjectKey(namespace, name), None)
        return self

    def holds(self, namespace: str, name: str, kind: str = "Secret", **labels: str) -> bool:
        life = Incarnation(
            ConfigKey(kind, namespace, name), "u", "1", immutable=True, labels=tuple(sorted(labels.items()))
        )
        assert self.held(life) == bool(self.referrers(life))
        return self.held(life)


VOLUME_REFS = ["controllerPublish", "controllerExpand", "nodeStage", "nodePublish", "nodeExpand"]


def test_a_csi_volume_holds_all_its_secrets() -> None:
    """G13"""
    refs = {f"{field}SecretRef": {"name": field.lower(), "namespace": "infra"} for field in VOLUME_REFS}
    world = World().there("persistentvolumes", "pv1", spec={"csi": {"driver": "ex.csi", **refs}})

    assert all(world.holds("infra", field.lower()) for field in VOLUME_REFS)
    assert not world.holds("other", "nodestage")
    assert not world.holds("infra", "nodestage", kind="ConfigMap")
    world.gone("persistentvolumes", "pv1")
    assert not any(world.holds("infra", field.lower()) for field in VOLUME_REFS)


@pytest.mark.parametrize(
    "source",
    [
        {"azureFile": {"secretName": "s", "shareName": "x"}},
        *(
            {driver: {"secretRef": {"name": "s"}}}
            for driver in ("cephfs", "flexVolume", "iscsi", "rbd", "scaleIO")
        ),
    ],
    ids=lambda source: next(iter(source)),
)
def test_older_volumes_take_the_namespace_of_their_claim(source: dict[str, Any]) -> None:
    """G14"""
    claimed = {**source, "claimRef": {"namespace": "t", "name": "c"}}

    assert World().there("persistentvolumes", "pv", spec=claimed).holds("t", "s")
    assert not World().there("persistentvolumes", "pv", spec=source).holds("t", "s")
    inline = {"source": {"inlineVolumeSpec": claimed}}
    assert World().there("volumeattachments.storage.k8s.io", "va", spec=inline).holds("t", "s")


@pytest.mark.parametrize("driver", ["cinder", "storageos"])
def test_some_volumes_take_no_other_namespace_than_the_one_given(driver: str) -> None:
    """pkg/api/v1/persistentvolume/util.go: these two do not fall back to the claim's."""
    spec: dict[str, Any] = {driver: {"secretRef": {"name": "s"}}, "claimRef": {"namespace": "t", "name": "c"}}

    assert not World().there("persistentvolumes", "pv", spec=spec).holds("t", "s")
    spec[driver]["secretRef"]["namespace"] = "u"
    assert World().there("persistentvolumes", "pv", spec=spec).holds("u", "s")


def test_a_volume_holds_what_deletes_it() -> None:
    prefix = "volume.kubernetes.io/provisioner-deletion-secret"
    annotations = {f"{prefix}-name": "del", f"{prefix}-namespace": "infra"}

    assert World().there("persistentvolumes", "pv", annotations=annotations, spec={}).holds("infra", "del")
    empty = {f"{prefix}-name": "", f"{prefix}-namespace": ""}
    assert not World().there("persistentvolumes", "pv", annotations=empty, spec={}).holds("infra", "")


PREFIX = "csi.storage.k8s.io/provisioner-secret"


def storage_class(name: str, namespace: str) -> dict[str, Any]:
    return {"provisioner": "ex.csi", "parameters": {f"{PREFIX}-name": name, f"{PREFIX}-namespace": namespace}}


def test_a_class_with_fixed_names_holds_without_any_claim() -> None:
    """G13"""
    assert World().there(CLASSES, "fast", **storage_class("prov", "infra")).holds("infra", "prov")


@pytest.mark.parametrize(
    ("name", "namespace", "expected"),
    [
        ("prov-${pvc.name}", "${pvc.namespace}", ("t", "prov-data")),
        ("prov-${pv.name}", "infra", ("infra", "prov-pvc-uid-data")),
        ("${pvc.annotations['example.com/team']}-s", "infra", ("infra", "red-s")),
        ("static", "${pvc.namespace}", ("t", "static")),
    ],
)
def test_variables_of_a_class_are_resolved_for_each_claim(
    name: str, namespace: str, expected: tuple[str, str]
) -> None:
    """G13; whichever of both comes first."""
    claim = {"annotations": {"example.com/team": "red"}, "spec": {"storageClassName": "fast"}}
    objects = [(CLASSES, "fast", "", storage_class(name, namespace)), (CLAIMS, "data", "t", claim)]
    for order in itertools.permutations(objects):
        for leaving, its_name, where, _ in objects:
            world = World()
            for resource, object_name, object_namespace, fields in order:
                assert not world.holds(*expected)
                world.there(resource, object_name, object_namespace, **fields)
            assert world.holds(*expected)
            world.gone(leaving, its_name, where)
            assert not world.holds(*expected)


@pytest.mark.parametrize(
    "name", ["${pvc.nme}", "a-${pvc.annotations['none']}", "$pvc", "${", "${pvc.labels['a']}"]
)
def test_variables_that_nobody_knows_hold_nothing(name: str) -> None:
    """G13: and break nothing."""
    world = World().there(CLASSES, "fast", **storage_class(name, "infra"))
    world.there(CLAIMS, "data", "t", spec={"storageClassName": "fast"})

    assert not world.holds("infra", name)
    assert not world.holds("infra", "a-")


def test_a_bound_claim_names_its_volume() -> None:
    world = World().there(CLASSES, "fast", **storage_class("${pv.name}", "infra"))
    world.there(CLAIMS, "data", "t", spec={"storageClassName": "fast", "volumeName": "vol-7"})

    assert world.holds("infra", "vol-7")


def test_snapshots_resolve_the_variables_of_their_class() -> None:
    prefix = "csi.storage.k8s.io/snapshotter-secret"
    world = World().there(
        "volumesnapshotclasses.snapshot.storage.k8s.io",
        "snap",
        parameters={
            f"{prefix}-name": "s-${volumesnapshot.name}",
            f"{prefix}-namespace": "${volumesnapshot.namespace}",
        },
    )
    world.there(
        "volumesnapshotcontents.snapshot.storage.k8s.io",
        "content",
        spec={"volumeSnapshotClassName": "snap", "volumeSnapshotRef": {"name": "monday", "namespace": "t"}},
    )

    assert world.holds("t", "s-monday")


def policy(kind: str, api_version: str = "v1") -> dict[str, Any]:
    return {"spec": {"paramKind": {"apiVersion": api_version, "kind": kind}}}


def binding(**param_ref: Any) -> dict[str, Any]:
    return {"spec": {"policyName": "p", "paramRef": param_ref}}


@pytest.mark.parametrize("flavour", ["validating", "mutating"])
def test_a_binding_takes_the_kind_of_its_parameter_from_the_policy(flavour: str) -> None:
    """G15, whichever of both comes first."""
    bindings = BINDINGS.replace("validating", flavour)
    policies = POLICIES.replace("validating", flavour)
    named = binding(name="limits", namespace="infra")
    for steps in itertools.permutations([(policies, "p", policy("ConfigMap")), (bindings, "b", named)]):
        world = World()
        for resource, name, fields in steps:
            world.there(resource, name, **fields)
        assert world.holds("infra", "limits", "ConfigMap")
        assert not world.holds("infra", "limits", "Secret")
        assert not world.holds("other", "limits", "ConfigMap")
        world.gone(bindings, "b")
        assert not world.holds("infra", "limits", "ConfigMap")


def test_a_binding_without_its_policy_holds_either_kind() -> None:
    """G15: it may come any moment."""
    world = World().there(BINDINGS, "b", **binding(name="limits", namespace="infra"))

    assert world.holds("infra", "limits", "ConfigMap")
    assert world.holds("infra", "limits", "Secret")


@pytest.mark.parametrize(
    "other", [policy("Widget", "example.com/v1"), policy("ConfigMap", "v2"), {"spec": {}}]
)
def test_parameters_of_other_kinds_hold_nothing(other: dict[str, Any]) -> None:
    """G15"""
    world = World().there(POLICIES, "p", **other)
    world.there(BINDINGS, "b", **binding(name="limits", namespace="infra"))

    assert not world.holds("infra", "limits", "ConfigMap")


def test_a_selector_means_all_that_match() -> None:
    """G15"""
    world = World().there(POLICIES, "p", **policy("ConfigMap"))
    selector = {
        "matchLabels": {"use": "limits"},
        "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}],
    }
    world.there(BINDINGS, "b", **binding(selector=selector, namespace="infra"))

    assert world.holds("infra", "anything", "ConfigMap", use="limits")
    assert not world.holds("infra", "anything", "ConfigMap", use="limits", old="")
    assert not world.holds("infra", "anything", "ConfigMap")
    assert not world.holds("other", "anything", "ConfigMap", use="limits")
    assert not world.holds("infra", "anything", "Secret", use="limits")
    world.there(BINDINGS, "b", **binding(selector={}))
    assert world.holds("other", "anything", "ConfigMap")


def test_a_name_in_whatever_namespace_holds_only_what_asks_for_it() -> None:
    """G15: the object of that name in the namespace of what is admitted; which those are nobody can tell."""
    world = World().there(POLICIES, "p", **policy("ConfigMap"))
    world.there(BINDINGS, "b", **binding(name="limits"))

    assert not world.holds("team-a", "limits", "ConfigMap")
    assert world.holds("team-a", "limits", "ConfigMap", **{"versionedconfig.io/protect": "true"})
    assert not world.holds("team-a", "other", "ConfigMap", **{"versionedconfig.io/protect": "true"})


@pytest.mark.parametrize(
    ("parameters", "holds"),
    [
        ({"kind": "ConfigMap", "name": "ic", "namespace": "infra", "scope": "Namespace"}, True),
        ({"kind": "ConfigMap", "name": "ic", "scope": "Cluster"}, False),
        ({"apiGroup": "k8s.example.com", "kind": "ConfigMap", "name": "ic", "namespace": "infra"}, False),
        ({"kind": "Widget", "name": "ic", "namespace": "infra", "scope": "Namespace"}, False),
    ],
)
def test_parameters_of_an_ingress_class(parameters: dict[str, Any], holds: bool) -> None:
    """G16"""
    world = World().there("ingressclasses.networking.k8s.io", "ic", spec={"parameters": parameters})

    assert world.holds("infra", "ic", "ConfigMap") is holds


def test_a_gateway_names_its_certificates() -> None:
    """G17, where Gateways are set to hold: kind, group and namespace have defaults."""
    refs = [
        {"name": "own"},
        {"name": "cross", "namespace": "certs", "kind": "Secret", "group": ""},
        {"name": "no", "kind": "Certificate", "group": "example.com"},
    ]
    world = World().there(
        "gateways.gateway.networking.k8s.io",
        "gw",
        "web",
        spec={"listeners": [{"tls": {"certificateRefs": refs}}]},
    )

    assert world.holds("web", "own")
    assert world.holds("certs", "cross")
    assert not world.holds("web", "no")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["class", "claim", "policy", "binding"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["", "x", "y"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_order_of_events_does_not_matter(steps: list[tuple[str, str, str]]) -> None:
    """After any history, the answers are those of a world that saw only what is there now."""

    def act(world: World, what: str, name: str, other: str) -> None:
        resource = {"class": CLASSES, "claim": CLAIMS, "policy": POLICIES, "binding": BINDINGS}[what]
        namespace = "t" if what == "claim" else ""
        if not other:
            world.gone(resource, name, namespace)
        elif what == "class":
            world.there(resource, name, **storage_class(f"{other}-${{pvc.name}}", "infra"))
        elif what == "claim":
            world.there(resource, name, namespace, spec={"storageClassName": other})
        elif what == "policy":
            world.there(resource, name, **policy("Secret" if other == "x" else "ConfigMap"))
        else:
            spec = {"policyName": other, "paramRef": {"name": name, "namespace": "infra"}}
            world.there(resource, name, spec=spec)

    lived, last = World(), {}
    for what, name, other in steps:
        act(lived, what, name, other)
        last[what, name] = other
    fresh = World()
    for (what, name), other in last.items():
        act(fresh, what, name, other)
    for kind in ("Secret", "ConfigMap"):
        for name in ("x", "y", "x-x", "x-y", "y-x", "y-y"):
            assert lived.holds("infra", name, kind) == fresh.holds("infra", name, kind)


@pytest.mark.parametrize(
    ("text", "holds"), [("infra/ca", True), ("ca", False), ("/ca", False), ("infra/", False), ("", False)]
)
def test_an_injected_authority_holds(text: str, holds: bool) -> None:
    """cert-manager's annotation, on four cluster-scoped kinds."""
    resource = "validatingwebhookconfigurations.admissionregistration.k8s.io"
    annotations = {"cert-manager.io/inject-ca-from-secret": text}

    assert World().there(resource, "hook", annotations=annotations).holds("infra", "ca") is holds
    assert SOURCES[resource].metadata_only
    assert not SOURCES["persistentvolumes"].metadata_only
