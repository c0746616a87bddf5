"""The pod rules, field by field, against the kubelet's list (pkg/api/v1/pod/util.go)."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.references import PodSpec, pod_references, referenced_names
from versionedconfig.rollout.rewrite import pointer, rewrite


def spec(**fields: Any) -> PodSpec:
    return msgspec.json.decode(msgspec.json.encode(fields), type=PodSpec)


def env(kind: str, name: str) -> dict[str, Any]:
    field = "configMapKeyRef" if kind == "ConfigMap" else "secretKeyRef"
    return {"name": "X", "valueFrom": {field: {"name": name, "key": "k"}}}


FIELDS = [
    ({"imagePullSecrets": [{"name": "n"}]}, "Secret", "/imagePullSecrets/0/name"),
    ({"containers": [{"envFrom": [{"configMapRef": {"name": "n"}}]}]}, "ConfigMap", "/containers/0/envFrom/0/configMapRef/name"),
    ({"containers": [{"envFrom": [{"secretRef": {"name": "n"}}]}]}, "Secret", "/containers/0/envFrom/0/secretRef/name"),
    ({"containers": [{"env": [env("ConfigMap", "n")]}]}, "ConfigMap", "/containers/0/env/0/valueFrom/configMapKeyRef/name"),
    ({"containers": [{"env": [env("Secret", "n")]}]}, "Secret", "/containers/0/env/0/valueFrom/secretKeyRef/name"),
    ({"initContainers": [{"env": [env("ConfigMap", "n")]}]}, "ConfigMap", "/initContainers/0/env/0/valueFrom/configMapKeyRef/name"),
    ({"ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "n"}}]}]}, "Secret", "/ephemeralContainers/0/envFrom/0/secretRef/name"),
    ({"volumes": [{"configMap": {"name": "n"}}]}, "ConfigMap", "/volumes/0/configMap/name"),
    ({"volumes": [{"secret": {"secretName": "n"}}]}, "Secret", "/volumes/0/secret/secretName"),
    ({"volumes": [{"projected": {"sources": [{"configMap": {"name": "n"}}]}}]}, "ConfigMap", "/volumes/0/projected/sources/0/configMap/name"),
    ({"volumes": [{"projected": {"sources": [{"secret": {"name": "n"}}]}}]}, "Secret", "/volumes/0/projected/sources/0/secret/name"),
    ({"volumes": [{"csi": {"driver": "d", "nodePublishSecretRef": {"name": "n"}}}]}, "Secret", "/volumes/0/csi/nodePublishSecretRef/name"),
    ({"volumes": [{"azureFile": {"secretName": "n"}}]}, "Secret", "/volumes/0/azureFile/secretName"),
    *(
        ({"volumes": [{volume: {"secretRef": {"name": "n"}}}]}, "Secret", f"/volumes/0/{volume}/secretRef/name")
        for volume in ("flexVolume", "iscsi", "cephfs", "cinder", "rbd", "scaleIO", "storageos")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "path"), FIELDS, ids=[path for *_, path in FIELDS])
def test_every_field_is_found(fields: dict[str, Any], kind: str, path: str) -> None:
    (reference,) = pod_references(spec(**fields))

    assert (reference.kind, reference.name, pointer(reference.path)) == (kind, "n", path)


def test_projected_with_items_and_optional() -> None:
    """G11: tokens and the downward API refer to nothing."""
    volume = {
        "name": "p",
        "projected": {
            "sources": [
                {"configMap": {"name": "app-cfg", "items": [{"key": "MODE", "path": "m"}]}},
                {"secret": {"name": "maybe", "optional": True}},
                {"serviceAccountToken": {"path": "tok"}},
                {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]
        },
    }

    found = list(pod_references(spec(volumes=[volume])))

    assert [(ref.kind, ref.name, ref.optional) for ref in found] == [
        ("ConfigMap", "app-cfg", False),
        ("Secret", "maybe", True),
    ]


@pytest.mark.parametrize("value", [{"name": ""}, {}, {"name": None}])
def test_empty_names_are_no_references(value: dict[str, Any]) -> None:
    assert not list(pod_references(spec(volumes=[{"configMap": value}], imagePullSecrets=[value])))


def test_nulls_are_taken_as_absent() -> None:
    assert not list(
        pod_references(spec(containers=None, volumes=[{"csi": None, "projected": {"sources": None}}]))
    )


def test_names_are_distinct_and_sorted() -> None:
    many = spec(
        containers=[{"env": [env("Secret", "b"), env("ConfigMap", "b"), env("ConfigMap", "a")]}] * 2,
        volumes=[{"configMap": {"name": "a"}}],
    )

    assert referenced_names(many) == (("ConfigMap", "a"), ("ConfigMap", "b"), ("Secret", "b"))


NAMES = st.sampled_from(["app", "app-x", "app-87m5g5hd76", "other"])


@given(
    st.lists(st.tuples(st.sampled_from([fields for fields, *_ in FIELDS]), NAMES), min_size=1, max_size=6),
    NAMES,
)
def test_rewriting_changes_exactly_the_named_leaves(
    fields: list[tuple[dict[str, Any], str]], old: str
) -> None:
    """V23: however many references, exact names only, and nothing else of the template."""
    template: dict[str, Any] = {}
    for part, name in fields:
        text = msgspec.json.encode(part).decode().replace('"n"', f'"{name}"')
        for key, values in msgspec.json.decode(text).items():
            template.setdefault(key, []).extend(values)
    before = msgspec.json.encode(template).decode()
    references = list(pod_references(spec(**template)))

    operations = rewrite(references, {("ConfigMap", old): "new", ("Secret", old): "new"}, "uid")

    for operation in operations[1:]:
        path = str(operation["path"]).removeprefix("/").split("/")
        node: Any = template
        for step in path[:-1]:
            node = node[int(step)] if isinstance(node, list) else node[step]
        if operation["op"] == "test":
            assert node[path[-1]] == old
        else:
            node[path[-1]] = operation["value"]
    assert msgspec.json.encode(template).decode() == before.replace(f'"{old}"', '"new"')
    assert operations[:1] == ([{"op": "test", "path": "/metadata/uid", "value": "uid"}] if operations else [])
