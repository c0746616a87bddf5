"""A local cluster's life: up, found again, down; and what its pods really read on their nodes."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from e2e.cluster import build, components
from e2e.cluster.build import Progress, quiet
from e2e.cluster.errors import ClusterError

READY_SECONDS: Final = 90.0
VOLUME_PLUGINS: Final = ("configmap", "secret", "projected")
ROOT: Final = Path(__file__).resolve().parents[2]

_started: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""Supervisors that are children of this process, by cluster: dropping one unreaped is a ResourceWarning."""


@dataclass(frozen=True)
class LocalCluster:
    """A running one. Everything about it stands in its folder, which goes when it ends."""

    name: str
    folder: Path
    programs: Path
    nodes: tuple[str, ...]
    _tie: int = -1
    """Our end of the supervisor's standard input, where the cluster is tied to this process."""

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.folder / "kubeconfig"

    @property
    def kubectl(self) -> Path:
        """Of the cluster's own version."""
        return self.programs / "kubectl"

    @property
    def audit_log(self) -> Path:
        """Who wrote what: JSON lines at level Metadata, without reads."""
        return self.folder / "audit.log"

    def files(self, node: str, pod_uid: str) -> Mapping[str, bytes]:
        """What stands in the pod's ConfigMap, Secret and projected volumes: `<volume>/<file>` to content."""
        found: dict[str, bytes] = {}
        volumes = self.folder / node / "kubelet" / "pods" / pod_uid / "volumes"
        for plugin in VOLUME_PLUGINS:
            for volume in sorted(volumes.glob(f"kubernetes.io~{plugin}/*")):
                # Files are links into ..data, which the kubelet swaps in one step (atomic_writer.go).
                for file in volume.rglob("*"):
                    relative = file.relative_to(volume)
                    if not relative.parts[0].startswith("..") and file.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            found[f"{volume.name}/{relative}"] = file.read_bytes()
        return found

    def environment(self, node: str, pod_uid: str, container: str) -> Mapping[str, str] | None:
        """What the container was started with the last time; None if it never was."""
        record = self.folder / node / "env" / pod_uid / f"{container}.json"
        try:
            environment: dict[str, str] = json.loads(record.read_text())["env"]
        except FileNotFoundError:
            return None
        return environment

    def restart(self, process: str) -> None:
        """Kill one process (`kubelet-node-0`, `kube-apiserver` …); returns when it was started again."""
        before = self._running()[process]
        os.kill(before["pid"], signal.SIGKILL)
        _wait(
            lambda: self._running()[process]["starts"] > before["starts"],
            30,
            f"{process} to be started again",
        )

    def restart_kubelet(self, node: str) -> None:
        """The containers of the node go on meanwhile."""
        self.restart(f"kubelet-{node}")

    def processes(self) -> dict[str, Any]:
        """Of each process the pid, how often it was started, and how it ended last."""
        return self._running()

    def down(self) -> None:
        """End every process, wait for that, and remove the folder."""
        if self._tie >= 0:
            with contextlib.suppress(OSError):
                os.close(self._tie)
        stop(self.name)

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _running(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "running.json").read_text())
        return found


