"""Which cluster the tests use: the one in KUBECONFIG, else kind where a Docker engine answers, else the local one."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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


@dataclass(frozen=True)
class ForeignCluster:
    """Somebody else's, reached with kubectl alone. Its pods' images must have `sh`, `find`, `cat` and `env`."""

    kubeconfig: Path
    kubectl: Path
    audit_log: None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes."""
        return tuple(self._run("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split())

    def files(self, node: str, pod_uid: str) -> Mapping[str, bytes]:
        """What stands in the mounted volumes, by volume name, as a process in the first container reads it."""
        namespace, pod = self._pod(node, pod_uid)
        mounts = self._run(
            *("get", "pod", pod, "-n", namespace, "-o"),
            "jsonpath={range .spec.containers[0].volumeMounts[*]}{.name}={.mountPath}{'\\n'}{end}",
        )
        found: dict[str, bytes] = {}
        for line in mounts.splitlines():
            volume, _, path = line.partition("=")
            listing = self._run(
                "exec", "-n", namespace, pod, "--", "sh", "-c", f"cd {path} && find . -follow -type f"
            )
            for file in listing.splitlines():
                relative = file.removeprefix("./")
                if not relative.startswith(".."):
                    content = self._run("exec", "-n", namespace, pod, "--", "cat", f"{path}/{relative}")
                    found[f"{volume}/{relative}"] = content.encode()
        return found

    def environment(self, node: str, pod_uid: str, container: str) -> Mapping[str, str] | None:
        """What `env` says in the container."""
        namespace, pod = self._pod(node, pod_uid)
        text = self._run("exec", "-n", namespace, pod, "-c", container, "--", "env")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def _pod(self, node: str, pod_uid: str) -> tuple[str, str]:
        listing = self._run(
            *("get", "pods", "-A", "--field-selector", f"spec.nodeName={node}", "-o"),
            "jsonpath={range .items[*]}{.metadata.uid} {.metadata.namespace} {.metadata.name}{'\\n'}{end}",
        )
        for line in listing.splitlines():
            uid, namespace, name = line.split()
            if uid == pod_uid:
                return namespace, name
        raise LookupError(f"no pod with uid {pod_uid} on {node}")

    def _run(self, *arguments: str) -> str:
        command = [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@contextlib.contextmanager
def find(name: str = "tests", nodes: int = 3, progress: Progress = quiet) -> Iterator[Cluster]:
    """A cluster for as long as the context lasts; one that was made here ends with this process at the latest."""
    if given := os.environ.get("KUBECONFIG"):
        yield ForeignCluster(Path(given), _installed("kubectl"))
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


def prepare(progress: Progress = quiet) -> None:
    """Build what `find` would, so that no test has to wait for it."""
    if not os.environ.get("KUBECONFIG") and not _docker_answers():
        build.programs(progress)


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    done = subprocess.run([docker, "info"], capture_output=True, check=False, timeout=30)
    return done.returncode == 0


def _installed(program: str) -> Path:
    found = shutil.which(program)
    if found is None:
        raise ClusterError(
            f"KUBECONFIG names a cluster and there is no {program} to reach it: install {program}"
        )
    return Path(found)
