"""Logical names become those of versions while a workload is written: what the API server does by the policy of
manifests/components/rewrite-at-admission and a VersionMap.

The operator does not take part: its VersionMap and its patches are written here.
"""

import json
from collections.abc import Callable
from typing import Any

import pykube
import pytest

from e2e import harness
from e2e.harness import OPERATOR_USER, Kubectl, Manifest, deployment, fetch_all, plain_pod_spec
from versionedconfig.references import CATALOGUE
from versionedconfig.references.rules import EACH, FieldRule, Path, parse_path

pytestmark = pytest.mark.usefixtures("rewriting")

# `app` is a ConfigMap and a Secret, each with versions of its own.
OLD, NEW, OTHER = "app-2222222222", "app-5555555555", "app-9g28mm78m5"
SECRET_OLD, SECRET_NEW = "app-4444444444", "app-6666666666"
MOVER = "versionedconfig"


@pytest.fixture(scope="session")
def rewriting(installed: None, kubectl: Kubectl) -> None:
    if not harness.rewrites_at_admission(kubectl):
        pytest.skip("this cluster serves no MutatingAdmissionPolicy v1")


@pytest.fixture(autouse=True)
def _no_operator(stopped_operator: Any) -> None:
    """It would write VersionMaps of its own."""


MapVersions = Callable[..., None]


