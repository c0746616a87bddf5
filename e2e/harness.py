"""What the scenarios and the demonstration share: commands, waits, objects, the operator's process.

Looks at the cluster with kubectl and pykube-ng alone, never with the operator's own client: a check must not share
its faults. Fixtures are in conftest.py.
"""

import base64
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pykube
import yaml
from pykube.query import Query

from e2e.cluster.provide import Cluster as Cluster
from e2e.cluster.provide import is_local

T = TypeVar("T")
Manifest = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parent.parent
OPERATOR_NAMESPACE: Final = "versionedconfig-system"
OPERATOR_USER: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:versionedconfig"
IN_USE: Final = "versionedconfig.io/in-use"
IGNORE: Final = "versionedconfig.io/ignore"
STRIPPED: Final = '{"metadata":{"finalizers":null}}'
RELEASE: Final = "versionedconfig.io/release"


# -- commands and waits ----------------------------------------------------------------------------------------------


class CommandFailed(AssertionError):
    """A command that had to succeed did not."""


@dataclass(frozen=True)
class Kubectl:
    """`kubectl("get", "pods", "-A")`, with the cluster's own kubectl and kubeconfig."""

    program: Path
    kubeconfig: Path

    def __call__(
        self, *args: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run it. Raises CommandFailed with its stderr where `check`."""
        command = [str(self.program), "--kubeconfig", str(self.kubeconfig), *args]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180, check=False)
        if check and done.returncode != 0:
            raise CommandFailed(f"kubectl {' '.join(args)}: exit {done.returncode}\n{done.stderr.strip()}")
        return done

    def create(self, namespace: str, *objects: Manifest) -> None:
        """`kubectl create` all of them, in that order."""
        self("create", "-n", namespace, "-f", "-", stdin=as_list(objects))

    def apply(self, namespace: str, *objects: Manifest) -> None:
        """`kubectl apply` all of them, in that order."""
        self("apply", "-n", namespace, "-f", "-", stdin=as_list(objects))

    def strip(self, namespace: str, resource: str, *, check: bool = True) -> None:
        """Take every finalizer off, as people do when something hangs."""
        self("patch", "-n", namespace, resource, "--type=merge", "-p", STRIPPED, check=check)


def as_list(objects: Iterable[Manifest]) -> str:
    """One document for kubectl's stdin."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def wait_until(condition: Callable[[], T | None], timeout: float, what: str) -> T:
    """The first truthy value of `condition`. Fails with `what` and the last value when the time is over."""
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout:g} s still not: {what} (last: {value!r})")
        # A question to kubectl keeps a core busy for as long as it takes: let others work as long.
        time.sleep(max(0.1, 2 * (time.monotonic() - asked)))


def connect(cluster: Cluster, directory: Path) -> pykube.HTTPClient:
    """A client of the tests' own. `directory` is private: keys that are inline in the kubeconfig go there, since
    pykube-ng would write them to the common temporary directory, readable by all."""
    shown = Kubectl(cluster.kubectl, cluster.kubeconfig)("config", "view", "--raw", "--minify", "-o", "json")
    document = json.loads(shown.stdout)
    for part in (document["clusters"][0]["cluster"], document["users"][0]["user"]):
        for key in [key for key in part if key.endswith("-data")]:
            name = key.removesuffix("-data")
            file = directory / f"{name}.pem"
            file.touch(mode=0o600)
            file.write_bytes(base64.b64decode(part.pop(key)))
            part[name] = str(file)
    return pykube.HTTPClient(pykube.KubeConfig(document, current_context=document["current-context"]))


def query(api: pykube.HTTPClient, kind: type[Any], namespace: str | None = None) -> Any:
    """What `kind.objects(…)` gives. That keeps the kind in one place for all kinds, so that two threads get each other's:
    an object of another kind that is not there (pykube/objects.py, ObjectManager)."""
    return Query(api, kind, namespace=namespace)


def fetch(api: pykube.HTTPClient, kind: type[Any], namespace: str | None, name: str) -> Manifest | None:
    """The live object, or None: `fetch(api, pykube.ConfigMap, "t", "app-cfg")`."""
    try:
        found: Manifest = query(api, kind, namespace).get_by_name(name).obj
    except pykube.ObjectDoesNotExist:
        return None
    return found


def fetch_all(
    api: pykube.HTTPClient, kind: type[Any], namespace: str, selector: str | Mapping[str, str] | None = None
) -> list[Manifest]:
    """The live objects of a kind in a namespace."""
    return [found.obj for found in query(api, kind, namespace).filter(selector=selector)]