def up(
    name: str = "default",
    nodes: int = 3,
    *,
    tied: bool = False,
    fresh: bool = False,
    port: int = 0,
    progress: Progress = quiet,
) -> LocalCluster:
    """A cluster of that name with every node Ready: the running one, or a new one.

    Args:
        tied: it ends with this process, however that ends; it never joins one that runs already.
        fresh: end one that runs already.
        port: of the API server; any free one if 0.

    Raises:
        ClusterError: with what to do.
    """
    programs = build.programs(progress)
    running = find(name)
    if running is not None and not fresh and not tied and len(running.nodes) == nodes and _healthy(running):
        return running
    if running is not None and tied and not fresh:
        raise ClusterError(
            f"a cluster named {name} runs already: end it with: python -m e2e.cluster down --name {name}"
        )
    stop(name)
    folder = _folder(name)
    folder.mkdir(parents=True, mode=0o700)
    # A unix socket's path may have 107 bytes, and caches can be deep.
    sockets = Path(tempfile.mkdtemp(prefix="cluster-"))
    read_end, write_end = os.pipe()
    try:
        ports = _ports(nodes, port)
        commands = components.processes(folder, programs, sockets, ports)
        specification = {"processes": commands, "sockets": str(sockets)}
        (folder / "processes.json").write_text(json.dumps(specification))
        with (folder / "supervisor.log").open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "e2e.cluster.supervisor", str(folder), *(["--tied"] if tied else [])],
                stdin=read_end if tied else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
            )
    except BaseException:
        os.close(write_end)
        shutil.rmtree(sockets, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(read_end)
    _started[name] = supervisor
    if not tied:
        os.close(write_end)
    state = {
        "pid": supervisor.pid,
        "created": psutil.Process(supervisor.pid).create_time(),
        "programs": str(programs),
        "nodes": nodes,
    }
    cluster = LocalCluster(name, folder, programs, components.node_names(nodes), write_end if tied else -1)
    try:
        (folder / "cluster.json").write_text(json.dumps(state))
        started = time.monotonic()
        progress("starting etcd and the API server")
        _await_ready(cluster, progress)
        progress(f"{nodes} nodes Ready after {time.monotonic() - started:.1f} s")
    except BaseException:
        # KeyboardInterrupt too: nothing that was started here is left behind.
        cluster.down()
        supervisor.wait()
        raise
    return cluster


def find(name: str) -> LocalCluster | None:
    """The running cluster of that name."""
    folder = _folder(name)
    state = _state(folder)
    if state is None or _supervisor(state) is None:
        return None
    return LocalCluster(name, folder, Path(state["programs"]), components.node_names(state["nodes"]))


def names() -> list[str]:
    """Of all clusters that left a folder."""
    runs = build.cache_folder() / "run"
    return sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []


def stop(name: str) -> bool:
    """End the cluster of that name, whatever state it is in; False if there was nothing."""
    folder = _folder(name)
    if not folder.exists():
        return False
    state = _state(folder)
    supervisor = _supervisor(state) if state is not None else None
    if supervisor is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor.terminate()
            try:
                supervisor.wait(30)
            except psutil.TimeoutExpired:
                # The kernel ends its children with it.
                supervisor.kill()
                supervisor.wait(10)
    if (child := _started.pop(name, None)) is not None:
        child.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _folder(name: str) -> Path:
    return build.cache_folder() / "run" / name


def _state(folder: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return state


def _supervisor(state: dict[str, Any]) -> psutil.Process | None:
    """By pid and time of birth: a pid alone may be somebody else's by now."""
    try:
        process = psutil.Process(state["pid"])
        same = process.create_time() == state["created"] and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if same else None


def _ports(nodes: int, wanted: int) -> components.Ports:
    """Free ones. All are held open together, so that they differ."""
    with contextlib.ExitStack() as held:

        def take(port: int = 0) -> int:
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise ClusterError(f"port {port} is taken: name another one with --port, or none") from None
            number: int = probe.getsockname()[1]
            return number

        return components.Ports(
            api=take(wanted),
            etcd=take(),
            etcd_peer=take(),
            controller_manager=take(),
            scheduler=take(),
            kubelets=tuple(take() for _ in range(nodes)),
        )


def _await_ready(cluster: LocalCluster, progress: Progress) -> None:
    _wait(lambda: _answers(cluster, "get", "--raw", "/readyz"), READY_SECONDS, "the API server", cluster)
    progress("waiting for the nodes")

    def default_account() -> bool:
        return _answers(cluster, "get", "serviceaccount", "default", "-n", "default")

    _wait(default_account, READY_SECONDS, "the controller manager", cluster)
    _wait(lambda: not _unready(cluster), READY_SECONDS, "every node to be Ready", cluster)


def _healthy(cluster: LocalCluster) -> bool:
    return _answers(cluster, "get", "--raw", "/readyz") and not _unready(cluster)


def _unready(cluster: LocalCluster) -> set[str]:
    """Nodes that pods cannot run on yet: not Ready, or still tainted so."""
    done = _kubectl(cluster, "get", "nodes", "-o", "json")
    if done.returncode != 0:
        return {*cluster.nodes, "the API server"}
    ready = {
        node["metadata"]["name"]
        for node in json.loads(done.stdout)["items"]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        and not node["spec"].get("taints")
    }
    return set(cluster.nodes) - ready


def _answers(cluster: LocalCluster, *arguments: str) -> bool:
    return _kubectl(cluster, *arguments).returncode == 0


def _kubectl(cluster: LocalCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(cluster.kubectl),
        "--kubeconfig",
        str(cluster.kubeconfig),
        "--request-timeout=5s",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _wait(
    condition: Callable[[], bool], seconds: float, what: str, cluster: LocalCluster | None = None
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if cluster is not None:
            _raise_if_broken(cluster)
        if time.monotonic() > deadline:
            hint = "\n".join(_hints(cluster)) if cluster is not None else ""
            raise ClusterError(f"waited {seconds:.0f} s in vain for {what}\n{hint}".rstrip())
        time.sleep(0.1)


def _raise_if_broken(cluster: LocalCluster) -> None:
    """A component that keeps ending will never get ready."""
    try:
        running = cluster.processes()
    except FileNotFoundError:
        return
    for name, process in running.items():
        if process["starts"] >= 5:
            tail = _log_tail(cluster, name)
            raise ClusterError(
                f"{name} ended {process['starts'] - 1} times, last with {process['exit']}:\n{tail}"
            )


def _hints(cluster: LocalCluster) -> Iterator[str]:
    for node in sorted(_unready(cluster) & set(cluster.nodes)):
        yield f"{node} is not Ready; the end of its kubelet's log:\n{_log_tail(cluster, f'kubelet-{node}')}"
    yield "try again with: python -m e2e.cluster up --fresh"


def _log_tail(cluster: LocalCluster, process: str, lines: int = 15) -> str:
    with contextlib.suppress(FileNotFoundError):
        return "\n".join(
            (cluster.folder / f"{process}.log").read_text(errors="replace").splitlines()[-lines:]
        )
    return "(no log)"