@pytest.fixture
def map_versions(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> MapVersions:
    def write(config_maps: dict[str, str] | None = None, secrets: dict[str, str] | None = None) -> None:
        harness.map_versions(kubectl, api, namespace, config_maps=config_maps, secrets=secrets)

    return write


@pytest.fixture
def mapped(map_versions: MapVersions) -> None:
    """The namespace's map says OLD and SECRET_OLD."""
    map_versions({"app": OLD}, {"app": SECRET_OLD})


# -- workloads -------------------------------------------------------------------------------------------------------


def workload(kind: str, spec: Manifest) -> Manifest:
    """A manifest of that kind with these pods, which starts none of them if that can be."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    replicated = {"selector": {"matchLabels": labels}, "template": template, "replicas": 0}
    daemons = {name: value for name, value in replicated.items() if name != "replicas"}
    job = {"template": {**template, "spec": {**spec, "restartPolicy": "Never"}}, "suspend": True}
    version, own = {
        "Deployment": ("apps/v1", replicated),
        "StatefulSet": ("apps/v1", {**replicated, "serviceName": "web"}),
        "DaemonSet": ("apps/v1", daemons),
        "ReplicaSet": ("apps/v1", replicated),
        "Job": ("batch/v1", job),
        "CronJob": ("batch/v1", {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": job}}),
        "Pod": ("v1", spec),
    }[kind]
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "web", "labels": labels},
        "spec": own,
    }


KINDS = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob", "Pod"]


def pod_spec(found: Manifest) -> Manifest:
    """Of a workload."""
    spec: Manifest = found["spec"]
    spec = spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec
    inner: Manifest = spec["template"]["spec"] if "template" in spec else spec
    return inner


def reading(*names: str) -> Manifest:
    """Pods with a container that takes its environment from these ConfigMaps."""
    spec = harness.unscheduled(plain_pod_spec())
    spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": name}} for name in names]
    return spec


def read(found: Manifest) -> list[str]:
    """The ConfigMaps of its containers' environments."""
    sources = [source for container in pod_spec(found)["containers"] for source in container["envFrom"]]
    return [source["configMapRef"]["name"] for source in sources]


def admit(kubectl: Kubectl, namespace: str, manifest: Manifest, *options: str) -> Manifest:
    """As it would be stored; nothing is."""
    created = kubectl(
        "create",
        "-n",
        namespace,
        "--dry-run=server",
        "-o",
        "json",
        "-f",
        "-",
        *options,
        stdin=json.dumps(manifest),
    )
    found: Manifest = json.loads(created.stdout)
    return found


def get(kubectl: Kubectl, namespace: str, what: str = "deployment/web") -> Manifest:
    shown = kubectl("get", "-n", namespace, what, "-o", "json", "--show-managed-fields").stdout
    found: Manifest = json.loads(shown)
    return found


def move(
    api: pykube.HTTPClient, namespace: str, *changes: tuple[str, str, str], resource: str = "deployments/web"
) -> None:
    """What the operator sends: each of (path in the pod template, old name, new name) behind a test."""
    patch = []
    for path, old, new in changes:
        pointer = f"/spec/template/spec/{path}"
        patch.append({"op": "test", "path": pointer, "value": old})
        patch.append({"op": "replace", "path": pointer, "value": new})
    answer = api.patch(
        version="apps/v1",
        namespace=namespace,
        url=resource,
        params={"fieldManager": MOVER},
        data=json.dumps(patch),
        headers={"Content-Type": "application/json-patch+json", "Impersonate-User": OPERATOR_USER},
    )
    api.raise_for_status(answer)


HOW = {
    "apply": ("apply", "-f", "-"),
    "server-side apply": ("apply", "--server-side", "--force-conflicts", "-f", "-"),
    "server-side apply by another manager": (
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=gitops",
        "-f",
        "-",
    ),
    "replace": ("replace", "-f", "-"),
    "strategic patch": ("patch", "deployment/web", "--type=strategic", "-p", "MANIFEST"),
    "merge patch": ("patch", "deployment/web", "--type=merge", "-p", "MANIFEST"),
}


DROPS_ANNOTATIONS = ("replace",)
"""The Deployment's controller puts the number of its revision back, and for a Deployment annotations count as a change."""


def write(kubectl: Kubectl, namespace: str, how: str, manifest: Manifest) -> None:
    """The manifest, in one of these ways. kubectl sends what it read a moment before, and the workload's controller may have
    been faster: then once more."""
    text = json.dumps(manifest)
    words = [text if word == "MANIFEST" else word for word in HOW[how]]

    def written() -> bool:
        done = kubectl(*words, "-n", namespace, stdin=text, check=False)
        assert done.returncode == 0 or "the object has been modified" in done.stderr, done.stderr
        return done.returncode == 0

    harness.wait_until(written, 15, f"{how} is let through")


FIRST = "containers/0/envFrom/0/configMapRef/name"


# -- every field of every kind ---------------------------------------------------------------------------------------

BESIDE: dict[str, Manifest] = {
    "configMapKeyRef": {"key": "K"},
    "secretKeyRef": {"key": "K"},
    "csi": {"driver": "csi.example.com"},
    "azureFile": {"shareName": "share"},
    "flexVolume": {"driver": "example.com/flex"},
    "iscsi": {"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.com.example:x", "lun": 0},
    "cephfs": {"monitors": ["192.0.2.1"]},
    "cinder": {"volumeID": "x"},
    "rbd": {"monitors": ["192.0.2.1"], "image": "x"},
    "scaleIO": {"gateway": "https://192.0.2.1", "system": "x", "volumeName": "x"},
    "storageos": {"volumeName": "x", "volumeNamespace": "x"},
}
"""What else must be in a struct that holds a reference."""
ROOT_CA = "kube-root-ca.crt"
EPHEMERAL = "ephemeralContainers"
RULES = [rule for rule in CATALOGUE.fragments["PodSpec"] if parse_path(rule.path)[0] != EPHEMERAL]


def with_every_field(name: str) -> Manifest:
    """Pods that refer to that ConfigMap and that Secret in every field of the catalogue's PodSpec, each once."""
    spec = plain_pod_spec(initContainers=plain_pod_spec()["containers"])
    spec["initContainers"][0]["name"] = "init"
    for number, rule in enumerate(RULES):
        add_reference(spec, parse_path(rule.path), name, number)
    return spec


def add_reference(spec: Manifest, path: Path, name: str, number: int) -> None:
    """Write the name there, in new elements of all lists but that of the containers."""
    node: Any = spec
    for step, following in zip(path, (*path[1:], None), strict=True):
        if following is None:
            node[step] = name
        elif following == EACH:
            node = node.setdefault(step, [])
            inside_list = step
        elif step == EACH and inside_list in ("containers", "initContainers"):
            node = node[0]
        elif step == EACH:
            named = {"env": {"name": f"E{number}"}, "volumes": {"name": f"v{number}"}}
            node.append(dict(named.get(inside_list, {})))
            node = node[-1]
        else:
            node = node.setdefault(step, dict(BESIDE.get(step, {})))


def names_at(node: Any, path: Path) -> list[str]:
    """The names in one field, through all lists."""
    for position, step in enumerate(path):
        if step == EACH:
            return [name for element in node for name in names_at(element, path[position + 1 :])]
        if step not in node:
            return []
        node = node[step]
    return [node]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("mapped")
def test_every_field_of_every_kind(kubectl: Kubectl, namespace: str, kind: str) -> None:
    """Whatever the catalogue has: a new rule there fails here until the policy has it too."""
    found = admit(kubectl, namespace, workload(kind, with_every_field("app")))

    versions = {"ConfigMap": OLD, "Secret": SECRET_OLD}

    def wanted(rule: FieldRule) -> str:
        assert rule.to is not None
        return versions[rule.to]

    def given(rule: FieldRule) -> list[str]:
        # A pod gets a volume of the cluster's own.
        return [name for name in names_at(pod_spec(found), parse_path(rule.path)) if name != ROOT_CA]

    assert {rule.path: given(rule) for rule in RULES} == {rule.path: [wanted(rule)] for rule in RULES}


@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
@pytest.mark.usefixtures("mapped")
def test_every_field_on_update(
    kubectl: Kubectl, namespace: str, kind: str, map_versions: MapVersions
) -> None:
    """Each keeps what it has, and the whole spec stays the same."""
    manifest = json.dumps(workload(kind, with_every_field("app")))
    kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)
    before = get(kubectl, namespace, f"{kind}/web")
    map_versions({"app": NEW}, {"app": SECRET_NEW})

    kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)

    assert json.dumps(before).count(OLD) + json.dumps(before).count(SECRET_OLD) >= len(RULES)
    # Not the rest of it: the kind's controller writes its status and an annotation a moment later.
    assert get(kubectl, namespace, f"{kind}/web")["spec"] == before["spec"]


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_ephemeral_containers_cannot_be_written_with_the_rest(
    kubectl: Kubectl, namespace: str, kind: str
) -> None:
    """So the policy need not know them."""
    manifest = workload(kind, plain_pod_spec(ephemeralContainers=[{"name": "e", "image": "busybox"}]))

    refused = kubectl(
        "create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), check=False
    )

    assert refused.returncode != 0
    assert EPHEMERAL in refused.stderr