def finalizers(found: Manifest | None) -> list[str]:
    """Of an object, or of none."""
    return list(found["metadata"].get("finalizers", [])) if found else []


def events(api: pykube.HTTPClient, namespace: str, name: str, reason: str) -> list[Manifest]:
    """The Events about an object with that reason."""
    return [
        event
        for event in fetch_all(api, pykube.Event, namespace)
        if event["involvedObject"].get("name") == name and event.get("reason") == reason
    ]


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- objects ---------------------------------------------------------------------------------------------------------


def config_map(
    name: str = "app-cfg",
    data: Mapping[str, str] | None = None,
    *,
    immutable: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """A ConfigMap; immutable, with MODE: blue, if nothing else is said."""
    return _config_object("ConfigMap", name, {"data": dict(data or {"MODE": "blue"})}, immutable, annotations)


def secret(
    name: str,
    data: Mapping[str, str] | None = None,
    *,
    immutable: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """An Opaque Secret; immutable if nothing else is said."""
    content = {"stringData": dict(data or {"TOKEN": "blue"}), "type": "Opaque"}
    return _config_object("Secret", name, content, immutable, annotations)


def persistent_volume(name: str, namespace: str, secret_name: str) -> Manifest:
    """A volume whose driver needs that Secret on the node."""
    reference = {"name": secret_name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "csi": {"driver": "ex.csi", "volumeHandle": "h", "nodeStageSecretRef": reference},
        },
    }


def custom_kind(
    group: str, kind: str, plural: str, scope: str, versions: Iterable[str] = ("v1",)
) -> Manifest:
    """A definition that takes anything; the first version is the stored one."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups of Kubernetes itself ask for it.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's own"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {"name": version, "served": True, "storage": not number, "schema": schema}
                for number, version in enumerate(versions)
            ],
        },
    }


def _config_object(
    kind: str, name: str, content: Manifest, immutable: bool, annotations: Mapping[str, str] | None
) -> Manifest:
    metadata = {"name": name, "annotations": dict(annotations or {})}
    marked = {"immutable": True} if immutable else {}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **marked, **content}


def versioned_config(name: str, data: Mapping[str, str], **spec: Any) -> Manifest:
    """A VersionedConfig of ConfigMaps."""
    return {
        "apiVersion": "versionedconfig.io/v1alpha1",
        "kind": "VersionedConfig",
        "metadata": {"name": name},
        "spec": {"data": dict(data), **spec, "rollout": {**QUICK, **spec.get("rollout", {})}},
    }


QUICK: Final = {"minReadySeconds": 0}
"""No scenario waits for what it is not about."""


def reading_pod_spec(config: str = "app-cfg", **more: Any) -> Manifest:
    """A pod that takes MODE of a ConfigMap as an environment variable and mounts all of it at /cfg."""
    key = {"name": config, "key": "MODE"}
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sleep", "1000000"],
        "env": [{"name": "MODE", "valueFrom": {"configMapKeyRef": key}}],
        "volumeMounts": [{"name": "v", "mountPath": "/cfg"}],
    }
    volume = {"name": "v", "configMap": {"name": config}}
    return {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [volume], **more}


def plain_pod_spec(**more: Any) -> Manifest:
    """A pod that refers to nothing."""
    container = {"name": "c", "image": "busybox", "command": ["sleep", "1000000"]}
    return {"terminationGracePeriodSeconds": 1, "containers": [container], **more}


def pod(name: str, spec: Manifest) -> Manifest:
    """A bare Pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": spec,
    }


def deployment(
    name: str = "web", spec: Manifest | None = None, *, replicas: int = 4, **deployment_spec: Any
) -> Manifest:
    """A Deployment; of reading pods if nothing else is said."""
    template = {"metadata": {"labels": {"app": name}}, "spec": spec or reading_pod_spec()}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **deployment_spec,
        },
    }


def unscheduled(spec: Manifest) -> Manifest:
    """The same pod, bound to no node: enough of a holder, and cheap."""
    return {**spec, "nodeSelector": {"versionedconfig.test/nowhere": "1"}}


