"""Content that targets could not start with is not given to them: it is refused before anything is touched.

Waits are on conditions. "It does not happen" is shown at the end of something that the operator did afterwards.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any

import pykube

from e2e.harness import (
    Cluster,
    Kubectl,
    Manifest,
    Operator,
    config_map,
    deployment,
    fetch,
    fetch_all,
    plain_pod_spec,
    settle,
    versioned_config,
    wait_until,
)
from e2e.stories import (
    change,
    edit,
    generation,
    modes,
    names_in,
    replica_sets,
    resource,
    start,
    targets,
    template,
    version_of,
    versioned_secret,
    versions,
    wait_moved,
    wait_refused,
)


def with_variable(key: str, *, optional: bool = False, config: str = "app-cfg") -> Manifest:
    """A pod that takes one key as a variable V."""
    spec = plain_pod_spec()
    ref = {"name": config, "key": key, **({"optional": True} if optional else {})}
    spec["containers"][0]["env"] = [{"name": "V", "valueFrom": {"configMapKeyRef": ref}}]
    return spec


def with_volume(source: Manifest, **mount: Any) -> Manifest:
    """A pod with one volume `v`, mounted at /cfg."""
    spec = plain_pod_spec()
    spec["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/cfg", **mount}]
    return {**spec, "volumes": [{"name": "v", **source}]}


def items(*keys: str) -> Manifest:
    return {"items": [{"key": key, "path": f"f-{key}"} for key in keys]}


def with_secrets(config: str = "s") -> Manifest:
    """A pod that takes one key of a Secret as a variable and another one as a file."""
    spec = with_volume({"secret": {"secretName": config, **items("FILE")}})
    ref = {"name": config, "key": "ENV"}
    spec["containers"][0]["env"] = [{"name": "V", "valueFrom": {"secretKeyRef": ref}}]
    return spec


def in_init_container(spec: Manifest) -> Manifest:
    """The same, in a container that runs before the others."""
    (container,) = spec["containers"]
    init = {**container, "name": "i", "command": ["true"]}
    return {**spec, "containers": plain_pod_spec()["containers"], "initContainers": [init]}


@dataclass(frozen=True)
class Asking:
    """A pod that asks for KEY in one way, and what the refusal says of it."""

    spec: Manifest
    field: str
    in_binary_data: bool = True
    """That would do."""
    words: str = "asks for key KEY"


VOLUME = "spec.volumes[v]"
ASKING: dict[str, Asking] = {
    "env": Asking(with_variable("KEY"), "spec.containers[c].env[V]", in_binary_data=False),
    "init": Asking(
        in_init_container(with_variable("KEY")), "spec.initContainers[i].env[V]", in_binary_data=False
    ),
    "items": Asking(
        with_volume({"configMap": {"name": "app-cfg", **items("KEY")}}), f"{VOLUME}.configMap.items[KEY]"
    ),
    "projected": Asking(
        with_volume({"projected": {"sources": [{"configMap": {"name": "app-cfg", **items("KEY")}}]}}),
        f"{VOLUME}.projected.sources[0].configMap.items[KEY]",
    ),
    "sub-path": Asking(
        with_volume({"configMap": {"name": "app-cfg"}}, subPath="KEY"),
        "spec.containers[c].volumeMounts[v].subPath",
        words="mounts key KEY",
    ),
}
NOT_ASKING: dict[str, Manifest] = {
    "optional-env": with_variable("KEY", optional=True),
    "optional-items": with_volume({"configMap": {"name": "app-cfg", "optional": True, **items("KEY")}}),
    "whole": with_volume({"configMap": {"name": "app-cfg"}}),
    "other-key": with_variable("MODE"),
}


def test_a_key_that_targets_ask_for(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """However they ask: every target and field is named, and not one of the targets moves, until the key is there."""
    pods = {name: one.spec for name, one in ASKING.items()} | NOT_ASKING
    rollout = {"settleSeconds": 0, "maxConcurrent": "100%"}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one", "KEY": "k"}, rollout=rollout))
    first = version_of(api, namespace)
    kubectl.create(namespace, *(deployment(name, spec, replicas=0) for name, spec in pods.items()))
    wait_until(
        lambda: targets(api, namespace) == dict.fromkeys(pods, ("Updated", first)), 30, "all have the version"
    )
    before = {name: generation(api, namespace, name) for name in pods}

    def unmoved() -> bool:
        return {name: generation(api, namespace, name) for name in pods} == before

    edit(kubectl, namespace, data={"MODE": "two", "KEY": None})
    told = wait_refused(api, namespace, "KeyMissing")["message"]
    sentences = told.split("; ")
    assert len(sentences) == len(ASKING), told
    for name, asking in ASKING.items():
        (sentence,) = [one for one in sentences if one.startswith(f"Deployment {name}: ")]
        assert asking.field in sentence
        assert asking.words in sentence
    settle(kubectl, api, versions=True)
    assert unmoved()
    status = resource(api, namespace)["status"]
    assert (status["currentVersion"], status["stableVersion"]) == (first, first)
    assert targets(api, namespace) == dict.fromkeys(pods, ("Updated", first))

    # In binaryData it is a file, and never a variable.
    edit(kubectl, namespace, binaryData={"KEY": base64.b64encode(b"k").decode()})
    told = wait_refused(api, namespace, "KeyMissing", "which is in binaryData")["message"]
    asked = {one.partition(": ")[0] for one in told.split("; ")}
    assert asked == {f"Deployment {name}" for name, asking in ASKING.items() if not asking.in_binary_data}
    assert unmoved()

    edit(kubectl, namespace, data={"KEY": "new"}, binaryData=None)
    second = version_of(api, namespace, besides=first)
    assert targets(api, namespace) == dict.fromkeys(pods, ("Updated", second))
    assert {name: generation(api, namespace, name) for name in pods} == {
        name: (uid, number + 1) for name, (uid, number) in before.items()
    }


def test_a_reference_that_is_taken_out(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """It goes on by itself when the Deployment asks no more, and the VersionedConfig is not touched."""
    first = start(kubectl, api, namespace)
    kubectl.create(namespace, deployment("other", with_variable("MODE"), replicas=0))
    wait_moved(kubectl, api, namespace, first, "other")
    assert version_of(api, namespace) == first
    before, sets = generation(api, namespace, "other"), replica_sets(api, namespace)

    edit(kubectl, namespace, data={"MODE": None, "OTHER": "two"})
    wait_refused(api, namespace, "KeyMissing", "Deployment web: spec.containers[c].env[MODE]", "other: ")
    operator.kill()
    operator.start()
    settle(kubectl, api, versions=True)
    wait_refused(api, namespace, "KeyMissing", "Deployment web: spec.containers[c].env[MODE]", "other: ")
    assert replica_sets(api, namespace) == sets
    assert modes(cluster, api, namespace) == [{"one"}]
    asked = resource(api, namespace)["metadata"]["generation"]

    remove = json.dumps([{"op": "remove", "path": "/spec/template/spec/containers/0/env"}])
    kubectl("patch", "-n", namespace, "deployment/web", "--type=json", "-p", remove)
    wait_refused(api, namespace, "KeyMissing", "Deployment other: ")
    wait_until(
        lambda: "Deployment web" not in wait_refused(api, namespace, "KeyMissing")["message"],
        30,
        "web asks for nothing more",
    )
    assert names_in(template(api, namespace)) == {first}
    assert generation(api, namespace, "other") == before
    kubectl("delete", "-n", namespace, "deployment/other")
    second = version_of(api, namespace, besides=first)
    wait_moved(kubectl, api, namespace, second)
    assert resource(api, namespace)["metadata"]["generation"] == asked
    (one,) = [one for one in resource(api, namespace)["status"]["versions"] if one["name"] == second]
    assert (one["cause"], one["result"]) == ("SpecChange", "Succeeded")


def test_who_is_no_target_is_not_asked(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """rollout.targets: others stay where they are, whatever they ask for."""
    some = [{"kind": "Deployment", "name": "web"}]
    first = start(kubectl, api, namespace, replicas=0, rollout={"targets": some, "settleSeconds": 0})
    kubectl.create(namespace, deployment("other", with_variable("KEY", config=first), replicas=0))
    assert change(kubectl, api, namespace, "two", first) != first
    assert set(targets(api, namespace)) == {"web"}
    edit(kubectl, namespace, data={"MODE": None, "KEY": "k"})
    wait_refused(api, namespace, "KeyMissing", "Deployment web: ")


def test_the_first_version_and_one_that_comes_later(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A Deployment that waits for its first version does not get one that it cannot start with; Secrets alike."""
    kubectl.create(namespace, deployment(spec=with_secrets(), replicas=1))
    before = generation(api, namespace)
    kubectl.create(namespace, versioned_secret("s", {"ENV": "e"}))
    wait_refused(api, namespace, "KeyMissing", "Deployment web: ", "items[FILE]", "key FILE", name="s")
    assert "env[V]" not in wait_refused(api, namespace, "KeyMissing", name="s")["message"]
    assert not resource(api, namespace, "s")["status"].get("currentVersion")
    settle(kubectl, api, versions=True)
    assert generation(api, namespace) == before

    more = json.dumps({"spec": {"stringData": {"FILE": "f"}}})
    kubectl("patch", "-n", namespace, "vcfg/s", "--type=merge", "-p", more)
    first = version_of(api, namespace, "s")
    wait_until(lambda: targets(api, namespace, "s") == {"web": ("Updated", first)}, 60, "web has it")

    less = json.dumps({"spec": {"stringData": {"ENV": None}}})
    kubectl("patch", "-n", namespace, "vcfg/s", "--type=merge", "-p", less)
    wait_refused(api, namespace, "KeyMissing", "env[V] asks for key ENV", name="s")
    assert resource(api, namespace, "s")["status"]["currentVersion"] == first
    assert targets(api, namespace, "s") == {"web": ("Updated", first)}