# -- creation --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mapped")
def test_a_new_deployment_has_one_replicaset_and_no_broken_first_one(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl.create(namespace, deployment(spec=reading("app"), replicas=1))

    pods = harness.wait_for_pods(api, namespace, 1)

    found = fetch_all(api, pykube.ReplicaSet, namespace)
    assert [read(replica_set) for replica_set in found] == [[OLD]]
    assert read(pods[0]) == [OLD]


def test_names_that_are_not_in_the_map_stay(
    kubectl: Kubectl, namespace: str, map_versions: MapVersions
) -> None:
    map_versions({"app": OLD, "extra": "extra-2222222222"})
    names = ("app-extra", "my-app", "app", "ap", "app-2222222222", "app-8888888888", "app.extra", "unknown")

    found = admit(kubectl, namespace, workload("Deployment", reading(*names)))

    assert read(found) == [OLD if name == "app" else name for name in names]


def test_only_the_targets_that_are_listed(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    """Another workload would get a version and never another one. Jobs and Pods are nobody's targets, and run once."""
    only = {"configMaps/app": ["Deployment/target", "StatefulSet/web"]}
    harness.map_versions(
        kubectl,
        api,
        namespace,
        config_maps={"app": OLD, "extra": NEW},
        secrets={"app": SECRET_OLD},
        only=only,
        probe="extra",
    )
    spec = reading("app", "extra")

    def named(kind: str, name: str) -> Manifest:
        manifest = workload(kind, spec)
        manifest["metadata"]["name"] = name
        return manifest

    assert read(admit(kubectl, namespace, named("Deployment", "target"))) == [OLD, NEW]
    assert read(admit(kubectl, namespace, named("Deployment", "web"))) == ["app", NEW]
    assert read(admit(kubectl, namespace, named("StatefulSet", "target"))) == ["app", NEW]
    assert read(admit(kubectl, namespace, named("StatefulSet", "web"))) == [OLD, NEW]
    for kind in ("Job", "Pod"):
        assert read(admit(kubectl, namespace, named(kind, "once"))) == [OLD, NEW]


@pytest.mark.parametrize(
    ("maps", "config_map", "secret"),
    [
        (None, "app", "app"),
        ({}, "app", "app"),
        ({"config_maps": {}, "secrets": {}}, "app", "app"),
        ({"config_maps": {"app": OLD}}, OLD, "app"),
        ({"secrets": {"app": SECRET_OLD}}, "app", SECRET_OLD),
        ({"config_maps": {"app": OLD}, "secrets": {"app": SECRET_OLD}}, OLD, SECRET_OLD),
    ],
    ids=["no map", "empty map", "two empty maps", "ConfigMaps alone", "Secrets alone", "both"],
)
def test_kinds_are_apart(
    kubectl: Kubectl,
    namespace: str,
    map_versions: MapVersions,
    maps: dict[str, dict[str, str]] | None,
    config_map: str,
    secret: str,
) -> None:
    if maps is not None:
        map_versions({"app": OTHER}, {"app": OTHER})
        map_versions(**maps)
    spec = reading("app")
    spec["containers"][0]["envFrom"].append({"secretRef": {"name": "app"}})

    found = admit(kubectl, namespace, workload("Deployment", spec))

    first, second = pod_spec(found)["containers"][0]["envFrom"]
    assert (first["configMapRef"]["name"], second["secretRef"]["name"]) == (config_map, secret)


@pytest.mark.usefixtures("mapped")
def test_another_namespace_has_its_own_names(kubectl: Kubectl, api: pykube.HTTPClient) -> None:
    with harness.temporary_namespace(kubectl, api) as other:
        assert read(admit(kubectl, other, workload("Deployment", reading("app")))) == ["app"]


@pytest.mark.usefixtures("mapped")
def test_an_invalid_workload_is_refused_as_ever(kubectl: Kubectl, namespace: str) -> None:
    """Admission sees it before validation does."""
    manifest = workload("Deployment", {"containers": []})

    refused = kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest), check=False)

    assert "spec.template.spec.containers: Required value" in refused.stderr