# -- what pods read --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """What one container of one pod really has on its node."""

    node: str
    pod: str
    uid: str
    environment: Mapping[str, str]
    files: Mapping[str, str]
    """`<volume>/<file>` to content."""
    sub_paths: Mapping[str, str]
    """What it mounts by subPath, path in the container to content: as it was when the container was started."""

    def mode(self, volume: str = "v", key: str = "MODE") -> set[str]:
        """The values of a key that the pod has, in its environment and its volume: one, if all is well."""
        return {value for value in (self.environment.get(key), self.files.get(f"{volume}/{key}")) if value}


def live_pods(api: pykube.HTTPClient, namespace: str, app: str = "web") -> list[Manifest]:
    """The pods that run or will, by name; those that are terminating or finished left out."""
    found = fetch_all(api, pykube.Pod, namespace, {"app": app})
    alive = [
        pod
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
    return sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))


def pods_read(
    cluster: Cluster, api: pykube.HTTPClient, namespace: str, app: str = "web", container: str = "c"
) -> list[Reading]:
    """What the live pods of an application read, from their nodes."""
    readings = []
    for found in live_pods(api, namespace, app):
        node, name, uid = (
            found["spec"].get("nodeName", ""),
            found["metadata"]["name"],
            found["metadata"]["uid"],
        )
        files = {path: content.decode() for path, content in cluster.files(node, uid).items()}
        environment = cluster.environment(node, uid, container) or {}
        mounted = cluster.sub_paths(node, uid, container)
        sub_paths = {path: content.decode() for path, content in mounted.items()}
        readings.append(Reading(node, name, uid, environment, files, sub_paths))
    return readings


def wait_for_rollout(kubectl: Kubectl, namespace: str, name: str = "web", timeout: float = 90) -> None:
    """Until a Deployment has all replicas available in its newest template, and no old pod is left."""
    kubectl("rollout", "status", "-n", namespace, f"deployment/{name}", f"--timeout={timeout:g}s")


def wait_for_pods(api: pykube.HTTPClient, namespace: str, count: int, app: str = "web") -> list[Manifest]:
    """Until exactly that many pods of an application exist, terminating ones included."""

    def all_there() -> bool:
        return len(fetch_all(api, pykube.Pod, namespace, {"app": app})) == count

    wait_until(all_there, 60, f"{count} pods of {app} in {namespace}")
    return fetch_all(api, pykube.Pod, namespace, {"app": app})


# -- protection, seen from outside -----------------------------------------------------------------------------------


def wait_protected(
    api: pykube.HTTPClient,
    namespace: str,
    name: str = "app-cfg",
    kind: type[Any] = pykube.ConfigMap,
    timeout: float = 15,
) -> None:
    """Until the object carries the finalizer."""
    wait_until(
        lambda: IN_USE in finalizers(fetch(api, kind, namespace, name)),
        timeout,
        f"{kind.__name__} {namespace}/{name} is protected",
    )


def wait_gone(
    api: pykube.HTTPClient,
    namespace: str | None,
    name: str = "app-cfg",
    kind: type[Any] = pykube.ConfigMap,
    timeout: float = 30,
) -> None:
    """Until no object of that name is left."""
    wait_until(
        lambda: fetch(api, kind, namespace, name) is None,
        timeout,
        f"{kind.__name__} {namespace}/{name} is gone",
    )


def versioned_configs(api: pykube.HTTPClient) -> type[Any]:
    """The kind, for `fetch` and its like; the CRD must be served."""
    kind: type[Any] = pykube.object_factory(api, "versionedconfig.io/v1alpha1", "VersionedConfig")
    return kind


def wait_versioned(
    api: pykube.HTTPClient, namespace: str, name: str, timeout: float = 60, *, besides: str = ""
) -> Manifest:
    """Until a VersionedConfig is ready as it stands now, with another version than `besides`.

    `kubectl wait --for=condition=Ready` alone may be told of an older generation."""

    def ready() -> Manifest | None:
        found = fetch(api, versioned_configs(api), namespace, name) or {}
        status = found.get("status", {})
        told = [c for c in status.get("conditions", []) if c["type"] == "Ready" and c["status"] == "True"]
        generation = found.get("metadata", {}).get("generation")
        new = status.get("currentVersion", "") not in ("", besides)
        return found if new and told and told[0].get("observedGeneration") == generation else None

    return wait_until(ready, timeout, f"VersionedConfig {namespace}/{name} is ready")


VERSION_MAP: Final = "versionedconfig"
"""The name of every VersionMap."""


