"""Cluster-scoped objects hold what they refer to, as pods do (G13 to G16 of the acceptance cases); the rules alone are
tested in tests/references."""

from collections.abc import Iterator
from typing import Any

import pykube
import pytest

from e2e.harness import (
    IN_USE,
    Kubectl,
    Manifest,
    Operator,
    as_list,
    config_map,
    custom_kind,
    events,
    fetch,
    finalizers,
    persistent_volume,
    plain_pod_spec,
    pod,
    secret,
    settle,
    unscheduled,
    wait_gone,
    wait_protected,
    wait_until,
)


@pytest.fixture
def cluster_scoped(kubectl: Kubectl) -> Iterator[list[Manifest]]:
    """Objects that go when the test ends."""
    made: list[Manifest] = []
    yield made
    for manifest in made:
        kubectl(
            "delete", manifest["kind"], manifest["metadata"]["name"], "--ignore-not-found", "--wait=false"
        )


def test_a_volume_holds_its_secret(
    operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    cluster_scoped: list[Manifest],
) -> None:
    """G13: it can be deleted, stays while the volume is there, and the Event says who holds it."""
    pv = persistent_volume(f"pv-{namespace}", namespace, "stage")
    cluster_scoped.append(pv)
    kubectl.create(namespace, secret("stage", immutable=True), secret("other", immutable=True))
    kubectl.create(namespace, pv)
    wait_protected(api, namespace, "stage", kind=pykube.Secret)

    kubectl("delete", "-n", namespace, "secret/stage", "secret/other", "--wait=false")
    (event,) = wait_until(
        lambda: events(api, namespace, "stage", "DeletionBlocked"), 15, "an Event tells who holds it"
    )
    assert f"1 object that uses it: PersistentVolume pv-{namespace}." in event["message"]
    assert fetch(api, pykube.Secret, namespace, "other") is None

    kubectl("delete", "persistentvolume", f"pv-{namespace}")
    wait_gone(api, namespace, "stage", kind=pykube.Secret)


def test_a_class_with_variables_holds_for_each_claim(
    operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    cluster_scoped: list[Manifest],
) -> None:
    """G13"""
    prefix = "csi.storage.k8s.io/provisioner-secret"
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": f"class-{namespace}"},
        "provisioner": "ex.csi",
        "parameters": {f"{prefix}-name": "prov-${pvc.name}", f"{prefix}-namespace": "${pvc.namespace}"},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": f"class-{namespace}",
        },
    }
    cluster_scoped.append(storage_class)
    kubectl.create(
        namespace, secret("prov-data", immutable=True), secret("prov-other", immutable=True), claim
    )
    kubectl.create(namespace, storage_class)
    wait_protected(api, namespace, "prov-data", kind=pykube.Secret)
    assert IN_USE not in finalizers(fetch(api, pykube.Secret, namespace, "prov-other"))

    kubectl("delete", "-n", namespace, "secret/prov-data", "--wait=false")
    kubectl("delete", "-n", namespace, "pvc/data")
    wait_gone(api, namespace, "prov-data", kind=pykube.Secret)