@pytest.mark.parametrize("distinct", [False, True], ids=["one name", "900 names"])
def test_a_huge_template_is_rewritten_too(
    kubectl: Kubectl, namespace: str, map_versions: MapVersions, distinct: bool
) -> None:
    """CEL has a limit of cost; what exceeds it would be stored as it is."""

    def named(i: int, j: int) -> str:
        return f"app-{i}-{j}" if distinct else "app"

    def huge(prefix: str = "c") -> Manifest:
        spec = plain_pod_spec()
        spec["containers"] = [
            {
                "name": f"{prefix}{i}",
                "image": "busybox",
                "env": [
                    {
                        "name": f"E{j}",
                        "valueFrom": {"configMapKeyRef": {"name": named(i, j), "key": "K"}},
                    }
                    for j in range(30)
                ],
            }
            for i in range(30)
        ]
        return spec

    everything = {named(i, j): f"{named(i, j)}-2222222222" for i in range(30) for j in range(30)}
    map_versions({"app": OLD, **everything})
    path = parse_path(".containers[*].env[*].valueFrom.configMapKeyRef.name")
    wanted = [everything[named(i, j)] for i in range(30) for j in range(30)]
    manifest = workload("Deployment", huge())
    kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
    created = get(kubectl, namespace)
    assert names_at(pod_spec(created), path) == wanted
    map_versions({"app": NEW, **{name: f"{name}-5555555555" for name in everything}})

    write(kubectl, namespace, "replace", manifest)
    assert names_at(pod_spec(get(kubectl, namespace)), path) == wanted

    # Another container in front, so that nothing stands where it stood. 900 different versions are too many to be told apart;
    # then new ones are taken.
    more = huge()
    more["containers"].insert(0, plain_pod_spec()["containers"][0])
    write(kubectl, namespace, "replace", workload("Deployment", more))
    moved = names_at({"containers": pod_spec(get(kubectl, namespace))["containers"][1:]}, path)
    assert moved == ([name.replace("2222222222", "5555555555") for name in wanted] if distinct else wanted)


# -- updates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.usefixtures("mapped")
class TestWritingAgain:
    def test_changes_nothing(self, kubectl: Kubectl, namespace: str, how: str) -> None:
        manifest = workload("Deployment", reading("app"))
        kubectl.apply(namespace, manifest)
        write(kubectl, namespace, how, manifest)
        before = get(kubectl, namespace)

        write(kubectl, namespace, how, manifest)

        after = get(kubectl, namespace)
        assert read(after) == [OLD]
        assert after["spec"] == before["spec"]
        if how not in DROPS_ANNOTATIONS:
            assert after["metadata"]["generation"] == before["metadata"]["generation"]

    def test_keeps_what_the_workload_has(
        self,
        kubectl: Kubectl,
        api: pykube.HTTPClient,
        namespace: str,
        how: str,
        map_versions: MapVersions,
    ) -> None:
        """In the middle of a rollout the map says the new name already, and after an undo still."""
        manifest = workload("Deployment", reading("app"))
        kubectl.apply(namespace, manifest)
        map_versions({"app": NEW})

        write(kubectl, namespace, how, manifest)
        assert read(get(kubectl, namespace)) == [OLD]

        move(api, namespace, (FIRST, OLD, NEW))
        write(kubectl, namespace, how, manifest)
        assert read(get(kubectl, namespace)) == [NEW]

        move(api, namespace, (FIRST, NEW, OTHER))
        write(kubectl, namespace, how, manifest)
        assert read(get(kubectl, namespace)) == [OTHER]

    def test_a_change_of_something_else_is_just_that(
        self, kubectl: Kubectl, namespace: str, how: str, map_versions: MapVersions
    ) -> None:
        manifest = workload("Deployment", reading("app"))
        kubectl.apply(namespace, manifest)
        map_versions({"app": NEW})
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "busybox:2"

        write(kubectl, namespace, how, manifest)

        found = get(kubectl, namespace)
        assert (read(found), pod_spec(found)["containers"][0]["image"]) == ([OLD], "busybox:2")


@pytest.mark.parametrize(
    "patch",
    [
        [{"op": "replace", "path": f"/spec/template/spec/{FIRST}", "value": "app"}],
        [{"op": "add", "path": "/metadata/labels/changed", "value": "yes"}],
    ],
    ids=["the name", "a label"],
)
@pytest.mark.usefixtures("mapped")
def test_json_patch_of(
    kubectl: Kubectl, namespace: str, map_versions: MapVersions, patch: list[Manifest]
) -> None:
    """What `kubectl edit` and its like send."""
    kubectl.create(namespace, workload("Deployment", reading("app")))
    map_versions({"app": NEW})

    kubectl("patch", "-n", namespace, "deployment/web", "--type=json", "-p", json.dumps(patch))

    assert read(get(kubectl, namespace)) == [OLD]