def map_versions(
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespace: str,
    *,
    config_maps: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    only: Mapping[str, list[str]] | None = None,
    probe: str = "app",
    timeout: float = 15,
) -> None:
    """Writes the namespace's VersionMap, as the operator would. Returns when admission goes by it, for the logical name `probe`:
    the API server sees a new map some time after it was stored."""
    given: dict[str, Mapping[str, Any] | None] = {"configMaps": config_maps, "secrets": secrets, "only": only}
    spec = {part: dict(names) for part, names in given.items() if names is not None}
    version_map = {
        "apiVersion": "versionedconfig.io/v1alpha1",
        "kind": "VersionMap",
        "metadata": {"name": VERSION_MAP},
        "spec": spec,
    }
    found = kubectl("get", "-n", namespace, f"versionmap/{VERSION_MAP}", check=False)
    verb = "replace" if found.returncode == 0 else "create"
    kubectl(verb, "-n", namespace, "-f", "-", stdin=json.dumps(version_map))
    wanted = ((config_maps or {}).get(probe, probe), (secrets or {}).get(probe, probe))
    wait_until(
        lambda: _named_at_admission(api, namespace, probe) == wanted,
        timeout,
        f"{probe} becomes {wanted} at admission",
    )


def _named_at_admission(api: pykube.HTTPClient, namespace: str, name: str) -> tuple[str, str]:
    """What a new pod would have for the ConfigMap and the Secret of that name."""
    spec = plain_pod_spec()
    spec["containers"][0]["envFrom"] = [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}]
    created = api.post(
        version="v1",
        namespace=namespace,
        url="pods",
        params={"dryRun": "All"},
        data=json.dumps(pod("probe", spec)),
    )
    api.raise_for_status(created)
    config, secret_ = created.json()["spec"]["containers"][0]["envFrom"]
    return config["configMapRef"]["name"], secret_["secretRef"]["name"]


@contextlib.contextmanager
def temporary_namespace(kubectl: Kubectl, api: pykube.HTTPClient, prefix: str = "t") -> Iterator[str]:
    """A namespace that pods can run in at once; deleted afterwards, without waiting for its end."""
    name = f"{prefix}-{secrets.token_hex(3)}"
    kubectl("create", "namespace", name)
    try:
        # Both are made by controllers, and no pod starts without them.
        wait_until(
            lambda: fetch(api, pykube.ServiceAccount, name, "default"), 30, f"ServiceAccount in {name}"
        )
        wait_until(lambda: fetch(api, pykube.ConfigMap, name, "kube-root-ca.crt"), 30, f"CA bundle in {name}")
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false", check=False)


def wait_for_others_to_end(api: pykube.HTTPClient) -> None:
    """Until no namespace of an earlier test is on its way out: the operator has work to do in those."""

    def all_ended() -> bool:
        namespaces = pykube.Namespace.objects(api)
        return not any("deletionTimestamp" in found.obj["metadata"] for found in namespaces)

    wait_until(all_ended, 60, "namespaces of earlier tests are gone")


def settle(kubectl: Kubectl, api: pykube.HTTPClient, *, versions: bool = False) -> None:
    """Until the operator has worked off what was there before: something new is protected, in a namespace of its
    own, and with `versions` a new VersionedConfig is ready. "It does nothing more" needs an end to wait for."""
    with temporary_namespace(kubectl, api, "settle") as namespace:
        holder = pod("holder", unscheduled(reading_pod_spec()))
        kubectl.create(namespace, config_map(), holder)
        wait_protected(api, namespace)
        if versions:
            kubectl.create(namespace, versioned_config("app", {"MODE": "blue"}))
            wait_versioned(api, namespace, "app")


@dataclass
class Writes:
    """Writes by one user since the object was made, as the API server's audit log tells them."""

    audit_log: Path
    user: str = OPERATOR_USER
    _start: int = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.audit_log.stat().st_size

    def seen(self, *, without: Callable[[str], bool] = lambda namespace: False) -> list[str]:
        """`patch configmaps t/app-cfg: 200` each. `without` says which namespaces do not count."""
        with self.audit_log.open("rb") as log:
            log.seek(self._start)
            lines = log.read().splitlines()
        return [text for line in lines if (text := self._write(json.loads(line), without)) is not None]

    def _write(self, event: Manifest, without: Callable[[str], bool]) -> str | None:
        target = event.get("objectRef", {})
        resource, namespace = target.get("resource", ""), target.get("namespace", "")
        if (
            event.get("stage") != "ResponseComplete"
            or event["user"].get("username") != self.user
            or event["verb"] not in ("create", "update", "patch", "delete", "deletecollection")
            or resource.startswith("selfsubject")  # asks for permissions; stores nothing
            or without(namespace)
        ):
            return None
        where = "/".join(filter(None, (namespace, target.get("name", ""), target.get("subresource", ""))))
        return f"{event['verb']} {resource} {where}: {event.get('responseStatus', {}).get('code')}"


