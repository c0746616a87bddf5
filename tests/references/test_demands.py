"""What templates ask for, against what the kubelet does with a template and a content."""

import posixpath
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from versionedconfig.references.demands import (
    AnyTemplateSpec,
    Demand,
    demands,
    missing,
)


def decode(document: object) -> AnyTemplateSpec:
    decoded: AnyTemplateSpec = msgspec.json.decode(msgspec.json.encode(document), type=AnyTemplateSpec)
    return decoded


def asked(**fields: Any) -> tuple[Demand, ...]:
    return demands(decode(fields))


def shown(found: Collection[Demand]) -> list[tuple[str, str, str, str, bool]]:
    return [(one.kind, one.name, one.path, one.key, one.optional) for one in found]


def variable(field: str, **ref: Any) -> dict[str, Any]:
    return {"name": "MODE", "valueFrom": {field: ref}}


def web(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "web", **fields}]}


def mounted(volume: dict[str, Any], *sub_paths: Any) -> dict[str, Any]:
    """A container that mounts the volume whole and by these subPaths."""
    mounts = [{"name": "v", "mountPath": "/whole"}]
    mounts += [{"name": "v", "mountPath": f"/{i}", "subPath": sub} for i, sub in enumerate(sub_paths)]
    return {**web(volumeMounts=mounts), "volumes": [{"name": "v", **volume}]}


def config_map(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"configMap": {"name": "app", **({"items": list(items)} if items else {}), **fields}}


def item(key: Any, path: Any, **fields: Any) -> dict[str, Any]:
    return {"key": key, "path": path, **fields}


SUB = "spec.containers[web].volumeMounts[v].subPath"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, []),
        (
            web(env=[variable("configMapKeyRef", name="app", key="mode")]),
            [("ConfigMap", "app", "spec.containers[web].env[MODE]", "mode", False)],
        ),
        (
            web(env=[variable("secretKeyRef", name="db", key="pw", optional=True)]),
            [("Secret", "db", "spec.containers[web].env[MODE]", "pw", True)],
        ),
        (
            {"initContainers": web(env=[variable("configMapKeyRef", name="app", key="k", optional=False)])["containers"]},
            [("ConfigMap", "app", "spec.initContainers[web].env[MODE]", "k", False)],
        ),
        # Nobody mounts it: it is not set up.
        ({"volumes": [{"name": "v", **config_map(item("k", "p"))}]}, []),
        (mounted(config_map()), []),
        (mounted(config_map(item("k", "p"))), [("ConfigMap", "app", "spec.volumes[v].configMap.items[k]", "k", False)]),
        (mounted(config_map(item("k", "p"), optional=True)), [("ConfigMap", "app", "spec.volumes[v].configMap.items[k]", "k", True)]),
        (
            mounted({"secret": {"secretName": "db", "items": [item("k", "p")]}}),
            [("Secret", "db", "spec.volumes[v].secret.items[k]", "k", False)],
        ),
        (
            mounted({"projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"configMap": {"name": "app", "items": [item("a", "a")]}},
                {"secret": {"name": "db", "items": [item("b", "b")], "optional": True}},
            ]}}),
            [
                ("ConfigMap", "app", "spec.volumes[v].projected.sources[1].configMap.items[a]", "a", False),
                ("Secret", "db", "spec.volumes[v].projected.sources[2].secret.items[b]", "b", True),
            ],
        ),
        (mounted(config_map(), "mode"), [("ConfigMap", "app", SUB, "mode", False)]),
        (mounted(config_map(optional=True), "mode"), [("ConfigMap", "app", SUB, "mode", True)]),
        (mounted({"secret": {"secretName": "db"}}, "pw"), [("Secret", "db", SUB, "pw", False)]),
        # Each once, however often it is written.
        (
            web(env=[variable("configMapKeyRef", name="app", key="k")] * 3),
            [("ConfigMap", "app", "spec.containers[web].env[MODE]", "k", False)],
        ),
        # What has no name is told by its place.
        (
            {"containers": [{}, {"env": [{}, {"valueFrom": {"configMapKeyRef": {"name": "app", "key": "k"}}}]}]},
            [("ConfigMap", "app", "spec.containers[1].env[1]", "k", False)],
        ),
        # What cannot be a name or a key yet is replaced before a pod is made, or refused.
        (web(env=[variable("configMapKeyRef", name="app", key="{{inputs.parameters.key}}")]), []),
        (web(env=[variable("configMapKeyRef", name="app", key="")]), []),
        (web(env=[variable("configMapKeyRef", name="app")]), []),
        (web(env=[variable("configMapKeyRef", name="", key="k")]), []),
        (web(env=[variable("configMapKeyRef", name="a" * 254, key="k")]), []),
        (web(env=[variable("fieldRef", fieldPath="metadata.name")]), []),
        (web(envFrom=[{"configMapRef": {"name": "app"}}]), []),
    ],
)  # fmt: skip
def test_what_is_asked_for(spec: dict[str, Any], expected: list[tuple[str, str, str, str, bool]]) -> None:
    found = demands(decode(spec))

    assert shown(found) == expected
    assert {one.fault for one in found} <= {""}