def test_a_source_that_loses_a_key(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """What is taken from another object is looked at in the same way, and goes on when that has the key again."""
    kubectl.create(
        namespace,
        config_map("a", {"MODE": "one"}, immutable=False),
        versioned_config("app-cfg", {"OWN": "o"}, **{"from": [{"kind": "ConfigMap", "name": "a"}]}),
    )
    first = version_of(api, namespace)
    kubectl.create(namespace, deployment(replicas=1))
    wait_moved(kubectl, api, namespace, first)
    before = generation(api, namespace)

    def set_data(**data: str | None) -> None:
        patch = json.dumps({"data": data})
        kubectl("patch", "-n", namespace, "configmap/a", "--type=merge", "-p", patch)

    set_data(MODE=None, OTHER="two")
    wait_refused(api, namespace, "KeyMissing", "Deployment web: ", "key MODE")
    settle(kubectl, api, versions=True)
    assert generation(api, namespace) == before
    set_data(MODE="two")
    second = version_of(api, namespace, besides=first)
    assert modes(cluster, api, namespace) == [{"two"}]
    (one,) = [one for one in resource(api, namespace)["status"]["versions"] if one["name"] == second]
    assert one["cause"] == "SourceChange"


def test_a_pin_to_a_version_without_the_key(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Refused in the same way; without the pin all is as before."""
    rollout = {"settleSeconds": 0}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, rollout=rollout))
    first = version_of(api, namespace)
    edit(kubectl, namespace, data={"KEY": "k"})
    second = version_of(api, namespace, besides=first)
    kubectl.create(namespace, deployment(spec=with_variable("KEY"), replicas=0))
    wait_moved(kubectl, api, namespace, second)
    assert version_of(api, namespace) == second
    before = generation(api, namespace)

    edit(kubectl, namespace, pin=first.rpartition("-")[2])
    wait_refused(api, namespace, "KeyMissing", "Deployment web: spec.containers[c].env[V]", "key KEY")
    settle(kubectl, api, versions=True)
    assert generation(api, namespace) == before
    assert resource(api, namespace)["status"]["currentVersion"] == second
    edit(kubectl, namespace, pin="")
    assert version_of(api, namespace) == second
    assert generation(api, namespace) == before
    assert versions(api, namespace) == {first, second}


def test_a_quota(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A version that the API server does not take: nothing is touched, and it is made when there is room."""
    first = start(kubectl, api, namespace)
    before = generation(api, namespace), replica_sets(api, namespace)
    count = len(fetch_all(api, pykube.ConfigMap, namespace))
    kubectl("create", "quota", "-n", namespace, "few", f"--hard=count/configmaps={count}")

    def counted() -> bool:
        found = fetch(api, pykube.ResourceQuota, namespace, "few") or {}
        return bool(found.get("status", {}).get("used", {}).get("count/configmaps") == str(count))

    wait_until(counted, 30, "the quota is counted")
    edit(kubectl, namespace, data={"MODE": "two"})
    wait_refused(api, namespace, "VersionRefused", "exceeded quota: few")
    settle(kubectl, api, versions=True)
    assert (generation(api, namespace), replica_sets(api, namespace)) == before
    assert versions(api, namespace) == {first}
    assert modes(cluster, api, namespace) == [{"one"}]

    more = json.dumps({"spec": {"hard": {"count/configmaps": str(count + 1)}}})
    kubectl("patch", "-n", namespace, "quota/few", "--type=merge", "-p", more)
    second = version_of(api, namespace, besides=first)
    assert modes(cluster, api, namespace) == [{"two"}]
    assert versions(api, namespace) == {first, second}