# -- the operator ----------------------------------------------------------------------------------------------------


def install(kubectl: Kubectl, api: pykube.HTTPClient) -> None:
    """CRDs, roles and policies as shipped, without the Deployment: the operator under test runs beside the cluster.
    Where the cluster can, it rewrites names at admission. Returns when the policies are in force."""
    rendered = _kustomize(kubectl, *(["rewrite-at-admission"] if rewrites_at_admission(kubectl) else []))
    shipped = [document for document in yaml.safe_load_all(rendered) if document]
    wanted = [document for document in shipped if document["kind"] != "Deployment"]
    # Custom resources' kinds must be served before objects of them are sent; namespaces before what is in them.
    wanted.sort(key=lambda document: document["kind"] not in ("Namespace", "CustomResourceDefinition"))
    kubectl("apply", "--server-side", "-f", "-", stdin=as_list(wanted))
    crds = [f"crd/{d['metadata']['name']}" for d in wanted if d["kind"] == "CustomResourceDefinition"]
    kubectl("wait", "--for=condition=Established", *crds, "--timeout=30s")
    # Established comes a little before the API server's cache of the kind; until then it answers 429.
    cached = ("get", "--raw", "/apis/versionedconfig.io/v1alpha1/versionedconfigs?resourceVersion=0")
    wait_until(lambda: kubectl(*cached, check=False).returncode == 0, 30, "VersionedConfigs are served")
    _wait_for_policies(kubectl, api)


def rewrites_at_admission(kubectl: Kubectl) -> bool:
    """Whether the cluster serves MutatingAdmissionPolicy v1, which it does from Kubernetes 1.36 on."""
    served = json.loads(kubectl("get", "--raw", "/apis/admissionregistration.k8s.io/v1").stdout)
    return any(resource["name"] == "mutatingadmissionpolicies" for resource in served["resources"])


def _kustomize(kubectl: Kubectl, *components: str) -> str:
    """The base with some components, as YAML."""
    manifests = ROOT / "manifests"
    with tempfile.TemporaryDirectory(prefix="versionedconfig-overlay-") as directory:

        def relative(*path: str) -> str:
            # kustomize takes no absolute paths, and resolves links before it looks.
            return os.path.relpath(manifests.joinpath(*path), Path(directory).resolve())

        overlay = {
            "resources": [relative("base")],
            "components": [relative("components", component) for component in components],
        }
        (Path(directory) / "kustomization.yaml").write_text(json.dumps(overlay))
        return kubectl("kustomize", directory).stdout


def _wait_for_policies(kubectl: Kubectl, api: pykube.HTTPClient) -> None:
    """The API server compiles a policy some time after it was stored; dry runs tell when."""
    with temporary_namespace(kubectl, api, "policies") as namespace:
        probe = config_map("probe")
        probe["metadata"]["finalizers"] = [IN_USE]
        kubectl.create(namespace, probe)
        strip = ("patch", "-n", namespace, "configmap/probe", "--type=merge", "-p", STRIPPED)
        try:
            wait_until(
                lambda: "Warning:" in _dry_delete(kubectl, namespace).stderr,
                30,
                "deletion in use is warned of",
            )
            wait_until(
                lambda: kubectl(*strip, "--dry-run=server", check=False).returncode != 0,
                30,
                "dropping the finalizer is refused",
            )
        finally:
            kubectl(*strip, f"--as={OPERATOR_USER}", check=False)
        if rewrites_at_admission(kubectl):
            map_versions(kubectl, api, namespace, config_maps={"app": "app-2222222222"}, timeout=30)


def _dry_delete(kubectl: Kubectl, namespace: str) -> subprocess.CompletedProcess[str]:
    return kubectl("delete", "-n", namespace, "configmap/probe", "--dry-run=server", "--wait=false")


