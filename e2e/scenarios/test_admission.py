"""What the API server itself accepts, refuses and warns of: the CRD's rules and the two admission policies.

The operator does not take part.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pykube
import pytest

from e2e.harness import Kubectl, config_map, secret, versioned_config

OPERATOR = "system:serviceaccount:versionedconfig-system:versionedconfig"
OTHER_ACCOUNT = "system:serviceaccount:default:versionedconfig"
IN_USE = "versionedconfig.io/in-use"
RELEASE = "versionedconfig.io/release"
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("installed", "stopped_operator")


@pytest.fixture
def namespace(namespace: str, api: pykube.HTTPClient) -> Iterator[str]:
    """Fresh; in the end nothing in it is left protected, since no operator is there to release it."""
    yield namespace
    for kind in (pykube.ConfigMap, pykube.Secret):
        for found in kind.objects(api, namespace=namespace):
            if IN_USE in found.metadata.get("finalizers", []):
                patch_as_operator(api, namespace, f"{kind.endpoint}/{found.name}", STRATEGIC)


def patch_as_operator(
    api: pykube.HTTPClient,
    namespace: str,
    resource: str,
    patch: str,
    kind: str = "strategic-merge-patch",
    version: str = "v1",
) -> None:
    """A PATCH alone, under the operator's own role: `kubectl patch` reads first, which that role does not allow for
    everything."""
    answer = api.patch(
        version=version,
        namespace=namespace,
        url=resource,
        data=patch,
        headers={"Content-Type": f"application/{kind}+json", "Impersonate-User": OPERATOR},
    )
    api.raise_for_status(answer)


# -- VersionedConfigs ------------------------------------------------------------------------------------------------

TEXT = {"k": "v"}
BINARY = {"k": base64.b64encode(b"\xff\x00").decode()}
KEY_RULE = "a key cannot be a file name in a pod"
CONCURRENT_RULE = "maxConcurrent must be a number from 1, or a percentage from 1% to 100%"


def base64_of(size: int) -> str:
    """Base64 of that many bytes."""
    return base64.b64encode(b"\xff" * size).decode()


def of(**spec: Any) -> dict[str, Any]:
    """A VersionedConfig with this spec; `metadata_name` gives it another name than app."""
    name = spec.pop("metadata_name", "app")
    return {**versioned_config(name, {}), "spec": spec}


GOOD = {
    "text": of(data=TEXT),
    "empty value": of(data={"k": ""}),
    "binary": of(binaryData=BINARY),
    "text and binary": of(data={"a": "b"}, binaryData=BINARY),
    "empty binary": of(binaryData={"k": ""}),
    "binary with every character of base64": of(
        binaryData={"k": base64.b64encode(bytes(range(256))).decode()}
    ),
    "binary in lines": of(binaryData={"k": base64.encodebytes(b"\xff" * 100).decode()}),
    "unusual but good keys": of(data={".env": "", "-": "", "_": "", "a..b": "", ".a.": "", "A" * 253: ""}),
    "unicode": of(data={"k": "grüße 👋\r\n\u2028\x01"}),
    "exactly 1 MiB of text": of(data={"a": "x" * (MIB - 1), "b": "y"}),
    "exactly 1 MiB of binary": of(binaryData={"k": base64_of(MIB)}),
    "exactly 1 MiB of binary in lines": of(binaryData={"k": base64.encodebytes(b"\xff" * MIB).decode()}),
    "longest name": of(metadata_name="a" * 242, data=TEXT),
    "4096 of the longest keys": of(data={f"{number:0253d}": "" for number in range(4096)}),
    "metadata": of(
        data=TEXT,
        metadata={
            "labels": {"team": "shop", "example.com/tier": "", "a.b-c.example/X_y.z": "1"},
            "annotations": {"example.com/note": "any text: ü\n", "notversionedconfig.io/x": ""},
        },
    ),
    "rollout in numbers": of(
        data=TEXT,
        rollout={"maxConcurrent": 3, "settleSeconds": 0, "progressDeadlineSeconds": 1, "paused": True},
    ),
    "the smallest percentage": of(data=TEXT, rollout={"maxConcurrent": "1%"}),
    "the largest percentage": of(data=TEXT, rollout={"maxConcurrent": "100%"}),
    "no history": of(data=TEXT, historyLimit=0),
}

# The schema has them, the operator says that it does not do them yet.
NOT_SUPPORTED_YET = {
    "Secret": of(kind="Secret", data=BINARY),
    "Secret of a type": of(kind="Secret", type="kubernetes.io/tls", data={"tls.crt": "", "tls.key": ""}),
    "stringData over data": of(kind="Secret", data=BINARY, stringData=TEXT),
    "a Secret of 1 MiB": of(kind="Secret", data={"k": base64_of(MIB)}),
    "from": of(**{"from": [{"kind": "Secret", "name": "db"}]}),
    "from some keys": of(data=TEXT, **{"from": [{"kind": "ConfigMap", "name": "x", "keys": ["a", "b"]}]}),
    "targets by name": of(data=TEXT, rollout={"targets": [{"kind": "Deployment", "name": "web"}]}),
    "targets by label": of(
        data=TEXT,
        rollout={"targets": [{"kind": "StatefulSet", "selector": {"matchLabels": {"tier": "web"}}}]},
    ),
    "pin": of(data=TEXT, pin="87m5g5hd76"),
    "deletionPolicy": of(data=TEXT, deletionPolicy="Delete"),
    "onFailure": of(data=TEXT, rollout={"onFailure": "Rollback"}),
}

BAD = {
    "nothing": (of(), "there is nothing in it"),
    "nothing but empty maps": (of(data={}, binaryData={}, **{"from": []}), "there is nothing in it"),
    "no spec": ({**of(), "spec": None}, "spec: Required value"),
    "a field that is none": (of(data=TEXT, datas=TEXT), 'unknown field "spec.datas"'),
    "another kind": (of(kind="Pod", data=TEXT), 'supported values: "ConfigMap", "Secret"'),
    "type of a ConfigMap": (of(type="Opaque", data=TEXT), "type is for kind Secret"),
    "stringData of a ConfigMap": (of(stringData=TEXT), "stringData is for kind Secret"),
    "binaryData of a Secret": (of(kind="Secret", binaryData=BINARY), "binaryData is for kind ConfigMap"),
    "a key twice": (of(data=TEXT, binaryData=BINARY), "a key is in both data and binaryData"),
    "a slash in a key": (of(data={"a/b": ""}), KEY_RULE),
    "a space in a key": (of(data={"a b": ""}), KEY_RULE),
    "a newline after a key": (of(data={"a\n": ""}), KEY_RULE),
    "a letter with an accent in a key": (of(data={"é": ""}), KEY_RULE),
    "an empty key": (of(data={"": ""}), KEY_RULE),
    "a dot as a key": (of(data={".": ""}), KEY_RULE),
    "two dots as a key": (of(data={"..": ""}), KEY_RULE),
    "two dots before a key": (of(data={"..data": ""}), KEY_RULE),
    "a bad key in binaryData": (of(binaryData={"a/b": ""}), KEY_RULE),
    "a bad key in stringData": (of(kind="Secret", stringData={"a/b": ""}), KEY_RULE),
    "a key too long": (of(data={"a" * 254: ""}), "a key is too long: use at most 253"),
    "too many keys": (of(data={f"k{number}": "" for number in range(4097)}), "must have at most 4096 items"),
    "a value that is no text": (of(data={"k": 1}), "must be of type string"),
    "binaryData that is not base64": (
        of(binaryData={"k": "no base64!"}),
        "spec.binaryData.k in body should match",
    ),
    "text too large": (of(data={"a": "x" * MIB, "b": "y"}), "the values are too large"),
    "binary too large": (
        of(binaryData={"a": base64_of(MIB // 2), "b": base64_of(MIB * 5 // 8)}),
        "the values are too large",
    ),
    "both together too large": (
        of(data={"a": "x" * (MIB // 2)}, binaryData={"k": base64_of(MIB * 5 // 8)}),
        "the values are too large",
    ),
    "name too long": (
        of(metadata_name="a" * 243, data=TEXT),
        "metadata.name is too long: use at most 242 characters",
    ),
    "our prefix as a label": (
        of(data=TEXT, metadata={"labels": {"versionedconfig.io/name": "x"}}),
        "labels that start with versionedconfig.io/ are the operator's",
    ),
    "our prefix as an annotation": (
        of(data=TEXT, metadata={"annotations": {"versionedconfig.io/sha256": "x"}}),
        "annotations that start with versionedconfig.io/ are the operator's",
    ),
    "a label key that is none": (of(data=TEXT, metadata={"labels": {"-x": ""}}), "a key is no label key"),
    "a label value that is none": (of(data=TEXT, metadata={"labels": {"x": "a b"}}), "labels.x"),
    "an annotation key that is none": (
        of(data=TEXT, metadata={"annotations": {"a/b/c": ""}}),
        "a key is no annotation key",
    ),
    **{
        f"maxConcurrent {value!r}": (of(data=TEXT, rollout={"maxConcurrent": value}), CONCURRENT_RULE)
        for value in (0, -1, "0%", "101%", "3", "01%", "1.5%", "", "a%", "25 %")
    },
    "settleSeconds below zero": (of(data=TEXT, rollout={"settleSeconds": -1}), "greater than or equal to 0"),
    "settleSeconds too long": (of(data=TEXT, rollout={"settleSeconds": 301}), "less than or equal to 300"),
    "no time to progress": (
        of(data=TEXT, rollout={"progressDeadlineSeconds": 0}),
        "greater than or equal to 1",
    ),
    "onFailure unknown": (of(data=TEXT, rollout={"onFailure": "Ignore"}), '"Rollback", "Pause"'),
    "a target without a choice": (
        of(data=TEXT, rollout={"targets": [{"kind": "Deployment"}]}),
        "either name or selector",
    ),
    "a target with both": (
        of(data=TEXT, rollout={"targets": [{"kind": "Deployment", "name": "a", "selector": {}}]}),
        "either name or selector",
    ),
    "from without a name": (of(**{"from": [{"kind": "Secret"}]}), "spec.from[0].name: Required value"),
    "a pin that is no hash": (of(data=TEXT, pin="app-87m5g5hd76"), "spec.pin"),
    "historyLimit below zero": (of(data=TEXT, historyLimit=-1), "greater than or equal to 0"),
    "deletionPolicy unknown": (of(data=TEXT, deletionPolicy="Orphan"), '"RetainInUse", "Delete"'),
}


@pytest.mark.parametrize(
    "manifest", [*GOOD.values(), *NOT_SUPPORTED_YET.values()], ids=[*GOOD, *NOT_SUPPORTED_YET]
)
def test_accepts(kubectl: Kubectl, manifest: dict[str, Any]) -> None:
    created = kubectl("create", "-n", "default", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest))

    assert created.stderr == ""


@pytest.mark.parametrize(("manifest", "message"), list(BAD.values()), ids=list(BAD))
def test_refuses(kubectl: Kubectl, manifest: dict[str, Any], message: str) -> None:
    created = kubectl(
        "create", "-n", "default", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), check=False
    )

    assert created.returncode != 0
    assert message in created.stderr


def test_refusal_does_not_repeat_secret_values(kubectl: Kubectl) -> None:
    marker = "hunter2-marker"
    manifests = [
        of(kind="Secret", data={"a/b": marker}, stringData={"..": marker}),
        of(kind="Secret", data={"k": marker}, binaryData={"k": "AAAA"}),
        of(kind="ConfigMap", stringData={"k": marker}),
        of(kind="Secret", stringData={"k": marker + "x" * MIB}),
        of(kind="Secret", data={"k": marker + "x" * 1_500_000}),
        of(kind="Secret", stringData={"k": {"nested": marker}}),
        of(kind="Secret", stringData={"k": [marker]}),
    ]
    for manifest in manifests:
        created = kubectl(
            "create", "-n", "default", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), check=False
        )

        assert created.returncode != 0
        assert marker not in created.stderr


def test_defaults(kubectl: Kubectl, namespace: str) -> None:
    kubectl.create(namespace, of(data=TEXT))

    stored = json.loads(kubectl("get", "-n", namespace, "vcfg/app", "-o", "json").stdout)

    assert stored["spec"] == {
        "kind": "ConfigMap",
        "data": TEXT,
        "rollout": {
            "maxConcurrent": "25%",
            "settleSeconds": 1,
            "progressDeadlineSeconds": 600,
            "minReadySeconds": 5,
            "onFailure": "Rollback",
            "paused": False,
        },
        "historyLimit": 10,
        "deletionPolicy": "RetainInUse",
        "alias": {"enabled": False},
    }


def test_kind_and_type_cannot_change(kubectl: Kubectl, namespace: str) -> None:
    def patch(name: str, spec: dict[str, Any]) -> str:
        change = json.dumps({"spec": spec})
        return kubectl(
            "patch", "-n", namespace, f"vcfg/{name}", "--type=merge", "-p", change, check=False
        ).stderr

    kubectl.create(
        namespace,
        of(data=TEXT),
        of(metadata_name="opaque", kind="Secret", data=BINARY),
        of(metadata_name="tls", kind="Secret", type="kubernetes.io/tls", data={"tls.crt": "", "tls.key": ""}),
    )

    assert "kind cannot change" in patch("app", {"kind": "Secret"})
    assert "kind cannot change" in patch("opaque", {"kind": None})
    assert "type cannot change" in patch("opaque", {"type": "kubernetes.io/tls"})
    assert "type cannot change" in patch("tls", {"type": None})
    assert patch("opaque", {"type": "Opaque"}) == ""
    assert patch("opaque", {"type": None}) == ""
    assert patch("app", {"data": {"k": "changed"}}) == ""


def test_status_is_apart_and_shown(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    now = "2025-01-02T03:04:05Z"
    condition = {"message": "", "lastTransitionTime": now, "observedGeneration": 1}
    target = {"version": "app-87m5g5hd76", "since": now, "fromRevision": 3}
    status = {
        "observedGeneration": 1,
        "currentVersion": "app-87m5g5hd76",
        "currentSince": now,
        "targetsSummary": "1/2",
        "versions": [{"name": "app-87m5g5hd76", "hash": "87m5g5hd76", "created": now, "state": "Current"}],
        "targets": [
            {"kind": "Deployment", "name": "api", "state": "Updated", **target},
            {"kind": "Deployment", "name": "web", "state": "Failed", "message": "why", **target},
        ],
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "TargetFailed", **condition},
            {"type": "Degraded", "status": "True", "reason": "TargetFailed", **condition},
        ],
    }
    kubectl.create(namespace, {**of(data=TEXT), "status": status})
    assert "status" not in json.loads(kubectl("get", "-n", namespace, "vcfg/app", "-o", "json").stdout)

    change = json.dumps({"status": status, "spec": {"data": None}})
    version = "versionedconfig.io/v1alpha1"
    patch_as_operator(api, namespace, "versionedconfigs/app/status", change, "merge-patch", version)

    stored = json.loads(kubectl("get", "-n", namespace, "vcfg/app", "-o", "json").stdout)
    assert stored["status"] == status
    assert stored["spec"]["data"] == TEXT
    header, row = kubectl("get", "-n", namespace, "vcfg", "-o", "wide").stdout.splitlines()
    assert header.split() == ["NAME", "KIND", "VERSION", "TARGETS", "READY", "REASON", "AGE"]
    assert row.split()[:-1] == ["app", "ConfigMap", "app-87m5g5hd76", "1/2", "False", "TargetFailed"]


def test_applying_again_changes_nothing(kubectl: Kubectl, namespace: str) -> None:
    manifest = json.dumps(of(data=TEXT, rollout={"maxConcurrent": 2}))
    for how in (["apply"], ["apply", "--server-side", "--force-conflicts"]):
        kubectl(*how, "-n", namespace, "-f", "-", stdin=manifest)

        again = kubectl(*how, "-n", namespace, "-f", "-", stdin=manifest)
        difference = kubectl("diff", "-n", namespace, "-f", "-", stdin=manifest, check=False)

        assert "unchanged" in again.stdout or "serverside-applied" in again.stdout
        assert (difference.returncode, difference.stdout) == (0, "")
    stored = json.loads(kubectl("get", "-n", namespace, "vcfg/app", "-o", "json").stdout)
    assert stored["metadata"]["generation"] == 1


STRATEGIC = json.dumps({"metadata": {"$deleteFromPrimitiveList/finalizers": [IN_USE]}})
JSON_PATCH = json.dumps([{"op": "remove", "path": "/metadata/finalizers/0"}])


# -- deletion of what is in use --------------------------------------------------------------------------------------


def in_use(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same object as the operator has it while pods use it."""
    return {**manifest, "metadata": {**manifest["metadata"], "finalizers": [IN_USE]}}