@pytest.mark.usefixtures("mapped")
def test_kubectl_diff_shows_nothing(kubectl: Kubectl, namespace: str) -> None:
    manifest = workload("Deployment", reading("app"))
    for options in ([], ["--server-side", "--force-conflicts"]):
        kubectl("apply", *options, "-n", namespace, "-f", "-", stdin=json.dumps(manifest))

        shown = kubectl("diff", *options, "-n", namespace, "-f", "-", stdin=json.dumps(manifest), check=False)

        assert (shown.returncode, shown.stdout) == (0, "")


@pytest.mark.usefixtures("mapped")
def test_a_version_by_name_is_what_is_meant(
    kubectl: Kubectl, namespace: str, map_versions: MapVersions
) -> None:
    """Whoever writes it, and so an undo as well."""
    kubectl.apply(namespace, workload("Deployment", reading("app")))
    for name in (NEW, OTHER, OLD):
        kubectl.apply(namespace, workload("Deployment", reading(name)))

        assert read(get(kubectl, namespace)) == [name]


@pytest.mark.parametrize(
    ("old", "written", "new"),
    [
        ([OLD], ["app", "app"], [OLD, OLD]),
        ([OLD], ["plain", "app"], ["plain", OLD]),
        ([OLD, NEW], ["app", "app"], [OLD, NEW]),
        ([NEW, OLD], ["app", "app"], [NEW, OLD]),
        ([NEW, OLD], ["app", "app", "app"], [NEW, OLD, NEW]),
        (["plain", NEW, OLD], ["app", "plain"], [NEW, "plain"]),
        (["plain"], ["plain", "app"], ["plain", OTHER]),
        (["app-x-2222222222", "my-app-2222222222"], ["app"], [OTHER]),
        (["app-222222222", "app-22222222222", "app-aaaaaaaaaa"], ["app"], [OTHER]),
        ([OLD], ["app", "other"], [OLD, "other-2222222222"]),
    ],
)
def test_which_version_an_update_keeps(
    kubectl: Kubectl,
    namespace: str,
    map_versions: MapVersions,
    old: list[str],
    written: list[str],
    new: list[str],
) -> None:
    """The one at the same place, or the first that there is, or else the one that is meant now."""
    map_versions({"app": OTHER, "other": "other-2222222222", "app-x": "app-x-5555555555"})
    kubectl.create(namespace, workload("Deployment", reading(*old)))

    kubectl(
        "replace", "-n", namespace, "-f", "-", stdin=json.dumps(workload("Deployment", reading(*written)))
    )

    assert read(get(kubectl, namespace)) == new


@pytest.mark.usefixtures("mapped")
def test_a_secret_does_not_keep_the_name_of_a_config_map(kubectl: Kubectl, namespace: str) -> None:
    kubectl.create(namespace, workload("Deployment", reading(NEW)))
    spec = reading("app")
    spec["containers"][0]["envFrom"].append({"secretRef": {"name": "app"}})

    write(kubectl, namespace, "replace", workload("Deployment", spec))

    first, second = pod_spec(get(kubectl, namespace))["containers"][0]["envFrom"]
    assert (first["configMapRef"]["name"], second["secretRef"]["name"]) == (NEW, SECRET_OLD)


@pytest.mark.usefixtures("mapped")
def test_what_looks_like_a_version_counts_as_one(kubectl: Kubectl, namespace: str) -> None:
    """kustomize's names look the same. Whoever comes from there names the version once, or gives the VersionedConfig another name."""
    from_kustomize = "app-6ct58987ht"
    kubectl.apply(namespace, workload("Deployment", reading(from_kustomize)))

    kubectl.apply(namespace, workload("Deployment", reading("app")))
    assert read(get(kubectl, namespace)) == [from_kustomize]

    kubectl.apply(namespace, workload("Deployment", reading(OLD)))
    kubectl.apply(namespace, workload("Deployment", reading("app")))
    assert read(get(kubectl, namespace)) == [OLD]


def test_one_replicaset_for_each_change(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, map_versions: MapVersions
) -> None:
    versions = [OLD, NEW, OTHER]
    manifest = workload("Deployment", reading("app"))
    for number, version in enumerate(versions):
        map_versions({"app": version})
        if number:
            move(api, namespace, (FIRST, versions[number - 1], version))
        for _ in range(10):
            write(kubectl, namespace, "apply", manifest)
            write(kubectl, namespace, "server-side apply by another manager", manifest)

    def observed() -> bool:
        found = get(kubectl, namespace)
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    harness.wait_until(observed, 15, "the Deployment's controller has seen all")
    names = [read(found)[0] for found in fetch_all(api, pykube.ReplicaSet, namespace)]
    assert sorted(names) == sorted(versions)


