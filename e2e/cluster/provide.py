"""Which cluster the tests use: the one in KUBECONFIG, else kind where a Docker engine answers, else the local one."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from e2e.cluster import build, local
from e2e.cluster.build import Progress, quiet
from e2e.cluster.errors import ClusterError


class Cluster(Protocol):
    """What tests need of any cluster."""

    @property
    def kubeconfig(self) -> Path: ...
    @property
    def kubectl(self) -> Path: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def audit_log(self) -> Path | None: ...
    def files(self, node: str, pod_uid: str) -> Mapping[str, bytes]: ...
    def environment(self, node: str, pod_uid: str, container: str) -> Mapping[str, str] | None: ...
    def sub_paths(self, node: str, pod_uid: str, container: str) -> Mapping[str, bytes]: ...


@dataclass(frozen=True)
class ForeignCluster:
    """Somebody else's, reached with kubectl alone. Its pods' images must have `find`, `cat` and `env`."""

    kubeconfig: Path
    kubectl: Path
    audit_log: None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(node["metadata"]["name"] for node in self._get("nodes"))

    def files(self, node: str, pod_uid: str) -> Mapping[str, bytes]:
        """What stands in the pod's ConfigMap, Secret and projected volumes: `<volume>/<file>` to content."""
        pod = self._pod(node, pod_uid)
        unread = {
            volume["name"]
            for volume in pod["spec"].get("volumes", ())
            if volume.keys() & {"configMap", "secret", "projected"}
        }
        found: dict[str, bytes] = {}
        for container in pod["spec"]["containers"]:
            for mount in container.get("volumeMounts", ()):
                # A subPath is a copy from the container's start, not what the volume holds.
                if mount["name"] in unread and not {"subPath", "subPathExpr"} & mount.keys():
                    unread.remove(mount["name"])
                    root = mount["mountPath"].rstrip("/")
                    for path in self._find(pod, container["name"], root):
                        relative = path.removeprefix(f"{root}/")
                        if not relative.startswith(".."):
                            content = self._exec(pod, container["name"], "cat", path)
                            found[f"{mount['name']}/{relative}"] = content
        return found

    def environment(self, node: str, pod_uid: str, container: str) -> Mapping[str, str] | None:
        """What `env` says in the container; None if it does not run."""
        pod = self._pod(node, pod_uid)
        if not _runs(pod, container):
            return None
        # Values can hold newlines.
        pairs = self._exec(pod, container, "env", "-0").decode().split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def sub_paths(self, node: str, pod_uid: str, container: str) -> Mapping[str, bytes]:
        """The files of the container's mounts with a subPath, path in the container to content; none if it does not run."""
        pod = self._pod(node, pod_uid)
        if not _runs(pod, container):
            return {}
        return {
            path: self._exec(pod, container, "cat", path)
            for found in pod["spec"]["containers"]
            if found["name"] == container
            for mount in found.get("volumeMounts", ())
            if {"subPath", "subPathExpr"} & mount.keys()
            for path in self._find(pod, container, mount["mountPath"])
        }

    def _find(self, pod: dict[str, Any], container: str, root: str) -> list[str]:
        """The files below a path, or that path itself."""
        return self._exec(pod, container, "find", root, "-follow", "-type", "f").decode().splitlines()

    def _pod(self, node: str, pod_uid: str) -> dict[str, Any]:
        for pod in self._get("pods", "-A", "--field-selector", f"spec.nodeName={node}"):
            if pod["metadata"]["uid"] == pod_uid:
                return pod
        raise LookupError(f"no pod with uid {pod_uid} on {node}")

    def _get(self, *arguments: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self._run("get", *arguments, "-o", "json"))["items"]
        return items

    def _exec(self, pod: dict[str, Any], container: str, *command: str) -> bytes:
        metadata = pod["metadata"]
        return self._run(
            "exec", "-n", metadata["namespace"], metadata["name"], "-c", container, "--", *command
        )

    def _run(self, *arguments: str) -> bytes:
        command = [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


def _runs(pod: dict[str, Any], container: str) -> bool:
    statuses = pod["status"].get("containerStatuses", ())
    return any(status["name"] == container and "running" in status["state"] for status in statuses)


@contextlib.contextmanager
def find(name: str = "tests", nodes: int = 3, progress: Progress = quiet) -> Iterator[Cluster]:
    """A cluster for as long as the context lasts; one that was made here ends with this process at the latest."""
    if given := os.environ.get("KUBECONFIG"):
        yield _given(Path(given))
    elif _docker_answers():
        from pytest_kind import KindCluster

        kind = KindCluster(f"versionedconfig-{name}")
        kind.create()
        try:
            yield ForeignCluster(Path(kind.kubeconfig_path), Path(kind.kubectl_path))
        finally:
            kind.delete()
    else:
        with local.up(f"{name}-{os.getpid()}", nodes, tied=True, progress=progress) as cluster:
            yield cluster


def is_local() -> bool:
    """`find` would give a local cluster of its own."""
    return not os.environ.get("KUBECONFIG") and not _docker_answers()


def prepare(progress: Progress = quiet) -> None:
    """Build what `find` would, so that no test has to wait for it."""
    if is_local():
        build.programs(progress)


def _given(kubeconfig: Path) -> Cluster:
    """A local cluster is known by its kubeconfig: its pods have no process to ask, but their node's folder can be read."""
    if not kubeconfig.is_file():
        raise ClusterError(f"KUBECONFIG must name one file and {kubeconfig} is none: correct it, or unset it")
    for name in local.names():
        cluster = local.find(name)
        if cluster is not None and cluster.kubeconfig.samefile(kubeconfig):
            return cluster
    return ForeignCluster(kubeconfig, _installed("kubectl"))


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _installed(program: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise ClusterError(
            f"KUBECONFIG names a cluster and there is no {program} to reach it: install {program}"
        )
    return Path(found)
