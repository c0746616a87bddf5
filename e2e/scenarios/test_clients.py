"""What every way to change or delete an object does to one that is in use: kubectl's ways and a raw PUT, with deletion warned
of (as shipped) and refused (components/deny-deletion). The operator does not take part; the finalizer is there already.

Afterwards the object is still itself, whatever was tried: same uid, same content, same finalizer.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pykube
import pytest
import yaml

from e2e.harness import IN_USE, RELEASE, ROOT, Kubectl, Manifest, config_map, fetch, wait_gone, wait_until

BINDING = "versionedconfig-in-use-deletion"
DENIED = "denied request"
IMMUTABLE = "field is immutable when `immutable` is set"

pytestmark = pytest.mark.usefixtures("installed", "stopped_operator")


@pytest.fixture(scope="module", params=["warn", "deny"])
def mode(
    request: pytest.FixtureRequest,
    kubectl: Kubectl,
    installed: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """What the policy does with deletions; in the end as shipped."""
    if request.param == "warn":
        yield "warn"
        return
    folder = tmp_path_factory.mktemp("overlay")
    manifests = os.path.relpath(ROOT / "manifests", folder.resolve())
    overlay = {"resources": [f"{manifests}/base"], "components": [f"{manifests}/components/deny-deletion"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    kubectl("apply", "-f", "-", stdin=json.dumps(binding_of(kubectl, folder)))
    try:
        wait_in_force(kubectl, "deny")
        yield "deny"
    finally:
        kubectl("apply", "-f", "-", stdin=json.dumps(binding_of(kubectl, ROOT / "manifests" / "base")))
        wait_in_force(kubectl, "warn")


def binding_of(kubectl: Kubectl, folder: Path) -> Manifest:
    rendered = yaml.safe_load_all(kubectl("kustomize", str(folder)).stdout)
    (found,) = (
        d
        for d in rendered
        if d and d["kind"] == "ValidatingAdmissionPolicyBinding" and d["metadata"]["name"] == BINDING
    )
    return dict(found)


def wait_in_force(kubectl: Kubectl, mode: str) -> None:
    """API servers take a policy up after a moment."""
    name = f"probe-{mode}"
    kubectl.apply("default", protected(name))

    def in_force() -> bool:
        asked = kubectl("delete", "-n", "default", f"configmap/{name}", "--dry-run=server", check=False)
        return (asked.returncode != 0) == (mode == "deny")

    try:
        wait_until(in_force, 30, f"the policy is set to {mode}")
    finally:
        kubectl("annotate", "-n", "default", f"configmap/{name}", f"{RELEASE}=the test ends")
        kubectl.strip("default", f"configmap/{name}")
        kubectl("delete", "-n", "default", f"configmap/{name}")


def protected(name: str = "app-cfg") -> Manifest:
    """As the operator has it while pods use it, applied by somebody who knows nothing of finalizers."""
    manifest = config_map(name)
    return {**manifest, "metadata": {**manifest["metadata"], "finalizers": [IN_USE]}}


class Way(NamedTuple):
    """How somebody changes or deletes the object."""

    command: tuple[str, ...]
    green: bool = False
    """With other content."""
    deletes: bool = False
    refused: str = ""
    """By whom, in words of the answer, in either mode."""


WAYS = {
    "delete": Way(("delete", "configmap/app-cfg", "--wait=false"), deletes=True),
    "delete with another grace period": Way(("delete", "configmap/app-cfg", "--wait=false", "--grace-period=0", "--force"), deletes=True),
    "delete all": Way(("delete", "configmaps", "--all", "--wait=false"), deletes=True),
    "apply": Way(("apply", "-f", "-")),
    "apply, changed": Way(("apply", "-f", "-"), green=True, refused=IMMUTABLE),
    "apply --force, changed": Way(("apply", "--force", "-f", "-", "--timeout=1s"), green=True, deletes=True),
    "apply --server-side": Way(("apply", "--server-side", "--field-manager=gitops", "--force-conflicts", "-f", "-")),
    "apply --server-side, changed": Way(("apply", "--server-side", "--field-manager=gitops", "--force-conflicts", "-f", "-"), green=True, refused=IMMUTABLE),
    "replace": Way(("replace", "-f", "-"), refused=DENIED),
    "replace, changed": Way(("replace", "-f", "-"), green=True, refused=IMMUTABLE),
    "replace --force": Way(("replace", "--force", "-f", "-", "--timeout=1s"), deletes=True),
    "replace --force, changed": Way(("replace", "--force", "-f", "-", "--timeout=1s"), green=True, deletes=True),
    "edit of labels": Way(("label", "configmap/app-cfg", "a=b")),
    "patch away": Way(("patch", "configmap/app-cfg", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}'), refused=DENIED),
}  # fmt: skip


@pytest.fixture
def stored(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> Iterator[Manifest]:
    """The object, in use, applied once before as a GitOps tool would; in the end nothing is left."""
    kubectl.apply(namespace, config_map())
    add = json.dumps({"metadata": {"finalizers": [IN_USE]}})
    kubectl("patch", "-n", namespace, "configmap/app-cfg", "--type=merge", "-p", add)
    found = fetch(api, pykube.ConfigMap, namespace, "app-cfg")
    assert found is not None
    yield found
    kubectl("annotate", "-n", namespace, "configmap/app-cfg", f"{RELEASE}=the test ends", check=False)
    kubectl.strip(namespace, "configmap/app-cfg", check=False)


@pytest.mark.parametrize("terminating", [False, True], ids=["", "terminating"])
@pytest.mark.parametrize("name", WAYS)
def test_the_object_stays_itself(
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    mode: str,
    stored: Manifest,
    name: str,
    terminating: bool,
) -> None:
    way = WAYS[name]
    if terminating:
        if mode == "deny":
            kubectl("annotate", "-n", namespace, "configmap/app-cfg", f"{RELEASE}=for a moment")
        kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
        if mode == "deny":
            kubectl("annotate", "-n", namespace, "configmap/app-cfg", f"{RELEASE}-")
    manifest = config_map(data={"MODE": "green"} if way.green else None)

    done = kubectl(*way.command, "-n", namespace, stdin=json.dumps(manifest), check=False)

    assert_itself(api, namespace, stored)
    after = fetch(api, pykube.ConfigMap, namespace, "app-cfg") or {}
    if way.refused:
        assert done.returncode != 0
        assert way.refused in done.stderr
    elif way.deletes and mode == "deny":
        assert done.returncode != 0
        assert DENIED in done.stderr or (terminating and "immutable" in done.stderr)
        assert ("deletionTimestamp" in after["metadata"]) == terminating
    elif way.deletes:
        assert "Warning: " in done.stderr
        assert "app-cfg is in use" in done.stderr
        assert "deletionTimestamp" in after["metadata"]
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("terminating", [False, True], ids=["", "terminating"])
def test_a_raw_put_does_not_take_the_finalizer(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, mode: str, stored: Manifest, terminating: bool
) -> None:
    """It would do so without a word, and free the name of a terminating object in the same moment."""
    if terminating and mode == "warn":
        kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")

    def put(finalizers: list[str]) -> int:
        body: dict[str, Any] = {
            **config_map(),
            "metadata": {"name": "app-cfg", "namespace": namespace, "finalizers": finalizers},
        }
        answer = api.put(version="v1", namespace=namespace, url="configmaps/app-cfg", data=json.dumps(body))
        return int(answer.status_code)

    assert put([]) == 403
    assert_itself(api, namespace, stored)
    assert put([IN_USE]) == 200


def test_a_reason_lets_a_deletion_pass(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, mode: str, stored: Manifest
) -> None:
    kubectl("annotate", "-n", namespace, "configmap/app-cfg", f"{RELEASE}=the pods are known to be gone")

    done = kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")

    assert "in use" not in done.stderr
    kubectl.strip(namespace, "configmap/app-cfg")
    wait_gone(api, namespace)


def test_a_namespace_can_be_deleted(kubectl: Kubectl, namespace: str, mode: str, stored: Manifest) -> None:
    """Its controller deletes what is in it, object by object or all at once."""
    kubectl("delete", "namespace", namespace, "--wait=false")
    shown = ("get", "-n", namespace, "configmap/app-cfg", "-o", "jsonpath={.metadata.deletionTimestamp}")

    wait_until(lambda: kubectl(*shown, check=False).stdout, 60, "the namespace controller may delete it")


def assert_itself(api: pykube.HTTPClient, namespace: str, stored: Manifest) -> None:
    found = fetch(api, pykube.ConfigMap, namespace, "app-cfg")
    assert found is not None, "its name is free"
    assert found["metadata"]["uid"] == stored["metadata"]["uid"]
    assert found["data"] == {"MODE": "blue"}
    assert IN_USE in found["metadata"]["finalizers"]