TOKEN = {"serviceAccountToken": {"path": "token"}}
LABELS = {"downwardAPI": {"items": [{"path": "pod/labels"}, {"path": "name"}]}}
WHOLE = {"configMap": {"name": "app"}}
TAKEN = {"configMap": {"name": "app", "items": [item("k", "conf/app.ini")]}}
CERTIFICATE = {"podCertificate": {"keyPath": "key.pem"}}


def projected(*sources: Any) -> dict[str, Any]:
    return {"projected": {"sources": list(sources)}}


@pytest.mark.parametrize(
    ("volume", "sub_path", "keys"),
    [
        (config_map(), "./mode", ["mode"]),
        (config_map(), "mode/", ["mode"]),
        (config_map(), "..data/mode", ["mode"]),
        (config_map(), ".", []),
        (config_map(), "..data", []),
        (config_map(), "", []),
        (config_map(), None, []),
        (config_map(), 5, []),
        (config_map(), "$(POD_NAME)", []),
        (config_map(), "{{item}}", []),
        # With items, those ask for the keys; a directory on the way is there as well.
        (config_map(item("k", "conf/app.ini")), "conf/app.ini", ["k"]),
        (config_map(item("k", "conf/app.ini")), "conf//app.ini", ["k"]),
        (config_map(item("k", "./conf/app.ini")), "conf", ["k"]),
        (config_map(item("k", "conf/$(X)")), "conf/other", ["k"]),
        (config_map(item("k", "x"), "odd"), "y", ["k"]),
        (config_map(items="odd"), "y", []),
        # What else is in a projected volume.
        (projected(TOKEN, WHOLE), "token", []),
        (projected(LABELS, WHOLE), "pod/labels", []),
        (projected(LABELS, WHOLE), "pod", []),
        (projected(TOKEN, LABELS, WHOLE), "mode", ["mode"]),
        (projected(WHOLE, CERTIFICATE), "key.pem", []),
        (projected(WHOLE, "odd"), "mode", []),
        (projected(WHOLE, {"downwardAPI": {"items": "odd"}}), "mode", []),
        # Either may have it.
        (projected(WHOLE, {"secret": {"name": "db"}}), "mode", []),
        (projected(TAKEN, {"secret": {"name": "db"}}), "pw", ["k", "pw"]),
        (projected(TAKEN, {"secret": {"name": "db"}}), "conf/app.ini", ["k"]),
        # A volume of other things is nobody's business.
        ({"emptyDir": {}}, "mode", []),
        (projected(TOKEN), "mode", []),
    ],
)  # fmt: skip
def test_sub_paths(volume: dict[str, Any], sub_path: Any, keys: list[str]) -> None:
    found = asked(**mounted(volume, sub_path))

    assert ([one.key for one in found], {one.fault for one in found} - {""}) == (keys, set())