@pytest.mark.parametrize(
    ("resource", "manifest"),
    [("configmaps/app-cfg", config_map()), ("secrets/app-cfg", secret("app-cfg"))],
    ids=["ConfigMap", "Secret"],
)
class TestDeletion:
    def test_in_use_warns_and_goes_on(
        self, kubectl: Kubectl, namespace: str, resource: str, manifest: dict[str, Any]
    ) -> None:
        kubectl.create(namespace, in_use(manifest))

        deleted = kubectl("delete", "-n", namespace, resource, "--wait=false")

        assert deleted.stderr.startswith("Warning: ")
        assert f"{manifest['kind']} app-cfg is in use: its deletion waits" in deleted.stderr
        shows = f"`versionedconfig refs {manifest['kind'].lower()} app-cfg -n {namespace}` shows who uses it"
        assert shows in deleted.stderr
        assert "use a new name" in deleted.stderr
        stored = json.loads(kubectl("get", "-n", namespace, resource, "-o", "json").stdout)
        assert stored["metadata"]["deletionTimestamp"]

    def test_not_in_use_does_not_warn(
        self, kubectl: Kubectl, namespace: str, resource: str, manifest: dict[str, Any]
    ) -> None:
        others = {**manifest, "metadata": {**manifest["metadata"], "finalizers": ["example.com/other"]}}
        kubectl.create(namespace, others)

        deleted = kubectl("delete", "-n", namespace, resource, "--wait=false")

        assert deleted.stderr == ""
        kubectl.strip(namespace, resource)


