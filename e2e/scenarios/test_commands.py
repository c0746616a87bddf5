"""`versionedconfig refs`, `scan` and `uninstall`, as people run them, with rights of their own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pykube
import pytest
import yaml

from e2e import harness
from e2e.harness import (
    IN_USE,
    OPERATOR_NAMESPACE,
    Kubectl,
    Manifest,
    Operator,
    as_list,
    config_map,
    deployment,
    fetch,
    fetch_all,
    finalizers,
    plain_pod_spec,
    pod,
    reading_pod_spec,
    secret,
    wait_for_rollout,
    wait_gone,
    wait_until,
)

UNINSTALL = Path(__file__).parents[2] / "manifests" / "uninstall"


def run(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as somebody with that kubeconfig."""
    command = [sys.executable, "-m", "versionedconfig", *arguments, "--kubeconfig", str(kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def ask(kubectl: Kubectl, *arguments: str) -> Any:
    """What the command answers to an administrator, as JSON."""
    done = run(kubectl.kubeconfig, *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ingress(secret_name: str) -> Manifest:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "front"},
        "spec": {"defaultBackend": backend, "tls": [{"secretName": secret_name}]},
    }


def test_refs_names_every_field(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    kubectl.create(namespace, config_map(), secret("cert"), ingress("cert"), deployment(replicas=1))
    wait_for_rollout(kubectl, namespace)

    answer = ask(kubectl, "refs", "configmap", "app-cfg", "-n", namespace)
    uses = {(use["kind"], use["field"], use["holds"]) for use in answer["uses"]}
    assert (answer["exists"], answer["immutable"]) == (True, True)
    assert answer["notLookedAt"] == []
    fields = {use["field"] for use in answer["uses"] if use["kind"] == "Pod"}
    assert fields
    assert all(("Pod", field, True) in uses for field in fields)
    assert {("Deployment", f".spec.template{field}", False) for field in fields} <= uses
    assert {use["kind"] for use in answer["uses"]} == {"Pod", "Deployment", "ReplicaSet"}

    (use,) = ask(kubectl, "refs", "secret", "cert", "-n", namespace)["uses"]
    assert (use["kind"], use["name"], use["field"], use["holds"]) == (
        "Ingress",
        "front",
        ".spec.tls[0].secretName",
        False,
    )
    text = run(kubectl.kubeconfig, "refs", "cm", "none", "-n", namespace).stdout
    assert "does not exist" in text
    assert "Nothing refers to it." in text


def test_a_scan_finds_the_fault_and_what_leads_to_it(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Nothing is installed that would prevent it."""
    spec = plain_pod_spec()
    spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    kubectl.create(
        namespace,
        config_map(),
        config_map("app-cfg-87m5g5hd76"),
        config_map("settings", immutable=False),
        deployment(replicas=1),
        deployment("hashed", spec=reading_pod_spec("app-cfg-87m5g5hd76")),
        pod("plain", spec),
    )
    wait_for_rollout(kubectl, namespace)
    wait_for_rollout(kubectl, namespace, "hashed")
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/plain", "--timeout=60s")
    held = {found["name"]: found for found in ask(kubectl, "scan", "-n", namespace)["held"]}
    assert held.keys() == {"app-cfg", "app-cfg-87m5g5hd76"}
    assert (held["app-cfg"]["holders"], held["app-cfg"]["protected"]) == (["Deployment web"], False)
    before = {(f["what"], f["name"]): f["users"] for f in ask(kubectl, "scan", "-n", namespace)["findings"]}
    assert before == {
        ("Unprotected", "app-cfg"): ["Deployment web"],
        ("Unprotected", "app-cfg-87m5g5hd76"): ["Deployment hashed"],
        ("FixedName", "app-cfg"): ["Deployment web"],
        ("NotUpdated", "settings"): ["Pod plain"],
    }

    kubectl("delete", "-n", namespace, "configmap/app-cfg")
    kubectl.create(namespace, config_map(data={"MODE": "green"}))

    after = ask(kubectl, "scan", "-n", namespace)["findings"]
    assert {
        "what": "NameReused",
        "kind": "ConfigMap",
        "namespace": namespace,
        "name": "app-cfg",
        "users": ["Deployment web"],
    } in after
    text = run(kubectl.kubeconfig, "scan").stdout
    assert "NameReused (1)" in text
    assert "green" not in text


def test_what_may_not_be_read_is_told(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, tmp_path: Path
) -> None:
    """An answer that is incomplete must not look whole."""
    kubectl.create(namespace, config_map())
    kubectl("create", "serviceaccount", "reader", "-n", namespace)
    account = f"--serviceaccount={namespace}:reader"
    kubectl("create", "rolebinding", "reader", "-n", namespace, "--clusterrole=view", account)
    kubectl.create(namespace, ingress("cert"))
    kubeconfig = harness.account_kubeconfig(kubectl, tmp_path / "kubeconfig", "reader", namespace)

    done = run(kubeconfig, "refs", "cm", "app-cfg", "-n", namespace)

    assert done.returncode == 0
    assert "not looked at: no right to list persistentvolumes" in done.stdout
    assert "immutable" in done.stdout
    others = run(kubeconfig, "refs", "secret", "cert", "-n", namespace).stdout
    assert "Ingress" in others
    assert "no right to list ingresses.networking.k8s.io in other namespaces" in others


def test_errors_are_one_line(kubectl: Kubectl, tmp_path: Path) -> None:
    document = yaml.safe_load(kubectl.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{harness.free_port()}"
    nobody = tmp_path / "kubeconfig"
    nobody.touch(mode=0o600)
    nobody.write_text(yaml.safe_dump(document))

    done = run(nobody, "scan")

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error:")


@pytest.fixture
def protected(stopped_operator: Operator, kubectl: Kubectl, namespace: str) -> list[str]:
    """Objects that carry the finalizer, some of them deleted already, with no operator to release them."""
    names = [f"app-{i}" for i in range(40)]
    objects = [config_map(name) for name in names[:20]] + [secret(name) for name in names[20:]]
    for manifest in objects:
        manifest["metadata"]["finalizers"] = [IN_USE, "example.com/theirs"]
    kubectl.create(namespace, *objects)
    kubectl("delete", "-n", namespace, "configmap/app-0", "secret/app-20", "--wait=false")
    return names


def left(api: pykube.HTTPClient, namespace: str) -> list[str]:
    """Objects that still carry ours."""
    objects = [*fetch_all(api, pykube.ConfigMap, namespace), *fetch_all(api, pykube.Secret, namespace)]
    return [found["metadata"]["name"] for found in objects if IN_USE in finalizers(found)]


def test_uninstall_takes_every_finalizer_off(
    protected: list[str],
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    installed: None,
    tmp_path: Path,
) -> None:
    """G19: with exactly the rights that the shipped Job has; killed in the middle and run again; ours alone."""
    kubectl("apply", "-k", str(UNINSTALL))
    kubectl("delete", "job", "versionedconfig-uninstall", "-n", OPERATOR_NAMESPACE)
    kubeconfig = harness.account_kubeconfig(kubectl, tmp_path / "kubeconfig", "versionedconfig-uninstall")
    rendered = kubectl("kustomize", str(UNINSTALL.parent / "base")).stdout
    (shipped,) = (d for d in yaml.safe_load_all(rendered) if d and d["kind"] == "Deployment")
    kubectl("apply", "-f", "-", stdin=as_list([shipped]))
    wait_until(
        lambda: fetch_all(api, pykube.Pod, OPERATOR_NAMESPACE), 30, "the operator's Deployment has a pod"
    )
    try:
        command = [sys.executable, "-m", "versionedconfig", "uninstall", "--kubeconfig", str(kubeconfig)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
            wait_until(lambda: len(left(api, namespace)) < len(protected), 60, "the first ones are freed")
            os.kill(first.pid, signal.SIGKILL)

        done = run(kubeconfig, "uninstall", "--policies", "--crds")

        assert done.returncode == 0, done.stderr
        assert left(api, namespace) == []
        assert finalizers(fetch(api, pykube.ConfigMap, namespace, "app-1")) == ["example.com/theirs"]
        assert fetch_all(api, pykube.Pod, OPERATOR_NAMESPACE) == []
        kinds = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]
        if harness.rewrites_at_admission(kubectl):
            kinds += ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"]
        policies = kubectl("get", ",".join(kinds), "-o", "name").stdout
        assert "versionedconfig" not in policies
        assert "versionedconfigs.versionedconfig.io" not in kubectl("get", "crd", "-o", "name").stdout
        again = run(kubeconfig, "uninstall", "--policies", "--crds")
        assert again.returncode == 0, again.stderr
        assert "0 finalizers taken off, none is left" in again.stderr
    finally:
        kubectl("delete", "deployment", "versionedconfig", "-n", OPERATOR_NAMESPACE, "--ignore-not-found")
        kubectl("delete", "-k", str(UNINSTALL), "--ignore-not-found")
        for kind in (pykube.ConfigMap, pykube.Secret):
            for found in kind.objects(api, namespace=namespace):
                if found.name in protected:
                    found.patch({"metadata": {"finalizers": None}})
        harness.install(kubectl, api)
    wait_gone(api, namespace, "app-0")