def test_an_expression_comes_before_the_path() -> None:
    mount = {"name": "v", "subPath": "one", "subPathExpr": "two"}

    (found,) = asked(**web(volumeMounts=[mount]), volumes=[{"name": "v", **config_map()}])

    assert found.key == "two"


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        (mounted(config_map(), "a/b"), SUB, "mounts 'a/b', which the volume has not"),
        (mounted(config_map(), "no key"), SUB, "mounts 'no key', which the volume has not"),
        (mounted(config_map(item("k", "p")), "k"), SUB, "'k', which the volume has not"),
        (mounted(config_map(item("k", "p")), "p/q"), SUB, "'p/q', which the volume has not"),
        (mounted(config_map(item("k", "conf/a")), "conf/b"), SUB, "'conf/b', which the volume has not"),
        (mounted(projected(TOKEN, TAKEN), "tokens"), SUB, "'tokens', which the volume has not"),
        (mounted(config_map(), "/mode"), SUB, "leads out of the volume"),
        (mounted(config_map(), "a/../mode"), SUB, "leads out of the volume"),
        (mounted(config_map(item("k", ""))), "spec.volumes[v].configMap.items[k].path", "is empty"),
        (mounted(config_map({"key": "k"})), "spec.volumes[v].configMap.items[k].path", "is empty"),
        (mounted(config_map(item("k", "/p"))), "spec.volumes[v].configMap.items[k].path", "leads out of the volume"),
        (mounted(config_map(item("k", "p/../q"))), "spec.volumes[v].configMap.items[k].path", "leads out of the volume"),
        (mounted(config_map(item("k", ".."))), "spec.volumes[v].configMap.items[k].path", "leads out of the volume"),
        (mounted(config_map(item("k", "..p"))), "spec.volumes[v].configMap.items[k].path", "does not start with '..'"),
        (mounted(config_map(item("k", "./"))), "spec.volumes[v].configMap.items[k].path", "is not '.'"),
        (mounted(config_map(item("k", "é" * 128))), "spec.volumes[v].configMap.items[k].path", "too long"),
        (mounted(config_map(item("k", "a/" * 2050))), "spec.volumes[v].configMap.items[k].path", "too long"),
        (mounted(config_map(item("k", "p", mode=512))), "spec.volumes[v].configMap.items[k].mode", "is 512"),
        (mounted(config_map(item("k", "p", mode=-1))), "spec.volumes[v].configMap.items[k].mode", "0 to 511"),
        (mounted(config_map(defaultMode=1000)), "spec.volumes[v].configMap.defaultMode", "is 1000"),
        (mounted({"secret": {"secretName": "app", "defaultMode": 644000}}), "spec.volumes[v].secret.defaultMode", "octal"),
        (
            mounted({"projected": {"sources": [TOKEN, WHOLE], "defaultMode": 777}}),
            "spec.volumes[v].projected.defaultMode",
            "is 777",
        ),
        (
            {"volumes": [{"name": "v", **projected({"secret": {"name": "app", "items": [item("k", "p", mode=4096)]}})}]},
            "spec.volumes[v].projected.sources[0].secret.items[k].mode",
            "is 4096",
        ),
    ],
)  # fmt: skip
def test_what_no_content_satisfies(spec: dict[str, Any], path: str, words: str) -> None:
    (found,) = [one for one in demands(decode(spec)) if one.fault]

    assert (found.name, found.path, found.key, found.optional) == ("app", path, "", False)
    assert words in found.fault
    assert missing([found], {"app"}, found.kind, {"k", "p", "mode"}) == (f"{path} {found.fault}",)


@pytest.mark.parametrize(
    "spec",
    [
        mounted(config_map(item("k", "p", mode=0), item("l", "a/b"), defaultMode=0o777)),
        mounted(config_map(item("k", "a..b"), item("l", "a/..b"), item("m", "é" * 127), item("n", "p/"))),
        mounted(config_map(item("k", "{{path}}", mode="0644"), defaultMode=True)),
        mounted(config_map(item("k", 5), item("l", ["p"]), defaultMode=420.0)),
        # Whoever made it optional expects an empty directory.
        mounted(config_map(item("k", "p"), optional=True), "q"),
    ],
)
def test_what_is_no_fault(spec: dict[str, Any]) -> None:
    assert [one.fault for one in demands(decode(spec)) if one.fault] == []


def test_a_fault_of_a_volume_is_each_objects() -> None:
    found = asked(
        **mounted(projected(TAKEN, {"secret": {"name": "db", "items": [item("pw", "pw")]}}), "tokens")
    )

    assert [(one.kind, one.name) for one in found if one.fault] == [("ConfigMap", "app"), ("Secret", "db")]


# -- Any JSON --------------------------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "app", "k", "v", "p/q", "..", "/", "{{x}}", "$(X)", "\u0000\U0001f600"])
    | st.text(max_size=5)
)
FIELDS = st.one_of(
    st.sampled_from(["containers", "initContainers", "volumes", "name", "env", "envFrom", "prefix", "valueFrom"]),
    st.sampled_from(["configMapKeyRef", "secretKeyRef", "configMapRef", "secretRef", "key", "optional"]),
    st.sampled_from(["volumeMounts", "subPath", "subPathExpr", "configMap", "secret", "secretName", "items", "path"]),
    st.sampled_from(["mode", "defaultMode", "projected", "sources", "downwardAPI", "serviceAccountToken"]),
)  # fmt: skip
ANY = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner))


