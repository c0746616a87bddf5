"""Content of Secrets, and content that is taken from objects which others keep up to date.

Waits are on conditions. "It does not happen" is shown at the end of something that the operator did afterwards.
"""

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pykube
import pytest

from e2e import harness
from e2e.harness import (
    Cluster,
    Kubectl,
    Manifest,
    Operator,
    Writes,
    config_map,
    deployment,
    fetch_all,
    pods_read,
    reading_pod_spec,
    secret,
    settle,
    versioned_config,
    wait_for_rollout,
    wait_gone,
    wait_until,
    wait_versioned,
)
from e2e.stories import (
    edit,
    generation,
    get,
    identity,
    modes,
    names_in,
    replica_sets,
    resource,
    targets,
    template,
    version_of,
    versioned_secret,
    versions,
    wait_moved,
    wait_refused,
    wait_released,
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret_pod_spec(name: str = "app-cfg") -> Manifest:
    """A pod that takes MODE of a Secret as an environment variable and mounts all of it at /cfg."""
    spec = reading_pod_spec(name)
    key = {"name": name, "key": "MODE"}
    spec["containers"][0]["env"] = [{"name": "MODE", "valueFrom": {"secretKeyRef": key}}]
    spec["volumes"] = [{"name": "v", "secret": {"secretName": name}}]
    return spec


def secret_names_in(pod_spec: Manifest) -> set[str]:
    """The Secrets that a pod spec as made by `secret_pod_spec` refers to."""
    (container,), (volume,) = pod_spec["containers"], pod_spec["volumes"]
    return {
        str(container["env"][0]["valueFrom"]["secretKeyRef"]["name"]),
        str(volume["secret"]["secretName"]),
    }


def taking(*sources: Manifest, data: Mapping[str, str] | None = None, **spec: Any) -> Manifest:
    """A VersionedConfig `app-cfg` of ConfigMaps that takes from these."""
    made = versioned_config("app-cfg", data or {}, **{"from": list(sources)}, **spec)
    if data is None:
        del made["spec"]["data"]
    return made


def source(name: str, kind: str = "ConfigMap", **more: Any) -> Manifest:
    """One entry of `from`."""
    return {"kind": kind, "name": name, **more}


def mutable(name: str, mode: str, **data: str) -> Manifest:
    """A ConfigMap that may change."""
    return config_map(name, {"MODE": mode, **data}, immutable=False)


def set_data(kubectl: Kubectl, namespace: str, what: str, **data: str | None) -> None:
    """Change values of a ConfigMap or, in stringData, of a Secret; None removes one."""
    field = "stringData" if what.startswith("secret/") else "data"
    kubectl("patch", "-n", namespace, what, "--type=merge", "-p", json.dumps({field: data}))


def content(api: pykube.HTTPClient, namespace: str, version: str) -> dict[str, str]:
    """data of a version that is a ConfigMap."""
    found = get(api, namespace, version, pykube.ConfigMap)
    return dict(found.get("data", {}))


def cause(api: pykube.HTTPClient, namespace: str, version: str) -> str:
    """Why the status says that this version became current."""
    (found,) = [one for one in resource(api, namespace)["status"]["versions"] if one["name"] == version]
    return str(found["cause"])


# -- Secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_become_versions(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V3: kubectl's own name, one form of base64, stringData before data, and pods read it."""

    def predicted(**values: str) -> str:
        literals = [f"--from-literal={key}={value}" for key, value in values.items()]
        command = ("create", "secret", "generic", "app-cfg", "--type=Opaque", "--append-hash")
        done = kubectl(*command, *literals, "--dry-run=client", "-o", "name")
        return done.stdout.strip().removeprefix("secret/")

    long = "x" * 100
    data = {"MODE": encoded("zero"), "LONG": encoded(long)}
    kubectl.create(namespace, versioned_secret("app-cfg", {"MODE": "one"}, data=data))
    first = version_of(api, namespace)
    assert first == predicted(MODE="one", LONG=long)
    made = get(api, namespace, first, pykube.Secret)
    assert (made["immutable"], made["type"]) == (True, "Opaque")
    assert made["data"] == {"MODE": encoded("one"), "LONG": encoded(long)}
    assert made["metadata"]["annotations"]["versionedconfig.io/name"] == f"{namespace}/app-cfg"

    kubectl.create(namespace, deployment(spec=secret_pod_spec(), replicas=1))
    wait_until(lambda: secret_names_in(template(api, namespace)) == {first}, 30, f"web is at {first}")
    wait_for_rollout(kubectl, namespace)
    assert modes(cluster, api, namespace) == [{"one"}]
    assert version_of(api, namespace) == first
    before = generation(api, namespace)

    # The same bytes in other words.
    text = encoded(long)
    wrapped = "\n".join(text[at : at + 76] for at in range(0, len(text), 76)) + "\n"
    for words in (
        {"data": {"LONG": wrapped}},
        {"data": {"LONG": None, "MODE": encoded("one")}, "stringData": {"MODE": None, "LONG": long}},
        {"type": "Opaque"},
    ):
        edit(kubectl, namespace, **words)
        assert version_of(api, namespace) == first
    settle(kubectl, api, versions=True)
    assert generation(api, namespace) == before

    edit(kubectl, namespace, stringData={"MODE": "two"})
    second = version_of(api, namespace, besides=first)
    assert second == predicted(MODE="two", LONG=long)
    assert modes(cluster, api, namespace) == [{"two"}]
    assert generation(api, namespace) == (before[0], before[1] + 1)
    found = fetch_all(api, pykube.Secret, namespace, {"versionedconfig.io/name": "app-cfg"})
    assert {one["metadata"]["name"] for one in found} == {first, second}
    assert versions(api, namespace) == set()


TYPES: dict[str, tuple[dict[str, str], str, dict[str, str]]] = {
    "kubernetes.io/tls": ({"tls.crt": "c"}, "'tls.key'", {"tls.crt": "c", "tls.key": "k"}),
    "kubernetes.io/dockerconfigjson": (
        {".dockerconfigjson": "no JSON"},
        "no JSON object",
        {".dockerconfigjson": '{"auths":{}}'},
    ),
    "kubernetes.io/basic-auth": ({"user": "u"}, "'username' or 'password'", {"username": "u"}),
    "kubernetes.io/ssh-auth": ({"key": "k"}, "'ssh-privatekey'", {"ssh-privatekey": "k"}),
}


def test_types_of_secrets(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """What a type asks for is looked at before anything is made; types that others write are no versions."""
    names = {type_: f"app{number}" for number, type_ in enumerate(TYPES)}
    kubectl.create(
        namespace,
        versioned_secret("token", {"a": "b"}, type="kubernetes.io/service-account-token"),
        versioned_secret("own", {"a": "b"}, type="example.com/own"),
        *(versioned_secret(names[type_], bad, type=type_) for type_, (bad, _, _) in TYPES.items()),
    )
    wait_refused(
        api, namespace, "InvalidContent", "kubernetes.io/service-account-token cannot be", name="token"
    )
    for type_, (_, words, _) in TYPES.items():
        wait_refused(api, namespace, "InvalidContent", type_, words, name=names[type_])
    own = version_of(api, namespace, "own")
    made = {one["metadata"]["name"] for one in fetch_all(api, pykube.Secret, namespace)}
    assert made == {own}

    for type_, (_, _, good) in TYPES.items():
        patch = json.dumps({"spec": {"stringData": good}})
        kubectl("patch", "-n", namespace, f"vcfg/{names[type_]}", "--type=merge", "-p", patch)
        version = version_of(api, namespace, names[type_])
        assert get(api, namespace, version, pykube.Secret)["type"] == type_
    with pytest.raises(harness.CommandFailed, match="type cannot change"):
        kubectl("patch", "-n", namespace, "vcfg/own", "--type=merge", "-p", '{"spec":{"type":"Opaque"}}')


# -- content of others -----------------------------------------------------------------------------------------------


def test_content_of_sources(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Later ones win over earlier ones and the own content over all; a change of a source is a version."""
    a = mutable("a", "a", A="a", AB="a", ABC="a", LEFT="a")
    b = mutable("b", "b", AB="b", ABC="b", LEFT="b")
    a["binaryData"] = {"BIN": encoded("bin"), "TEXT": encoded("a")}
    b["data"]["TEXT"] = "b"
    kubectl.create(
        namespace,
        a,
        b,
        taking(
            source("a"),
            source("b", keys=["MODE", "AB", "ABC", "TEXT"]),
            source("absent", optional=True),
            source("a", keys=["NONE"], optional=True),
            data={"ABC": "own"},
        ),
    )
    first = version_of(api, namespace)
    merged = {"MODE": "b", "A": "a", "AB": "b", "ABC": "own", "LEFT": "a", "TEXT": "b"}
    assert content(api, namespace, first) == merged
    assert get(api, namespace, first, pykube.ConfigMap)["binaryData"] == {"BIN": encoded("bin")}
    assert cause(api, namespace, first) == "SpecChange"
    kubectl.create(namespace, deployment(replicas=1))
    wait_moved(kubectl, api, namespace, first)
    before = generation(api, namespace)

    set_data(kubectl, namespace, "configmap/b", MODE="c")
    second = version_of(api, namespace, besides=first)
    assert content(api, namespace, second) == {**merged, "MODE": "c"}
    assert cause(api, namespace, second) == "SourceChange"
    assert modes(cluster, api, namespace) == [{"c"}]

    # What is not taken, or wins nothing, changes nothing.
    set_data(kubectl, namespace, "configmap/b", LEFT="c", MORE="c")
    set_data(kubectl, namespace, "configmap/a", ABC="c", AB="c", MODE="c")
    kubectl("label", "-n", namespace, "configmap/a", "some=label")
    settle(kubectl, api, versions=True)
    assert version_of(api, namespace) == second
    assert versions(api, namespace) == {first, second}

    # An optional one comes.
    kubectl.create(namespace, mutable("absent", "d", ABC="d"))
    third = version_of(api, namespace, besides=second)
    assert content(api, namespace, third) == {**merged, "MODE": "d"}
    assert cause(api, namespace, third) == "SourceChange"
    edit(kubectl, namespace, data={"MODE": "own"})
    fourth = version_of(api, namespace, besides=third)
    assert content(api, namespace, fourth) == {**merged, "MODE": "own"}
    assert cause(api, namespace, fourth) == "SpecChange"
    assert modes(cluster, api, namespace) == [{"own"}]
    assert generation(api, namespace) == (before[0], before[1] + 3)


def test_a_secret_of_sources(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A Secret takes from both kinds; a ConfigMap never takes from a Secret."""
    both = {"from": [source("public"), source("login", "Secret"), source("login", "Secret", keys=["TOKEN"])]}
    kubectl.create(
        namespace,
        mutable("public", "one", TOKEN="public"),
        secret("login", {"TOKEN": "t1", "USER": "u"}, immutable=False),
        versioned_secret("app-cfg", {"OWN": "o"}, **both),
        {**taking(source("login", "Secret")), "metadata": {"name": "shows"}},
    )
    wait_refused(api, namespace, "InvalidContent", "cannot take from Secret login", name="shows")
    first = version_of(api, namespace)
    values = {"MODE": "one", "TOKEN": "t1", "USER": "u", "OWN": "o"}

    def stored(version: str) -> dict[str, str]:
        data = get(api, namespace, version, pykube.Secret)["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    assert stored(first) == values
    kubectl.create(namespace, deployment(spec=secret_pod_spec(), replicas=1))
    wait_until(lambda: secret_names_in(template(api, namespace)) == {first}, 30, f"web is at {first}")
    wait_for_rollout(kubectl, namespace)

    set_data(kubectl, namespace, "secret/login", TOKEN="t2")
    second = version_of(api, namespace, besides=first)
    assert stored(second) == {**values, "TOKEN": "t2"}
    assert cause(api, namespace, second) == "SourceChange"
    (reading,) = pods_read(cluster, api, namespace)
    assert {"v/TOKEN": "t2", "v/MODE": "one", "v/OWN": "o"}.items() <= reading.files.items()
    assert versions(api, namespace, "shows") == set()


def test_a_source_that_is_not_there(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A mandatory object or key: nothing is made or touched, and it goes on when it appears, also after it went."""
    kubectl.create(
        namespace,
        taking(source("a", keys=["MODE", "KEY"]), data={"OWN": "o"}),
        deployment(replicas=1),
    )
    before = generation(api, namespace)
    wait_refused(api, namespace, "SourceMissing", "no ConfigMap a")
    kubectl.create(namespace, mutable("a", "one"))
    wait_refused(api, namespace, "SourceMissing", "ConfigMap a has no key 'KEY'")
    settle(kubectl, api, versions=True)
    assert versions(api, namespace) == set()
    assert generation(api, namespace) == before
    set_data(kubectl, namespace, "configmap/a", KEY="k")
    first = version_of(api, namespace)
    wait_moved(kubectl, api, namespace, first)
    assert modes(cluster, api, namespace) == [{"one"}]
    before, pods = generation(api, namespace), replica_sets(api, namespace)

    # The key goes, then the object.
    set_data(kubectl, namespace, "configmap/a", KEY=None, MODE="two")
    wait_refused(api, namespace, "SourceMissing", "'KEY'")
    kubectl("delete", "-n", namespace, "configmap/a")
    wait_refused(api, namespace, "SourceMissing", "no ConfigMap a")
    settle(kubectl, api, versions=True)
    assert versions(api, namespace) == {first}
    assert (generation(api, namespace), replica_sets(api, namespace)) == (before, pods)
    assert modes(cluster, api, namespace) == [{"one"}]
    # What is current is looked after all the same.
    kubectl.create(namespace, deployment("late", replicas=1))
    wait_moved(kubectl, api, namespace, first, "late")
    assert modes(cluster, api, namespace, "late") == [{"one"}]

    # As it was: nothing to do. Then a change.
    kubectl.create(namespace, mutable("a", "one", KEY="k"))
    assert version_of(api, namespace) == first
    assert generation(api, namespace) == before
    set_data(kubectl, namespace, "configmap/a", MODE="three")
    second = version_of(api, namespace, besides=first)
    assert cause(api, namespace, second) == "SourceChange"
    assert modes(cluster, api, namespace) == [{"three"}]


def test_an_optional_source_that_goes(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """That is a change like another."""
    kubectl.create(
        namespace, mutable("a", "one"), mutable("b", "two"), taking(source("a"), source("b", optional=True))
    )
    first = version_of(api, namespace)
    assert content(api, namespace, first) == {"MODE": "two"}
    kubectl("delete", "-n", namespace, "configmap/b")
    second = version_of(api, namespace, besides=first)
    assert content(api, namespace, second) == {"MODE": "one"}
    assert cause(api, namespace, second) == "SourceChange"


def test_a_pin_while_a_source_is_missing(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Whatever the content: going to a kept version is possible while no other can be made."""
    kubectl.create(namespace, mutable("a", "one"), taking(source("a")))
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(replicas=1))
    wait_moved(kubectl, api, namespace, first)
    set_data(kubectl, namespace, "configmap/a", MODE="two")
    second = version_of(api, namespace, besides=first)
    kubectl("delete", "-n", namespace, "configmap/a")
    wait_refused(api, namespace, "SourceMissing", "no ConfigMap a")

    for version, mode in ((first, "one"), (second, "two"), (first, "one")):
        edit(kubectl, namespace, pin=version.rpartition("-")[2])
        wait_moved(kubectl, api, namespace, version)
        wait_refused(api, namespace, "SourceMissing", "no ConfigMap a")
        assert modes(cluster, api, namespace) == [{mode}]
    assert (resource(api, namespace)["status"]["currentVersion"], cause(api, namespace, first)) == (
        first,
        "Pin",
    )
    # It comes back with something new: the pin stays, and without it that is the version.
    kubectl.create(namespace, mutable("a", "three"))
    assert version_of(api, namespace) == first
    edit(kubectl, namespace, pin="")
    third = version_of(api, namespace, besides=first)
    assert third not in (first, second)
    assert cause(api, namespace, third) == "Unpin"
    assert modes(cluster, api, namespace) == [{"three"}]


# -- how often -------------------------------------------------------------------------------------------------------


def test_a_source_that_never_rests(
    operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    audit_log: Path,
) -> None:
    """V24: a window for a series of changes, one version and one rollout for each, and the last content is reached."""
    rollout = {"settleSeconds": 2}
    kubectl.create(namespace, mutable("a", "one"), taking(source("a"), historyLimit=0, rollout=rollout))
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(replicas=1, revisionHistoryLimit=0))
    wait_moved(kubectl, api, namespace, first)
    wait_until(lambda: targets(api, namespace) == {"web": ("Updated", first)}, 15, "the status tells of web")
    uid, number = generation(api, namespace)
    writes = Writes(audit_log)
    found = pykube.ConfigMap.objects(api, namespace=namespace).get_by_name("a")
    for turn in range(25):
        found.patch({"data": {"MODE": f"turn {turn}"}})
        time.sleep(0.2)
    wait_until(lambda: modes(cluster, api, namespace) == [{"turn 24"}], 60, "the last content is read")
    last = version_of(api, namespace)
    assert content(api, namespace, last) == {"MODE": "turn 24"}

    ours = [line for line in writes.seen() if f" {namespace}/" in line or f" {namespace}:" in line]
    made = [line for line in ours if line.startswith("create configmaps ")]
    # Half as long as a series may last at most; one more where the machine stumbled.
    assert 1 <= len(made) <= 2, made
    assert generation(api, namespace) == (uid, number + len(made))
    assert len([line for line in ours if line.startswith("patch deployments ")]) == len(made)
    wait_gone(api, namespace, first)


def test_a_source_that_changed_while_the_operator_was_down(
    stopped_operator: Operator,
    cluster: Cluster,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    audit_log: Path,
) -> None:
    """V25: one rollout; and another start, with nothing to do, writes nothing."""
    stopped_operator.start()
    kubectl.create(
        namespace,
        mutable("a", "one"),
        secret("s", {"TOKEN": "t"}, immutable=False),
        taking(source("a"), source("absent", optional=True)),
        versioned_secret("db", None, **{"from": [source("s", "Secret")]}),
        taking(source("absent")) | {"metadata": {"name": "refused"}},
    )
    first, db = version_of(api, namespace), version_of(api, namespace, "db")
    spec = reading_pod_spec()
    spec["containers"][0]["envFrom"] = [{"secretRef": {"name": "db"}}]
    kubectl.create(namespace, deployment(spec=spec, replicas=2))
    wait_moved(kubectl, api, namespace, first)
    for name in ("app-cfg", "db"):
        wait_until(lambda n=name: "web" in targets(api, namespace, n), 15, f"web is a target of {name}")  # type: ignore[misc]
        version_of(api, namespace, name)
    before, (uid, number) = replica_sets(api, namespace), generation(api, namespace)

    stopped_operator.stop()
    for mode in ("two", "three"):
        set_data(kubectl, namespace, "configmap/a", MODE=mode)
        set_data(kubectl, namespace, "secret/s", TOKEN=mode)
    stopped_operator.start()
    second = version_of(api, namespace, besides=first)
    wait_versioned(api, namespace, "db", besides=db)
    assert cause(api, namespace, second) == "SourceChange"
    assert names_in(template(api, namespace)) == {second}
    assert modes(cluster, api, namespace) == [{"three"}] * 2
    assert {one.environment["TOKEN"] for one in pods_read(cluster, api, namespace)} == {"three"}
    after = replica_sets(api, namespace)
    assert [after[name] for name in after.keys() - before.keys()] == [max(before.values()) + 1]
    assert generation(api, namespace) == (uid, number + 1)
    assert len(versions(api, namespace)) == 2

    wait_released(api, namespace, first)
    settle(kubectl, api, versions=True)
    stopped_operator.stop()
    writes = Writes(audit_log)
    known = [identity(api, namespace, name, pykube.ConfigMap) for name in ("a", first, second)]
    stopped_operator.start()
    wait_refused(api, namespace, "SourceMissing", "no ConfigMap absent", name="refused")
    settle(kubectl, api, versions=True)
    assert writes.seen(), "the audit log shows nothing at all"
    # Namespaces of earlier tests may be on their way out.
    assert writes.seen(without=lambda n: n != namespace and n.startswith(("t-", "settle-"))) == []
    assert [identity(api, namespace, name, pykube.ConfigMap) for name in ("a", first, second)] == known
