"""A local cluster's life: up, found again, down; and what its pods really read on their nodes."""

import base64
import contextlib
import json
import re
import shutil
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
STOP_SECONDS: Final = 20.0
VOLUME_PLUGINS: Final = ("configmap", "secret", "projected")
ROOT: Final = Path(__file__).resolve().parents[2]

_started: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""Supervisors that are children of this process, by cluster. Their standard input is what ties them to it."""


@dataclass(frozen=True)
class LocalCluster:
    """A running one. Everything about it stands in its folder, which goes when it ends."""

    name: str
    folder: Path
    programs: Path
    nodes: tuple[str, ...]

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
        record = self._record(node, pod_uid, container)
        return None if record is None else dict(record["env"])

    def sub_paths(self, node: str, pod_uid: str, container: str) -> Mapping[str, bytes]:
        """The files of the container's mounts with a subPath, path in the container to content: those that were there
        when it was started the last time, since a mount of a file stays with that file."""
        record = self._record(node, pod_uid, container) or {"files": {}}
        return {path: base64.b64decode(content) for path, content in record["files"].items()}

    def restart(self, process: str) -> None:
        """Kill one process (`kubelet-node-0`, `kube-apiserver` …); returns when it was started again."""
        before = self._running()[process]
        supervisor = _supervisor(self.folder)
        # A pid alone may be somebody else's by now.
        children = supervisor.children() if supervisor is not None else []
        for child in children:
            if child.pid == before["pid"]:
                child.kill()
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
        stop(self.name)

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _record(self, node: str, pod_uid: str, container: str) -> dict[str, Any] | None:
        """What the node's runtime wrote when the container was created the last time."""
        record = self.folder / node / "env" / pod_uid / f"{container}.json"
        try:
            found: dict[str, Any] = json.loads(record.read_text())
        except FileNotFoundError:
            return None
        return found

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
    _folder(name)
    programs = build.programs(progress)
    locks = build.cache_folder() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with build.lock(locks / name, f"waiting for another start of {name}", progress):
        running = find(name)
        if (
            running is not None
            and not fresh
            and not tied
            and len(running.nodes) == nodes
            and _healthy(running)
        ):
            return running
        if running is not None and tied and not fresh:
            raise ClusterError(
                f"a cluster named {name} runs already: end it with: python -m e2e.cluster down --name {name}"
            )
        stop(name)
        return _start(name, nodes, programs, tied=tied, port=port, progress=progress)


def _start(
    name: str, nodes: int, programs: Path, *, tied: bool, port: int, progress: Progress
) -> LocalCluster:
    """A new one, when every node is Ready. It is tied to this process until then, whatever it is to be later."""
    folder = _folder(name)
    folder.mkdir(parents=True, mode=0o700)
    # A unix socket's path may have 107 bytes, and caches can be deep.
    sockets = Path(tempfile.mkdtemp(prefix="cluster-"))
    cluster = LocalCluster(name, folder, programs, components.node_names(nodes))
    try:
        commands = components.processes(folder, programs, sockets, _ports(nodes, port))
        specification = {"processes": commands, "sockets": str(sockets)}
        (folder / "processes.json").write_text(json.dumps(specification))
        started = time.monotonic()
        progress("starting etcd and the API server")
        with (folder / "supervisor.log").open("ab") as log:
            supervisor = _started[name] = subprocess.Popen(
                [sys.executable, "-m", "e2e.cluster.supervisor", str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
                bufsize=0,
            )
        state = {"pid": supervisor.pid, "programs": str(programs), "nodes": nodes}
        (folder / "cluster.json").write_text(json.dumps(state))
        _await_ready(cluster, progress)
        progress(f"{nodes} nodes Ready after {time.monotonic() - started:.1f} s")
        if not tied and supervisor.stdin is not None:
            supervisor.stdin.write(b"stay")
            supervisor.stdin.close()
    except BaseException:
        # KeyboardInterrupt too: nothing that was started here is left behind.
        stop(name)
        shutil.rmtree(sockets, ignore_errors=True)
        raise
    return cluster


def find(name: str) -> LocalCluster | None:
    """The running cluster of that name."""
    folder = _folder(name)
    state = _state(folder)
    if state is None or _supervisor(folder) is None:
        return None
    return LocalCluster(name, folder, Path(state["programs"]), components.node_names(state["nodes"]))


def names() -> list[str]:
    """Of all clusters that left a folder."""
    runs = build.cache_folder() / "run"
    return sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []


def stop(name: str) -> bool:
    """End the cluster of that name, whatever state it is in; False if there was nothing."""
    folder = _folder(name)
    there = folder.exists()
    supervisor = _supervisor(folder)
    if supervisor is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = supervisor.children()
            supervisor.terminate()
            if not _ends(supervisor, folder):
                # The kernel ends its children with it.
                supervisor.kill()
                _ends(supervisor, folder)
            psutil.wait_procs(children, STOP_SECONDS)
    if (child := _started.pop(name, None)) is not None:
        if child.stdin is not None:
            child.stdin.close()
        child.wait()
    # Where the supervisor was killed, its folders are still there.
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        sockets: str = json.loads((folder / "processes.json").read_text())["sockets"]
        shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    return there


def _ends(supervisor: psutil.Process, folder: Path) -> bool:
    """It does so in time. A zombie has ended: only its maker can reap it, who may be another process."""
    deadline = time.monotonic() + STOP_SECONDS
    while _supervises(supervisor, folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _folder(name: str) -> Path:
    """Everything in it is removed with the cluster, so no name may lead out of its parent."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ClusterError(
            f"{name!r} cannot name a cluster: take up to 100 letters, digits, dots, dashes and underscores, "
            "a letter or a digit first"
        )
    return build.cache_folder() / "run" / name


def _state(folder: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return state


def _supervisor(folder: Path) -> psutil.Process | None:
    state = _state(folder)
    try:
        process = psutil.Process(state["pid"]) if state is not None else None
    except psutil.NoSuchProcess:
        return None
    return process if process is not None and _supervises(process, folder) else None


def _supervises(process: psutil.Process, folder: Path) -> bool:
    """By its command line: a pid may be somebody else's by now, and times of birth move with the clock."""
    try:
        *_, module, supervised = process.cmdline()
    except (psutil.Error, ValueError):
        return False
    return module == "e2e.cluster.supervisor" and Path(supervised).resolve() == folder.resolve()


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
    """A component that keeps ending will never get ready, nor will what somebody ended meanwhile."""
    if find(cluster.name) is None:
        raise ClusterError(f"{cluster.name} was ended while it started: start it again")
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