def odd(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what belongs there."""
    return st.one_of(value, value, value, value, ANY)


def listed(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return odd(st.lists(odd(value), max_size=3))


def fields(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={name: odd(value) for name, value in values.items()})


TEXT = st.sampled_from(["app", "db", "k", "l", "v", "w", "p/q", "", "..", "a b"])
KEY_REF = fields(name=TEXT, key=TEXT, optional=st.booleans())
ITEMS = listed(fields(key=TEXT, path=TEXT, mode=st.integers(-1, 600)))
PROJECTION = fields(
    name=TEXT, secretName=TEXT, items=ITEMS, optional=st.booleans(), defaultMode=st.integers(-1, 600)
)
CONTAINER = fields(
    name=TEXT,
    env=listed(fields(name=TEXT, valueFrom=fields(configMapKeyRef=KEY_REF, secretKeyRef=KEY_REF))),
    envFrom=listed(fields(prefix=TEXT, configMapRef=fields(name=TEXT), secretRef=fields(name=TEXT))),
    volumeMounts=listed(fields(name=TEXT, subPath=TEXT, subPathExpr=TEXT)),
)
SOURCE = fields(
    configMap=PROJECTION,
    secret=PROJECTION,
    downwardAPI=fields(items=ITEMS),
    serviceAccountToken=fields(path=TEXT),
)
VOLUME = fields(
    name=TEXT, configMap=PROJECTION, secret=PROJECTION, projected=fields(sources=listed(SOURCE), defaultMode=st.integers(-1, 600))
)  # fmt: skip
TEMPLATE = odd(fields(containers=listed(CONTAINER), initContainers=listed(CONTAINER), volumes=listed(VOLUME)))


@given(TEMPLATE | ANY)
def test_every_json_has_an_answer(document: object) -> None:
    spec = decode(document)
    found = demands(spec)

    assert len(set(found)) == len(found)
    assert found == demands(decode(document))
    for one in found:
        assert (one.fault == "") == (one.key != "")
        assert isinstance(one.name, str)
        assert one.name
        told = missing([one], [one.name], one.kind, [])
        assert len(told) == (0 if one.optional else 1)
        assert all(sentence.startswith(one.path) for sentence in told)


@pytest.mark.parametrize("value", [None, "x", 1, 1.5, True, [], ["x"], [[]], [None]])
@pytest.mark.parametrize("field", ["containers", "initContainers", "volumes"])
def test_odd_types_ask_for_nothing(field: str, value: object) -> None:
    assert asked(**{field: value}) == ()
    assert demands(decode(value)) == ()


def test_what_is_kept_is_bounded_and_shared() -> None:
    long = "x" * 100_000
    found = asked(
        containers=[{"name": long, "env": [variable("configMapKeyRef", name="app", key="k"), {"name": long, "valueFrom": {"configMapKeyRef": {"name": "app", "key": "k"}}}]}],
        volumes=[{"name": "v", **config_map(item("k", "/" + long))}],
    )  # fmt: skip
    again = asked(containers=[{"name": "b", "env": [variable("configMapKeyRef", name="app", key="k")]}])

    assert [len(one.path) < 250 and len(one.fault) < 250 for one in found] == [True] * 3
    assert found[0].name is again[0].name


# -- A kubelet -------------------------------------------------------------------------------------------------------


def kubelet_complains(
    volume: dict[str, Any], sub_path: str, variables: list[dict[str, Any]], text: set[str], binary: set[str]
) -> bool:
    """What pkg/volume/configmap (MakePayload) and kubelet_pods.go do with a template whose one object is there."""
    for ref in variables:
        if ref["key"] not in text and not ref["optional"]:
            return True
    source = volume["configMap"]
    files: set[str] = set()
    for one in source.get("items", []):
        if one["key"] in text | binary:
            files.add(one["path"])
        elif not source["optional"]:
            return True
    if not source.get("items"):
        files = text | binary
    there = {posixpath.normpath(file) for file in files}
    directories = {str(posixpath.dirname(file)) for file in there}
    return bool(sub_path) and sub_path not in there | directories and not source["optional"]


KEYS = st.sampled_from(["a", "b", "c"])


@given(
    st.lists(st.tuples(KEYS, st.sampled_from(["a", "b", "x", "d/x", "d/y"])), max_size=3, unique_by=lambda pair: pair[1]),
    st.booleans(),
    st.sampled_from(["", "a", "b", "x", "d", "d/x", "d/z"]),
    st.lists(st.tuples(KEYS, st.booleans()), max_size=3),
    st.sets(KEYS),
    st.sets(KEYS),
)  # fmt: skip
def test_what_is_missing_is_what_the_kubelet_misses(
    items: list[tuple[str, str]],
    optional: bool,
    sub_path: str,
    refs: list[tuple[str, bool]],
    text: set[str],
    binary: set[str],
) -> None:
    binary -= text
    volume = config_map(*(item(key, path) for key, path in items), optional=optional)
    variables = [{"name": "app", "key": key, "optional": lax} for key, lax in refs]
    spec = mounted(volume, sub_path)
    spec["containers"][0]["env"] = [variable("configMapKeyRef", **ref) for ref in variables]

    told = missing(demands(decode(spec)), ["app"], "ConfigMap", text, binary_keys=binary)

    assert bool(told) == kubelet_complains(volume, sub_path, variables, text, binary)


# -- What is told ----------------------------------------------------------------------------------------------------

SPEC = decode(
    {
        "containers": [
            {
                "name": "web",
                "env": [
                    variable("configMapKeyRef", name="app", key="MODE"),
                    variable("configMapKeyRef", name="app-87m5g5hd76", key="LEVEL"),
                    variable("configMapKeyRef", name="other", key="OTHER"),
                    variable("secretKeyRef", name="app", key="PASSWORD"),
                    variable("configMapKeyRef", name="app", key="MAYBE", optional=True),
                ],
                "volumeMounts": [{"name": "v", "subPath": "one.conf"}, {"name": "w"}],
            }
        ],
        "volumes": [
            {"name": "v", **config_map()},
            {"name": "w", **config_map(item("two.conf", "two"))},
        ],
    }
)

ENV = "spec.containers[web].env[MODE]"
ADD = "add it, or take the reference out first"


@pytest.mark.parametrize(
    ("kind", "names", "keys", "binary", "expected"),
    [
        ("ConfigMap", {"app"}, {"MODE", "one.conf", "two.conf"}, set(), ()),
        ("ConfigMap", {"app"}, {"MODE"}, {"one.conf", "two.conf"}, ()),
        ("ConfigMap", {"nobody"}, set(), set(), ()),
        ("ConfigMap", set(), set(), set(), ()),
        ("Secret", {"app", "app-87m5g5hd76"}, set(), set(), (f"{ENV} asks for key PASSWORD: {ADD}",)),
        (
            "ConfigMap",
            {"app", "app-87m5g5hd76"},
            set(),
            {"MODE"},
            (
                f"{ENV} asks for key MODE, which is in binaryData, and variables come from data alone: "
                "move it to data, or take the reference out first",
                f"{ENV} asks for key LEVEL: {ADD}",
                "spec.containers[web].volumeMounts[v].subPath mounts key one.conf and would be an empty directory: "
                "add it, or take the mount out first",
                f"spec.volumes[w].configMap.items[two.conf] asks for key two.conf: {ADD}",
            ),
        ),
    ],
)
def test_what_is_told(
    kind: str, names: set[str], keys: set[str], binary: set[str], expected: tuple[str, ...]
) -> None:
    assert missing(demands(SPEC), names, kind, keys, binary_keys=binary) == expected


@pytest.mark.parametrize(
    ("count", "most", "last"), [(3, 3, "k2"), (4, 3, "and 1 more"), (30, 10, "and 20 more")]
)
def test_only_so_many_are_told(count: int, most: int, last: str) -> None:
    many = asked(**web(env=[variable("configMapKeyRef", name="app", key=f"k{i}") for i in range(count)]))

    told = missing(many, ["app"], "ConfigMap", [], most=most)

    assert len(told) == min(count, most + 1)
    assert last in told[-1]


def test_nothing_of_a_demand_is_told_twice() -> None:
    demand = Demand("ConfigMap", "app", "spec.x", "k")

    assert missing([demand, demand], ["app"], "ConfigMap", []) == (f"spec.x asks for key k: {ADD}",)