# -- kinds that have something to themselves -------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{"a": "b"}, {}], ids=["labels", "no labels"])
def test_a_job_keeps_the_name_that_it_has(
    kubectl: Kubectl, namespace: str, map_versions: MapVersions, labels: dict[str, str]
) -> None:
    """Its template cannot change: anything else would refuse the update. Without labels of its own it shows those of its
    template, which look like a pod's."""
    manifest = workload("Job", reading("app"))
    manifest["metadata"]["labels"] = labels
    kubectl.apply(namespace, manifest)
    map_versions({"app": OLD})
    manifest["metadata"]["annotations"] = {"changed": "1"}
    kubectl.apply(namespace, manifest)
    assert read(get(kubectl, namespace, "job/web")) == ["app"]

    kubectl("delete", "-n", namespace, "job/web")
    kubectl.apply(namespace, manifest)
    map_versions({"app": NEW})
    manifest["metadata"]["annotations"] = {"changed": "2"}
    kubectl.apply(namespace, manifest)
    assert read(get(kubectl, namespace, "job/web")) == [OLD]


def test_subresources_do_not_count(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, map_versions: MapVersions
) -> None:
    manifest = workload("Deployment", reading("app"))
    kubectl.apply(namespace, manifest)
    map_versions({"app": OLD})

    kubectl("scale", "-n", namespace, "deployment/web", "--replicas=1")
    status = json.dumps({"status": {"conditions": []}})
    kubectl("patch", "-n", namespace, "deployment/web", "--subresource=status", "--type=merge", "-p", status)
    assert read(get(kubectl, namespace)) == ["app"]

    kubectl("label", "-n", namespace, "deployment/web", "changed=yes")
    assert read(get(kubectl, namespace)) == [OLD]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("mapped")
def test_what_a_controller_owns_is_left_alone(kubectl: Kubectl, namespace: str, kind: str) -> None:
    manifest = workload(kind, reading("app"))
    owner = {"apiVersion": "example.com/v1", "kind": "Owner", "name": "o", "uid": "1"}
    for controller, name in ((True, "app"), (False, OLD), (None, OLD)):
        flag = {} if controller is None else {"controller": controller}
        manifest["metadata"]["ownerReferences"] = [{**owner, **flag}]

        assert read(admit(kubectl, namespace, manifest)) == [name]


def test_copies_of_a_template_are_left_alone(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, map_versions: MapVersions
) -> None:
    """Those that Kubernetes makes of a workload from before the map: they must equal their template."""
    workloads = [workload(kind, reading("app")) for kind in ("Deployment", "StatefulSet", "Job", "CronJob")]
    kubectl.create(namespace, *workloads)
    map_versions({"app": OLD})

    for kind in ("deployment", "statefulset"):
        kubectl("scale", "-n", namespace, f"{kind}/web", "--replicas=1")
    resumed = json.dumps({"spec": {"suspend": False}})
    kubectl("patch", "-n", namespace, "job/web", "--type=merge", "-p", resumed)

    pods = harness.wait_for_pods(api, namespace, 3)
    assert [read(found) for found in pods] == [["app"]] * 3
    assert [read(found) for found in fetch_all(api, pykube.ReplicaSet, namespace)] == [["app"]]
    harness.wait_until(
        lambda: read(get(kubectl, namespace, "statefulset/web")) == ["app"], 5, "the StatefulSet is as it was"
    )