@pytest.mark.parametrize("flavour", ["Validating", "Mutating"])
def test_a_binding_holds_its_parameter(
    operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    cluster_scoped: list[Manifest],
    flavour: str,
) -> None:
    """G15: a ConfigMap whose deletion could block a whole cluster."""
    name = f"limits-{flavour.lower()}-{namespace}"
    never = {
        "resourceRules": [
            {
                "apiGroups": ["example.com"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["none"],
            }
        ]
    }
    rules: dict[str, Any] = {
        "Validating": {"validations": [{"expression": "params.data.max != ''"}]},
        "Mutating": {
            "reinvocationPolicy": "Never",
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {
                        "expression": "Object{metadata: Object.metadata{labels: Object.metadata.labels{a: params.data.max}}}"
                    },
                }
            ],
        },
    }
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{flavour}AdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": never,
            **rules[flavour],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{flavour}AdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "paramRef": {
                "namespace": namespace,
                "parameterNotFoundAction": "Deny",
                "selector": {"matchLabels": {"use": "limits"}},
            },
            **({"validationActions": ["Deny"]} if flavour == "Validating" else {}),
        },
    }
    cluster_scoped += [policy, binding]
    chosen = config_map("by-label", {"max": "7"}, immutable=True)
    chosen["metadata"]["labels"] = {"use": "limits"}
    kubectl.create(namespace, chosen, config_map("other", {"max": "7"}, immutable=True))
    for manifest in (policy, binding):
        kubectl.create(namespace, manifest)
    wait_protected(api, namespace, "by-label")
    assert IN_USE not in finalizers(fetch(api, pykube.ConfigMap, namespace, "other"))

    # It begins to match, and ceases to.
    kubectl("label", "-n", namespace, "configmap/other", "use=limits")
    wait_protected(api, namespace, "other")
    kubectl("delete", "-n", namespace, "configmap/other", "--wait=false")
    kubectl("label", "-n", namespace, "configmap/other", "use-")
    wait_gone(api, namespace, "other")

    kubectl("delete", "-n", namespace, "configmap/by-label", "--wait=false")
    kubectl("delete", f"{flavour}AdmissionPolicyBinding", name)
    wait_gone(api, namespace, "by-label")


def is_served(kubectl: Kubectl, manifest: Manifest) -> bool:
    return kubectl("create", "-f", "-", stdin=as_list([manifest]), check=False).returncode == 0


CRD_NAME = "gatewayclasses.gateway.networking.k8s.io"


def test_a_kind_is_noticed_when_its_crd_appears(
    operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    cluster_scoped: list[Manifest],
) -> None:
    """G17: the operator runs without the kind, and holds for it as soon as it is served."""
    crd = custom_kind("gateway.networking.k8s.io", "GatewayClass", "gatewayclasses", "Cluster")
    gateway_class = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": f"class-{namespace}"},
        "spec": {
            "controllerName": "example.com/gateway",
            "parametersRef": {"group": "", "kind": "ConfigMap", "name": "gateway", "namespace": namespace},
        },
    }
    cluster_scoped.append(crd)
    kubectl.create(namespace, crd)
    kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=60s")
    kubectl.create(namespace, config_map("gateway", immutable=True))
    wait_until(lambda: is_served(kubectl, gateway_class), 30, "the new kind is served")
    wait_protected(api, namespace, "gateway", timeout=60)

    # The kind goes, and with it its objects.
    kubectl("delete", "-n", namespace, "configmap/gateway", "--wait=false")
    kubectl("delete", "crd", CRD_NAME)
    wait_gone(api, namespace, "gateway", timeout=60)


def test_pull_secrets_of_an_account_hold_through_its_pods(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """G12: admission copies them into each pod; the account itself only follows."""
    docker = {**secret("reg", {".dockerconfigjson": "{}"}), "type": "kubernetes.io/dockerconfigjson"}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "puller"},
        "imagePullSecrets": [{"name": "reg"}],
    }
    kubectl.create(namespace, docker, account)
    settle(kubectl, api)
    assert IN_USE not in finalizers(fetch(api, pykube.Secret, namespace, "reg"))

    kubectl.create(namespace, pod("p", unscheduled(plain_pod_spec(serviceAccountName="puller"))))
    wait_protected(api, namespace, "reg", kind=pykube.Secret)
    kubectl(
        "patch", "-n", namespace, "serviceaccount/puller", "--type=merge", "-p", '{"imagePullSecrets":null}'
    )
    kubectl("delete", "-n", namespace, "secret/reg", "--wait=false")
    settle(kubectl, api)
    assert IN_USE in finalizers(fetch(api, pykube.Secret, namespace, "reg"))
    kubectl("delete", "-n", namespace, "pod/p")
    wait_gone(api, namespace, "reg", kind=pykube.Secret)
