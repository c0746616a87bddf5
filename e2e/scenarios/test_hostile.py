"""What anybody with rights in one namespace may write, or spoil, harms nothing beyond it, and the operator not at all.

"It does not happen" is shown at the end of something that the operator did afterwards (`settle`).
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pykube
import pytest

from e2e import harness
from e2e.harness import (
    IN_USE,
    OPERATOR_USER,
    Kubectl,
    Manifest,
    Operator,
    Writes,
    config_map,
    custom_kind,
    deployment,
    fetch,
    fetch_all,
    finalizers,
    pod,
    reading_pod_spec,
    secret,
    settle,
    temporary_namespace,
    unscheduled,
    versioned_config,
    wait_gone,
    wait_protected,
    wait_until,
    wait_versioned,
)

OWNER = "versionedconfig.io/name"
SEED = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(2**32))


def told(api: pykube.HTTPClient, namespace: str, name: str = "app-cfg") -> Manifest:
    """The status of a VersionedConfig."""
    found = fetch(api, harness.versioned_configs(api), namespace, name)
    assert found is not None
    status: Manifest = found.get("status", {})
    return status


def version_of(api: pykube.HTTPClient, namespace: str, *, besides: str = "", timeout: float = 60) -> str:
    """The current version of `app-cfg`, once it is ready."""
    ready = wait_versioned(api, namespace, "app-cfg", timeout, besides=besides)
    return str(ready["status"]["currentVersion"])


def reason(api: pykube.HTTPClient, namespace: str, condition: str, name: str = "app-cfg") -> str:
    """Why a condition is True; empty where it is not."""
    for one in told(api, namespace, name).get("conditions", []):
        if one["type"] == condition and one["status"] == "True":
            return str(one["reason"])
    return ""


def states(api: pykube.HTTPClient, namespace: str) -> dict[str, str]:
    """Each target's state."""
    return {one["name"]: one.get("state", "") for one in told(api, namespace).get("targets", [])}


def mount(api: pykube.HTTPClient, namespace: str, name: str = "web") -> str:
    """The ConfigMap that a Deployment's template mounts."""
    found = fetch(api, pykube.Deployment, namespace, name)
    assert found is not None
    return str(found["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"])


def edit(kubectl: Kubectl, namespace: str, **spec: Any) -> None:
    """Merge into the spec of `app-cfg`."""
    kubectl("patch", "-n", namespace, "vcfg/app-cfg", "--type=merge", "-p", json.dumps({"spec": spec}))


def annotate(kubectl: Kubectl, namespace: str, name: str, *annotations: str) -> None:
    """Of a ConfigMap."""
    kubectl("annotate", "-n", namespace, "--overwrite", f"configmap/{name}", *annotations)


def attempts(log: Path, start: int, namespace: str, verb: str, plural: str) -> list[datetime]:
    """When the operator tried that in the namespace, refused or not."""
    with log.open("rb") as file:
        file.seek(start)
        found = [json.loads(line) for line in file.read().splitlines()]
    return [
        datetime.fromisoformat(event["requestReceivedTimestamp"])
        for event in found
        if event["verb"] == verb
        and event["user"]["username"] == OPERATOR_USER
        and event.get("objectRef", {}).get("namespace") == namespace
        and event["objectRef"]["resource"] == plural
        and event["stage"] == "ResponseComplete"
    ]


# -- what claims to be ours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim",
    [
        "../../../../../../../apis/versionedconfig.io/v1alpha1/namespaces/{victim}/versionedconfigs/app-cfg",
        "{victim}/app-cfg",
        "{victim}/../{victim}/app-cfg",
        "app-cfg",
    ],
)
def test_a_claim_in_one_namespace_touches_nothing_in_another(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path, claim: str
) -> None:
    """An annotation is anybody's to write; what it names must never become part of a request."""
    with temporary_namespace(kubectl, api, "victim") as victim:
        kubectl.create(victim, versioned_config("app-cfg", {"MODE": "one"}))
        version = version_of(api, victim)
        settle(kubectl, api, versions=True)
        before = told(api, victim)
        writes = Writes(audit_log)

        claimed = {OWNER: claim.format(victim=victim)}
        kubectl.create(namespace, config_map("plain", immutable=False, annotations=claimed))
        kubectl.create(namespace, config_map(version, annotations=claimed))
        kubectl("delete", "-n", namespace, "configmap/plain")
        settle(kubectl, api, versions=True)

        assert told(api, victim) == before
        assert not [line for line in writes.seen() if victim in line]