def account_kubeconfig(
    kubectl: Kubectl, path: Path, account: str = "versionedconfig", namespace: str = OPERATOR_NAMESPACE
) -> Path:
    """A kubeconfig of a ServiceAccount: the operator's own has exactly the shipped roles, whoever runs the tests."""
    shown = kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json").stdout
    server = json.loads(shown)["clusters"][0]["cluster"]
    token = kubectl("create", "token", "-n", namespace, account, "--duration=10h").stdout
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": server}],
        "users": [{"name": "operator", "user": {"token": token.strip()}}],
        "contexts": [{"name": "operator", "context": {"cluster": "cluster", "user": "operator"}}],
        "current-context": "operator",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))
    return path


class Operator:
    """The operator's process. It can be stopped, killed and started as often as a test likes."""

    def __init__(self, kubeconfig: Path, log_file: Path, *, linger_seconds: float = 1.0) -> None:
        self.kubeconfig = kubeconfig
        self.log_file = log_file
        self.linger_seconds = linger_seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.options: tuple[str, ...] = ()
        """Those of the last start."""
        self._log_start = 0
        self._metrics_port = 0
        self._health_port = 0

    @property
    def running(self) -> bool:
        """Started and not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def metrics_port(self) -> int:
        """Of the last start."""
        return self._metrics_port

    @property
    def log(self) -> str:
        """Of all starts."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        """The end of the log."""
        return "\n".join(self.log.splitlines()[-lines:])

    def start(self, *options: str, beside: Path | None = None) -> None:
        """Start it, with further options, and wait until it works. It ends with this process at the latest, or goes on and ends when the file
        `beside` vanishes."""
        assert not self.running, "the operator runs already"
        self.options = options
        self._log_start = len(self.log)
        self._metrics_port, self._health_port = free_port(), free_port()
        command = [
            *(sys.executable, "-m", "e2e.tied", str(beside or "-")),
            *("versionedconfig", "run", "--kubeconfig", str(self.kubeconfig)),
            *("--linger-seconds", f"{self.linger_seconds:g}", "--unused-seconds", "0"),
            *(("--kubelet-sync-seconds", "2") if is_local() else ()),
            *("--metrics-port", str(self._metrics_port), "--health-port", str(self._health_port)),
            *options,
        ]
        environment = {k: v for k, v in os.environ.items() if k not in ("KUBECONFIG", "POD_NAMESPACE")}
        with self.log_file.open("ab") as log:
            # A session of its own: a Ctrl-C at the terminal is for the tests, which end it in their order.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if beside else subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        self.wait_ready()

    def wait_ready(self, timeout: float = 30) -> None:
        """Until everything is listed and /healthz says so."""

        def ready() -> bool:
            assert self.running, f"the operator ended by itself:\n{self.log_tail()}"
            # The log first: kopf gives the same answer to probes for ten seconds.
            return "versionedconfig.app: synced" in self.log[self._log_start :] and bool(
                self.health().get("synced")
            )

        wait_until(ready, timeout, "the operator is ready")

    def stop(self) -> None:
        """End it in good order, as a Deployment would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no chance to clean up."""
        self._end(signal.SIGKILL)

    def health(self) -> dict[str, Any]:
        """What /healthz says; empty while it is not served."""
        try:
            found: dict[str, Any] = json.loads(_http_get(self._health_port, "/healthz"))
        except OSError:
            return {}
        return found

    def metrics(self) -> dict[str, float]:
        """Series, as in `versionedconfig_blocked_deletions{kind="ConfigMap"}`, to value."""
        lines = self.exposition().splitlines()
        series = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in series}

    def exposition(self) -> str:
        """What Prometheus would read."""
        return _http_get(self._metrics_port, "/metrics")

    def complaints(self) -> list[str]:
        """Lines of the log that must not be there: tracebacks, errors and worse."""
        bad = re.compile(r"^(Traceback|\S+ (ERROR|CRITICAL) )")
        return [line for line in self.log.splitlines() if bad.match(line)]

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the operator did not end within 15 s of SIGTERM") from None
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()


def _http_get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
        text: str = response.read().decode()
        return text


# -- when something failed -------------------------------------------------------------------------------------------


def describe(kubectl: Kubectl, namespace: str) -> str:
    """The namespace as kubectl's tables show it. No table shows content."""
    questions = [
        ("get", "pods,deployments,replicasets,jobs,configmaps,secrets", "-o", "wide"),
        ("get", "vcfg"),
        ("get", "events", "--sort-by=.lastTimestamp"),
    ]
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda q: kubectl(*q, "-n", namespace, check=False), questions)
        return "\n".join(answer.stdout + answer.stderr for answer in answers)