@pytest.mark.usefixtures("mapped")
def test_the_operator_writes_what_it_means(kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
    kubectl.create(namespace, workload("Deployment", reading("app")))
    for old, new in ((OLD, NEW), (NEW, "app"), ("app", OLD)):
        move(api, namespace, (FIRST, old, new))

        assert read(get(kubectl, namespace)) == [new]


# -- server-side apply -----------------------------------------------------------------------------------------------


def owners(found: Manifest) -> list[str]:
    """Field managers of the environment's sources, which are owned as one list."""
    return [
        entry["manager"]
        for entry in found["metadata"]["managedFields"]
        if '"f:envFrom"' in json.dumps(entry["fieldsV1"])
    ]


def apply(kubectl: Kubectl, namespace: str, manifest: Manifest, *options: str) -> str:
    """With --server-side; what it complains of."""
    return kubectl(
        "apply",
        "--server-side",
        *options,
        "-n",
        namespace,
        "-f",
        "-",
        stdin=json.dumps(manifest),
        check=False,
    ).stderr


class TestServerSideApply:
    """Conflicts are found before admission, by what was sent and who owns the fields: no policy can prevent one in that
    request. So the policy sees to it, in the operator's request, that the fields stay whose they were."""

    def test_without_the_policy_a_move_takes_the_fields(
        self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
    ) -> None:
        """The namespace has no map, and so this is what the policy avoids."""
        manifest = workload("Deployment", reading("app"))
        assert apply(kubectl, namespace, manifest) == ""
        move(api, namespace, (FIRST, "app", OLD))
        assert owners(get(kubectl, namespace)) == [MOVER]

        assert f'conflict with "{MOVER}"' in apply(kubectl, namespace, manifest)
        assert apply(kubectl, namespace, manifest, "--force-conflicts") == ""

        found = get(kubectl, namespace)
        assert (read(found), owners(found)) == (["app"], ["kubectl"])

    def test_a_patch_cannot_say_who_owns_what_it_changes(
        self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
    ) -> None:
        """The mover could give the fields back only with a second request."""
        apply(kubectl, namespace, workload("Deployment", reading("app")))
        before = get(kubectl, namespace)["metadata"]["managedFields"]
        give_back = {"op": "replace", "path": "/metadata/managedFields", "value": before}
        change = {"op": "replace", "path": f"/spec/template/spec/{FIRST}", "value": OLD}

        for patch, owner in (([change, give_back], MOVER), ([give_back], "kubectl")):
            options = ("--type=json", f"--field-manager={MOVER}", "-p", json.dumps(patch))
            kubectl("patch", "-n", namespace, "deployment/web", *options)

            assert owners(get(kubectl, namespace)) == [owner]

    @pytest.mark.usefixtures("mapped")
    def test_a_move_takes_nothing(self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str) -> None:
        manifest = workload("Deployment", reading("app"))
        assert apply(kubectl, namespace, manifest) == ""
        move(api, namespace, (FIRST, OLD, NEW))
        moved = get(kubectl, namespace)
        assert (read(moved), owners(moved)) == ([NEW], ["kubectl"])

        assert apply(kubectl, namespace, manifest) == ""

        assert get(kubectl, namespace)["metadata"]["resourceVersion"] == moved["metadata"]["resourceVersion"]

    def test_a_move_from_before_the_policy_is_forgiven_by_the_next(
        self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, map_versions: MapVersions
    ) -> None:
        """The names are nobody's then, and the next who applies takes them."""
        manifest = workload("Deployment", reading("app"))
        apply(kubectl, namespace, manifest)
        move(api, namespace, (FIRST, "app", OLD))
        map_versions({"app": NEW})
        move(api, namespace, (FIRST, OLD, NEW))
        assert owners(get(kubectl, namespace)) == []

        assert apply(kubectl, namespace, manifest) == ""

        found = get(kubectl, namespace)
        assert (read(found), owners(found)) == ([NEW], ["kubectl"])

    @pytest.mark.usefixtures("mapped")
    def test_two_managers_of_one_field_conflict(
        self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
    ) -> None:
        """Without the policy they may agree on `app` and own it together. With it what is stored is what neither sent, so
        the second has to force, once; and then the first, if it goes on. Nothing moves by that."""
        manifest = workload("Deployment", reading("app"))
        apply(kubectl, namespace, manifest)
        before = get(kubectl, namespace)

        second = "--field-manager=gitops"
        assert 'conflict with "kubectl"' in apply(kubectl, namespace, manifest, second)
        assert apply(kubectl, namespace, manifest, second, "--force-conflicts") == ""
        assert apply(kubectl, namespace, manifest, second) == ""
        move(api, namespace, (FIRST, OLD, NEW))
        assert apply(kubectl, namespace, manifest, second) == ""

        found = get(kubectl, namespace)
        assert (read(found), owners(found)) == ([NEW], ["gitops"])
        assert found["metadata"]["generation"] == before["metadata"]["generation"] + 1
        assert 'conflict with "gitops"' in apply(kubectl, namespace, manifest)

    @pytest.mark.usefixtures("mapped")
    def test_going_over_from_client_side_apply_has_to_be_forced_once(
        self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
    ) -> None:
        """To the API server these are two managers, and kubectl joins them only afterwards."""
        manifest = workload("Deployment", reading("app"))
        kubectl.apply(namespace, manifest)
        assert 'conflict with "kubectl-client-side-apply"' in apply(kubectl, namespace, manifest)

        assert apply(kubectl, namespace, manifest, "--force-conflicts") == ""
        move(api, namespace, (FIRST, OLD, NEW))
        assert apply(kubectl, namespace, manifest) == ""

        found = get(kubectl, namespace)
        assert (read(found), owners(found)) == ([NEW], ["kubectl"])

    @pytest.mark.usefixtures("mapped")
    def test_what_leaves_the_manifest_leaves_the_workload(
        self, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
    ) -> None:
        spec = harness.reading_pod_spec("app")
        manifest = workload("Deployment", spec)
        apply(kubectl, namespace, manifest)
        env = "containers/0/env/0/valueFrom/configMapKeyRef/name"
        move(api, namespace, (env, OLD, NEW), ("volumes/0/configMap/name", OLD, NEW))
        del spec["volumes"], spec["containers"][0]["volumeMounts"], spec["containers"][0]["env"]

        assert apply(kubectl, namespace, manifest) == ""

        found = pod_spec(get(kubectl, namespace))
        assert "volumes" not in found
        assert "env" not in found["containers"][0]


# -- pull secrets, which are merged by name --------------------------------------------------------------------------


def pulling(*names: str) -> Manifest:
    return workload("Deployment", plain_pod_spec(imagePullSecrets=[{"name": name} for name in names]))


def pulls(found: Manifest) -> list[str]:
    return [secret["name"] for secret in pod_spec(found).get("imagePullSecrets", [])]


@pytest.mark.parametrize("how", HOW)
def test_pull_secrets_do_not_pile_up(
    kubectl: Kubectl, api: pykube.HTTPClient, namespace: str, map_versions: MapVersions, how: str
) -> None:
    map_versions(secrets={"app": SECRET_OLD})
    manifest = pulling("zeta", "app", "alpha")
    kubectl.apply(namespace, manifest)
    write(kubectl, namespace, how, manifest)
    created = get(kubectl, namespace)
    assert pulls(created) == ["zeta", SECRET_OLD, "alpha"]

    write(kubectl, namespace, how, manifest)
    again = get(kubectl, namespace)
    assert again["spec"] == created["spec"]
    if how not in DROPS_ANNOTATIONS:
        assert again["metadata"]["generation"] == created["metadata"]["generation"]

    move(api, namespace, ("imagePullSecrets/1/name", SECRET_OLD, SECRET_NEW))
    write(kubectl, namespace, how, manifest)
    assert pulls(get(kubectl, namespace)) == ["zeta", SECRET_NEW, "alpha"]

    write(kubectl, namespace, how, pulling("zeta", "app", "alpha", "more"))
    assert sorted(pulls(get(kubectl, namespace))) == ["alpha", SECRET_NEW, "more", "zeta"]


@pytest.mark.parametrize(
    ("how", "stays"),
    [("apply", True), ("server-side apply", True), ("replace", False), ("merge patch", False)],
)
def test_a_pull_secret_that_leaves_the_manifest(
    kubectl: Kubectl, namespace: str, map_versions: MapVersions, how: str, stays: bool
) -> None:
    """Whoever merges by name knows nothing of the version's name, and so does not take it away."""
    map_versions(secrets={"app": SECRET_OLD})
    write(kubectl, namespace, "apply" if how != "server-side apply" else how, pulling("app", "alpha"))

    write(kubectl, namespace, how, pulling("alpha"))

    assert sorted(pulls(get(kubectl, namespace))) == (["alpha", SECRET_OLD] if stays else ["alpha"])


# -- the map itself --------------------------------------------------------------------------------------------------


def version_map(name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "versionedconfig.io/v1alpha1",
        "kind": "VersionMap",
        "metadata": {"name": name},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (version_map("other", {}), "its name is versionedconfig"),
        (version_map("versionedconfig", {"configMaps": {"app": ""}}), "spec.configMaps.app"),
        (version_map("versionedconfig", {"configMaps": {"app": 1}}), "must be of type string"),
        (version_map("versionedconfig", {"pods": {}}), 'unknown field "spec.pods"'),
        (
            version_map("versionedconfig", {"secrets": {f"n{i}": "x" for i in range(4097)}}),
            "must have at most 4096 items",
        ),
    ],
    ids=["another name", "an empty name", "no name", "another kind", "too many"],
)
def test_refuses(kubectl: Kubectl, manifest: Manifest, message: str) -> None:
    refused = kubectl(
        "create", "-n", "default", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest), check=False
    )

    assert refused.returncode != 0
    assert message in refused.stderr


def test_accepts_as_many_as_can_be(kubectl: Kubectl) -> None:
    longest = {f"{number:0242d}": f"{number:0242d}-2222222222" for number in range(1500)}
    for spec in ({}, {"configMaps": longest}, {"configMaps": {}, "secrets": {"app": SECRET_OLD}}):
        created = kubectl(
            *("create", "-n", "default", "--dry-run=server", "-f", "-"),
            stdin=json.dumps(version_map("versionedconfig", spec)),
        )
        assert created.stderr == ""


def test_who_may_write_it(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "rolebinding", "-n", namespace, "editor", "--clusterrole=edit", "--user=editor")

    def may(verb: str, user: str) -> bool:
        asked = ("auth", "can-i", verb, "versionmaps.versionedconfig.io", "-n", namespace, f"--as={user}")
        return kubectl(*asked, check=False).stdout.strip() == "yes"

    assert all(may(verb, OPERATOR_USER) for verb in ("list", "watch", "create", "patch", "delete"))
    assert not any(may(verb, "editor") for verb in ("create", "patch", "update", "delete"))