def test_what_only_claims_to_be_a_version_is_not_collected(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Mutable ones, copies under other names, copies from other namespaces: people's data."""
    name = "nobody-87m5g5hd76"
    own, other = {OWNER: f"{namespace}/nobody"}, {OWNER: "elsewhere/nobody"}
    kept = [
        config_map("backup", immutable=False, annotations=own),
        config_map("copy", annotations=own),
        config_map(name, annotations=other),
        config_map("nobody-87m5g5hd77", immutable=False, annotations=own),
    ]
    secrets = [secret("backup", annotations=own), secret(name, annotations=other)]

    kubectl.create(namespace, *kept, *secrets)
    settle(kubectl, api, versions=True)

    for one in kept:
        assert fetch(api, pykube.ConfigMap, namespace, one["metadata"]["name"]) is not None, one["metadata"]
    for one in secrets:
        assert fetch(api, pykube.Secret, namespace, one["metadata"]["name"]) is not None, one["metadata"]


def test_a_number_that_is_none_does_not_stop_the_operator(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Python refuses to read 5000 digits; the object would be read again at every start."""
    labels = {"app": "odd"}
    odd: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "odd", "annotations": {"deployment.kubernetes.io/revision": "9" * 5000}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": reading_pod_spec()},
        },
    }
    kubectl.create(namespace, odd)
    settle(kubectl, api)
    operator.kill()
    operator.start()
    settle(kubectl, api)


# -- what is refused -------------------------------------------------------------------------------------------------


@contextmanager
def denied(kubectl: Kubectl, namespace: str, message: str) -> Iterator[None]:
    """A policy that lets the operator change no Deployment there."""
    name = f"deny-{namespace}"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments"],
    }
    policy: Manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [rule],
            },
            "validations": [
                {"expression": f"request.userInfo.username != '{OPERATOR_USER}'", "message": message}
            ],
        },
    }
    binding: Manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    kubectl("create", "-f", "-", stdin=harness.as_list([policy, binding]))
    try:
        yield
    finally:
        kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)


def test_a_template_that_may_not_change_is_told_and_tried_ever_less(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path
) -> None:
    """A refusal is told in the status, and telling must not try again at once: that was 120 patches a second."""
    kubectl.create(namespace, deployment(replicas=0))
    with denied(kubectl, namespace, "no changes on Fridays"):
        wait_until(
            lambda: (
                kubectl(
                    *(
                        "patch",
                        "-n",
                        namespace,
                        "deployment/web",
                        "--type=merge",
                        "-p",
                        '{"spec":{"replicas":0}}',
                    ),
                    *(f"--as={OPERATOR_USER}", "--dry-run=server"),
                    check=False,
                ).returncode
            ),
            30,
            "the policy is in force",
        )
        start = audit_log.stat().st_size
        kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))
        wait_until(lambda: reason(api, namespace, "Degraded") == "TargetFailed", 30, "the refusal is told")
        (target,) = told(api, namespace)["targets"]
        assert "no changes on Fridays" in target["message"]
        wait_until(
            lambda: len(attempts(audit_log, start, namespace, "patch", "deployments")) >= 5, 60, "5 tries"
        )
        tries = attempts(audit_log, start, namespace, "patch", "deployments")
        # Dry runs by the same user are older than `start`; what counts are the operator's own.
        gaps = [(after - before).total_seconds() for before, after in pairwise(tries)]
        assert len(tries) <= 6, f"{len(tries)} tries"
        assert gaps[3] > 2 * gaps[0], gaps
    wait_until(lambda: states(api, namespace) == {"web": "Updated"}, 60, "it goes on when it may")


def test_a_version_that_is_refused_is_tried_ever_less(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, audit_log: Path
) -> None:
    kubectl("create", "quota", "none", "-n", namespace, "--hard=count/configmaps=1")
    wait_until(
        lambda: kubectl("get", "quota/none", "-n", namespace, "-o", "jsonpath={.status.used}").stdout,
        30,
        "the quota counts",
    )
    start = audit_log.stat().st_size

    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))

    wait_until(lambda: reason(api, namespace, "Stalled") == "VersionRefused", 30, "the refusal is told")
    wait_until(lambda: len(attempts(audit_log, start, namespace, "create", "configmaps")) >= 5, 60, "5 tries")
    tries = attempts(audit_log, start, namespace, "create", "configmaps")
    gaps = [(after - before).total_seconds() for before, after in pairwise(tries)]
    assert gaps[3] > 2 * gaps[0], gaps
    kubectl("delete", "quota/none", "-n", namespace)
    version_of(api, namespace, timeout=60)


def test_nothing_is_made_in_an_excluded_namespace(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient
) -> None:
    """With ordered deletion the operator's pod would go first, and nobody would release what it made there."""
    name = "app-cfg"
    where = "kube-system"
    kubectl.create(where, versioned_config(name, {"MODE": "one"}), deployment("excluded", replicas=0))
    try:
        wait_until(lambda: reason(api, where, "Stalled") == "NamespaceExcluded", 30, "it is told")
        settle(kubectl, api, versions=True)
        assert not fetch_all(api, pykube.ConfigMap, where, {OWNER: name})
        assert mount(api, where, "excluded") == name
    finally:
        kubectl("delete", "-n", where, f"vcfg/{name}", "deployment/excluded")


# -- what changes quickly, or was spoilt -----------------------------------------------------------------------------


def test_quick_changes_leave_nobody_behind(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A, B, A, B …: a move under way when the content changes back is no undo."""
    print(f"E2E_SEED={SEED}")
    rng = random.Random(SEED)
    names = ["w0", "w1", "w2"]
    config = versioned_config("app-cfg", {"MODE": "A"}, rollout={"settleSeconds": 0})
    kubectl.create(namespace, config, *(deployment(name, replicas=1) for name in names))
    wait_until(lambda: states(api, namespace) == dict.fromkeys(names, "Updated"), 60, "all are through")
    live = harness.versioned_configs(api).objects(api, namespace=namespace).get_by_name("app-cfg")

    number = 0
    for burst in range(8):
        for _ in range(rng.randint(2, 9)):
            number += 1
            live.patch({"spec": {"data": {"MODE": "AB"[number % 2]}}})
            time.sleep(rng.choice([0, 0.01, 0.03, 0.08, 0.2]))  # no wait: meets moves at every stage
        current = version_of(api, namespace)

        found = fetch(api, pykube.ConfigMap, namespace, current)
        assert found is not None
        assert found["data"] == {"MODE": "AB"[number % 2]}
        assert states(api, namespace) == dict.fromkeys(names, "Updated"), f"burst {burst}"
        assert {mount(api, namespace, name) for name in names} == {current}


def test_a_failed_target_does_not_keep_others_from_starting(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """Nothing has the logical name, so pods of a new Deployment could not start at all."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}))
    version_of(api, namespace)
    stuck = deployment("bad", unscheduled(reading_pod_spec()), replicas=1, progressDeadlineSeconds=2)
    kubectl.create(namespace, stuck)
    wait_until(lambda: states(api, namespace).get("bad") == "Failed", 60, "bad has failed")

    kubectl.create(namespace, deployment("new", replicas=1))

    wait_until(lambda: states(api, namespace).get("new") == "Updated", 60, "new has started")


def test_a_lost_owner_annotation_is_restored(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """The status remembers which versions are ours."""
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}), deployment(replicas=0))
    version = version_of(api, namespace)
    wait_until(lambda: mount(api, namespace) == version, 30, "web has moved")

    annotate(kubectl, namespace, version, f"{OWNER}-")
    edit(kubectl, namespace, data={"MODE": "two"})

    current = version_of(api, namespace, besides=version)
    wait_until(lambda: mount(api, namespace) == current, 30, "web has moved on")
    annotate(kubectl, namespace, current, f"{OWNER}-")
    edit(kubectl, namespace, historyLimit=3)
    wait_until(
        lambda: (fetch(api, pykube.ConfigMap, namespace, current) or {})["metadata"]["annotations"].get(
            OWNER
        ),
        30,
        "the annotation is back",
    )


def test_spoilt_bookkeeping_heals(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}), deployment(replicas=0))
    version = version_of(api, namespace)
    annotate(kubectl, namespace, version, "versionedconfig.io/propagated=garbage")
    status = json.dumps({"status": {"targets": [{"kind": "Deployment", "name": "web"}], "versions": None}})
    kubectl("patch", "-n", namespace, "vcfg/app-cfg", "--subresource=status", "--type=merge", "-p", status)

    edit(kubectl, namespace, metadata={"labels": {"team": "blue"}})

    def labelled() -> bool:
        found = fetch(api, pykube.ConfigMap, namespace, version)
        return found is not None and found["metadata"]["labels"].get("team") == "blue"

    wait_until(labelled, 30, "the label is there")
    operator.kill()
    operator.start()
    wait_until(lambda: states(api, namespace) == {"web": "Updated"}, 30, "the status is whole again")


