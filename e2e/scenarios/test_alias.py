"""Readers that no rollout reaches: the alias for those that ask the API, and marks on versions that they read."""

import base64
import json

import pykube

from e2e.harness import (
    IN_USE,
    Kubectl,
    Manifest,
    Operator,
    config_map,
    deployment,
    fetch,
    reading_pod_spec,
    versioned_config,
    wait_gone,
    wait_until,
)
from e2e.stories import (
    BAD,
    crashing_pod_spec,
    edit,
    get,
    names_in,
    start_several,
    template,
    version_of,
    versioned_secret,
    versions,
    wait_condition,
    wait_rolled_back,
)

ALIAS = "versionedconfig.io/alias"
ON = {"enabled": True}


def wait_alias(
    api: pykube.HTTPClient, namespace: str, data: dict[str, str], kind: type = pykube.ConfigMap
) -> Manifest:
    """Until the object of the logical name holds exactly this."""

    def told() -> Manifest | None:
        found = fetch(api, kind, namespace, "app-cfg")
        return found if found is not None and found.get("data") == data else None

    return wait_until(told, 30, f"the alias holds the keys {sorted(data)}")


def test_the_alias_follows_what_has_proved_itself(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V29: in step with the content, and mended where somebody spoils it."""
    kubectl.create(
        namespace,
        versioned_config(
            "app-cfg", {"MODE": "one", "OLD": "1"}, alias=ON, metadata={"labels": {"team": "shop"}}
        ),
    )
    first = version_of(api, namespace)
    made = wait_alias(api, namespace, {"MODE": "one", "OLD": "1"})
    assert "immutable" not in made
    assert made["metadata"]["labels"] == {"team": "shop"}
    assert made["metadata"]["annotations"][ALIAS] == f"{namespace}/app-cfg"
    assert IN_USE not in made["metadata"].get("finalizers", [])
    assert versions(api, namespace) == {first}

    kubectl.create(namespace, deployment(spec=reading_pod_spec(), replicas=1))
    wait_until(lambda: names_in(template(api, namespace)) == {first}, 30, f"web is at {first}")
    edit(kubectl, namespace, data={"MODE": "two", "OLD": None})
    version_of(api, namespace, besides=first)
    wait_alias(api, namespace, {"MODE": "two"})

    kubectl("patch", "-n", namespace, "configmap/app-cfg", "-p", '{"data": {"MODE": "spoilt", "MORE": "x"}}')
    mended = wait_alias(api, namespace, {"MODE": "two"})
    assert mended["metadata"]["uid"] == made["metadata"]["uid"]
    kubectl("delete", "-n", namespace, "configmap/app-cfg")
    wait_alias(api, namespace, {"MODE": "two"})


def test_the_alias_is_spared_what_makes_a_target_fail(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    rollout = {"minReadySeconds": 5}
    start_several(kubectl, api, namespace, crashing_pod_spec(), "a", rollout=rollout)
    edit(kubectl, namespace, alias=ON)
    good = dict(wait_alias(api, namespace, {"MODE": "one"})["data"])
    edit(kubectl, namespace, data=BAD)
    wait_rolled_back(api, namespace)
    assert get(api, namespace, "app-cfg", pykube.ConfigMap)["data"] == good


def test_an_alias_goes_when_it_is_not_asked_for(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    policy = {"deletionPolicy": "Delete"}
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, alias=ON, **policy))
    version_of(api, namespace)
    wait_alias(api, namespace, {"MODE": "one"})
    edit(kubectl, namespace, alias={"enabled": False})
    wait_gone(api, namespace)

    edit(kubectl, namespace, alias=ON)
    wait_alias(api, namespace, {"MODE": "one"})
    operator.stop()
    kubectl("delete", "-n", namespace, "vcfg/app-cfg")
    operator.start()
    wait_gone(api, namespace)


def test_an_alias_never_takes_somebody_elses_object(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    theirs = config_map("app-cfg", {"MODE": "theirs"}, immutable=False)
    kubectl.create(namespace, theirs, versioned_config("app-cfg", {"MODE": "ours"}, alias=ON))
    told = wait_condition(api, namespace, "Stalled", "AliasRefused")
    assert "delete it, or set spec.alias.enabled to false" in told["message"]
    assert get(api, namespace, "app-cfg", pykube.ConfigMap)["data"] == {"MODE": "theirs"}

    kubectl("delete", "-n", namespace, "configmap/app-cfg")
    wait_alias(api, namespace, {"MODE": "ours"})
    version_of(api, namespace)

    loop = versioned_config(
        "looped", {"A": "b"}, alias=ON, **{"from": [{"kind": "ConfigMap", "name": "looped"}]}
    )
    refused = kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(loop), check=False)
    assert "the alias would be its own source" in refused.stderr


def test_an_alias_of_a_secret(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    encoded = {key: base64.b64encode(key.encode()).decode() for key in ("username", "password")}
    kubectl.create(
        namespace,
        versioned_secret("app-cfg", {k: k for k in encoded}, type="kubernetes.io/basic-auth", alias=ON),
    )
    version_of(api, namespace)
    made = wait_alias(api, namespace, encoded, pykube.Secret)
    assert made["type"] == "kubernetes.io/basic-auth"
    kept = made["metadata"]["resourceVersion"]

    operator.kill()
    operator.start()
    edit(kubectl, namespace, stringData={"username": "username", "password": "other"})
    encoded["password"] = base64.b64encode(b"other").decode()
    again = wait_alias(api, namespace, encoded, pykube.Secret)
    written = [one["manager"] for one in again["metadata"]["managedFields"]]
    assert (written, again["metadata"]["resourceVersion"] != kept) == (["versionedconfig"], True)


def test_a_version_that_is_marked_is_kept(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V29: neither the annotation nor the label lets it be collected; the one beside them goes."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "0"}, deletionPolicy="Delete"))
    made = [version_of(api, namespace)]
    for mode in ("1", "2"):
        edit(kubectl, namespace, data={"MODE": mode})
        made.append(version_of(api, namespace, besides=made[-1]))
    by_program, by_person, plain = made
    kubectl("label", "-n", namespace, f"configmap/{by_program}", "versionedconfig.io/in-use-by=reader")
    kubectl("annotate", "-n", namespace, f"configmap/{by_person}", "versionedconfig.io/keep=audit 2026")

    kubectl("delete", "-n", namespace, "vcfg/app-cfg")
    wait_until(lambda: versions(api, namespace) == {by_program, by_person}, 60, f"{plain} is collected")
    kubectl("label", "-n", namespace, f"configmap/{by_program}", "versionedconfig.io/in-use-by-")
    wait_until(lambda: versions(api, namespace) == {by_person}, 60, f"{by_program} is collected")