def test_deletion_by_the_operator_does_not_warn(kubectl: Kubectl, namespace: str) -> None:
    kubectl.create(namespace, in_use(config_map()))

    deleted = kubectl("delete", "-n", namespace, "configmaps/app-cfg", "--wait=false", f"--as={OPERATOR}")

    assert deleted.stderr == ""


def test_deleting_many_warns_of_each_in_use(kubectl: Kubectl, namespace: str) -> None:
    kubectl.create(namespace, in_use(config_map("a")), in_use(config_map("b")), config_map("c"))

    url = f"/api/v1/namespaces/{namespace}/configmaps"
    deleted = kubectl("delete", "--raw", url)

    warned = [line for line in deleted.stderr.splitlines() if line.startswith("Warning: ")]
    assert sorted(name for name in "abc" for line in warned if f"ConfigMap {name} is in use" in line) == [
        "a",
        "b",
    ]


def test_deletion_in_a_terminating_namespace_does_not_warn(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl.create(namespace, in_use(config_map()))
    kubectl("delete", "namespace", namespace, "--wait=false")

    deleted = kubectl("delete", "-n", namespace, "configmaps/app-cfg", "--wait=false")

    assert deleted.stderr == ""
    patch_as_operator(api, namespace, "configmaps/app-cfg", STRATEGIC)
    kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=60s")


# -- the guard of the finalizer --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "manifest"),
    [("configmaps/app-cfg", config_map()), ("secrets/app-cfg", secret("app-cfg"))],
    ids=["ConfigMap", "Secret"],
)
class TestGuard:
    @pytest.fixture
    def stored(self, kubectl: Kubectl, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """The object as it is in the cluster, in use."""
        kubectl.create(namespace, in_use(manifest))
        found: dict[str, Any] = json.loads(
            kubectl("get", "-n", namespace, manifest["kind"], "app-cfg", "-o", "json").stdout
        )
        return found

    def finalizers(self, kubectl: Kubectl, namespace: str, resource: str) -> list[str]:
        shown = kubectl("get", "-n", namespace, resource, "-o", "json").stdout
        return list(json.loads(shown)["metadata"].get("finalizers", []))

    @pytest.mark.parametrize(
        "patch",
        [
            ("--type=strategic", "-p", STRATEGIC),
            ("--type=merge", "-p", '{"metadata":{"finalizers":null}}'),
            ("--type=merge", "-p", '{"metadata":{"finalizers":["example.com/other"]}}'),
            ("--type=json", "-p", JSON_PATCH),
        ],
        ids=["strategic", "merge", "merge another", "json"],
    )
    def test_patch_without_is_refused(
        self, kubectl: Kubectl, namespace: str, resource: str, stored: dict[str, Any], patch: tuple[str, ...]
    ) -> None:
        for identity in ([], [f"--as={OTHER_ACCOUNT}", "--as-group=system:masters"]):
            refused = kubectl("patch", "-n", namespace, resource, *patch, *identity, check=False)

            assert refused.returncode != 0
            assert "this update drops it. Keep the finalizer" in refused.stderr
            assert RELEASE in refused.stderr
        assert self.finalizers(kubectl, namespace, resource) == [IN_USE]

    def test_replace_without_is_refused(
        self,
        kubectl: Kubectl,
        namespace: str,
        resource: str,
        manifest: dict[str, Any],
        stored: dict[str, Any],
    ) -> None:
        """A PUT takes what is not in it away, without a word; on a terminating object this would free the name."""
        kubectl("delete", "-n", namespace, resource, "--wait=false")

        refused = kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(manifest), check=False)

        assert refused.returncode != 0
        assert "this update drops it. Keep the finalizer" in refused.stderr
        assert self.finalizers(kubectl, namespace, resource) == [IN_USE]

    def test_replace_with_it_passes(
        self, kubectl: Kubectl, namespace: str, resource: str, stored: dict[str, Any]
    ) -> None:
        stored["metadata"]["labels"] = {"changed": "yes"}

        replaced = kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(stored))

        assert replaced.stderr == ""

    def test_apply_passes(
        self,
        kubectl: Kubectl,
        namespace: str,
        resource: str,
        manifest: dict[str, Any],
        stored: dict[str, Any],
    ) -> None:
        labelled = {**manifest, "metadata": {**manifest["metadata"], "labels": {"changed": "yes"}}}
        for how in (["apply", "--server-side"], ["apply", "--server-side=false"]):
            kubectl(*how, "-n", namespace, "-f", "-", stdin=json.dumps(labelled))

        assert self.finalizers(kubectl, namespace, resource) == [IN_USE]

    def test_other_changes_pass(
        self, kubectl: Kubectl, namespace: str, resource: str, stored: dict[str, Any]
    ) -> None:
        kubectl("label", "-n", namespace, resource, "changed=yes")
        kubectl("annotate", "-n", namespace, resource, "example.com/changed=yes")
        other = '{"metadata":{"finalizers":["example.com/other"]}}'
        kubectl("patch", "-n", namespace, resource, "--type=strategic", "-p", other)
        assert sorted(self.finalizers(kubectl, namespace, resource)) == ["example.com/other", IN_USE]

        gone = '{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/other"]}}'
        kubectl("patch", "-n", namespace, resource, "--type=strategic", "-p", gone)

        assert self.finalizers(kubectl, namespace, resource) == [IN_USE]

    def test_operator_may(
        self,
        kubectl: Kubectl,
        api: pykube.HTTPClient,
        namespace: str,
        resource: str,
        stored: dict[str, Any],
    ) -> None:
        patch_as_operator(api, namespace, resource, STRATEGIC)

        assert self.finalizers(kubectl, namespace, resource) == []

    def test_a_reason_releases(
        self, kubectl: Kubectl, namespace: str, resource: str, stored: dict[str, Any]
    ) -> None:
        release = ("patch", "-n", namespace, resource, "--type=strategic", "-p", STRATEGIC)
        kubectl("annotate", "-n", namespace, resource, f"{RELEASE}= ")
        assert kubectl(*release, check=False).returncode != 0, "blanks are no reason"

        kubectl("annotate", "-n", namespace, resource, "--overwrite", f"{RELEASE}=the node is gone for good")
        kubectl(*release)

        assert self.finalizers(kubectl, namespace, resource) == []

    def test_a_reason_in_the_same_request_releases(
        self,
        kubectl: Kubectl,
        namespace: str,
        resource: str,
        manifest: dict[str, Any],
        stored: dict[str, Any],
    ) -> None:
        manifest = {**manifest, "metadata": {**manifest["metadata"], "annotations": {RELEASE: "a reason"}}}

        kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))

        assert self.finalizers(kubectl, namespace, resource) == []


def test_unprotected_objects_are_nobodys_business(kubectl: Kubectl, namespace: str) -> None:
    kubectl.create(namespace, config_map(immutable=False))
    changed = config_map(data={"MODE": "green"}, immutable=False)

    replaced = kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(changed))

    assert replaced.stderr == ""