# -- opting out ------------------------------------------------------------------------------------------------------


def test_an_object_that_was_released_by_hand_stays_released(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """What the guard's message tells people to do: annotate, then take the finalizer off."""
    kubectl.create(namespace, config_map(), pod("holder", unscheduled(reading_pod_spec())))
    wait_protected(api, namespace)
    annotate(kubectl, namespace, "app-cfg", "versionedconfig.io/release=the release is stuck")

    kubectl.strip(namespace, "configmap/app-cfg")
    settle(kubectl, api)

    assert IN_USE not in finalizers(fetch(api, pykube.ConfigMap, namespace, "app-cfg"))
    kubectl("delete", "-n", namespace, "configmap/app-cfg", "--timeout=10s")


def test_ignored_objects_are_neither_collected_nor_held_for_ever(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    ignore = f"{harness.IGNORE}=true"
    kubectl.create(namespace, versioned_config("app-cfg", {"MODE": "one"}, historyLimit=0))
    first = version_of(api, namespace)
    annotate(kubectl, namespace, first, ignore)
    edit(kubectl, namespace, data={"MODE": "two"})
    second = version_of(api, namespace, besides=first)
    edit(kubectl, namespace, data={"MODE": "three"})
    wait_gone(api, namespace, second)  # beyond the limit, as the first one is
    assert fetch(api, pykube.ConfigMap, namespace, first) is not None

    kubectl.create(namespace, config_map("held"), pod("holder", unscheduled(reading_pod_spec("held"))))
    wait_protected(api, namespace, "held")
    annotate(kubectl, namespace, "held", ignore)
    kubectl("delete", "-n", namespace, "configmap/held", "--wait=false")
    kubectl("delete", "-n", namespace, "pod/holder")
    wait_gone(api, namespace, "held")


# -- objects that are meant to break a reader ------------------------------------------------------------------------


def nested_object(kind: str, name: str, **more: Any) -> str:
    """As deep as nobody reads; the API server takes ten thousand levels."""
    fields = '{"f:a":' * 1500 + "{}" + "}" * 1500
    api_version = "versionedconfig.io/v1alpha1" if kind == "VersionedConfig" else "v1"
    entry = '{"manager":"x","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","time":"2020-01-01T00:00:00Z"'
    return (
        f'{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{"name":"{name}","managedFields":[{entry}'
        f',"fieldsV1":{fields}}}]}}, {json.dumps(more)[1:]}'
    )


@pytest.fixture
def deep_reader() -> Iterator[None]:
    """The tests' own client reads such objects too."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    yield
    sys.setrecursionlimit(before)


def test_objects_nested_deep_stop_nobody(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, deep_reader: None, namespace: str
) -> None:
    """Anybody with rights in one namespace can write them."""
    base = f"/api/v1/namespaces/{namespace}"
    spec = unscheduled(reading_pod_spec())
    for path, body in (
        (f"{base}/configmaps", nested_object("ConfigMap", "app-cfg", data={"MODE": "blue"}, immutable=True)),
        (f"{base}/pods", nested_object("Pod", "holder", spec=spec)),
        (
            f"/apis/versionedconfig.io/v1alpha1/namespaces/{namespace}/versionedconfigs",
            nested_object("VersionedConfig", "app", spec={"data": {"MODE": "blue"}}),
        ),
    ):
        kubectl("create", "--raw", path, "-f", "-", stdin=body)

    wait_protected(api, namespace)
    operator.kill()
    operator.start()
    wait_versioned(api, namespace, "app")
    settle(kubectl, api, versions=True)


BROKEN_CRD = "clusterissuers.cert-manager.io"


def test_a_kind_that_cannot_be_read_stops_nothing_but_what_it_may_hold(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """A definition whose conversion webhook is gone, as a half-removed operator leaves it."""
    crd = custom_kind("cert-manager.io", "ClusterIssuer", "clusterissuers", "Cluster", ["v1alpha2", "v1"])
    kubectl.create(namespace, crd)
    try:
        kubectl("wait", "--for=condition=Established", f"crd/{BROKEN_CRD}", "--timeout=60s")
        issuer = {
            "apiVersion": "cert-manager.io/v1alpha2",
            "kind": "ClusterIssuer",
            "metadata": {"name": "i"},
        }
        wait_until(
            lambda: kubectl("create", "-f", "-", stdin=json.dumps(issuer), check=False).returncode == 0,
            30,
            "it is served",
        )
        service = {"namespace": namespace, "name": "gone", "path": "/convert"}
        webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
        conversion = {"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}
        kubectl("patch", "crd", BROKEN_CRD, "--type=merge", "-p", json.dumps(conversion))
        wait_until(
            lambda: kubectl("get", "clusterissuers.v1.cert-manager.io", check=False).returncode != 0,
            30,
            "it cannot be read",
        )

        operator.kill()
        operator.start()
        kubectl.create(
            namespace, config_map(), secret("other"), pod("holder", unscheduled(reading_pod_spec()))
        )
        wait_protected(api, namespace)
        kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
        kubectl("delete", "-n", namespace, "pod/holder")
        wait_gone(api, namespace)
    finally:
        back = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
        kubectl("patch", "crd", BROKEN_CRD, "--type=merge", "-p", json.dumps(back))
        kubectl("delete", "crd", BROKEN_CRD)
