"""Builds the cluster's programs once and keeps them in the user's cache, by a key of all that goes into them.

Knows go and the Go module beside it; nothing of how the programs are run.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import platformdirs

from e2e.cluster.errors import ClusterError

MODULE: Final = Path(__file__).parent
KUBERNETES: Final = "v1.36.3"
NEEDED_BYTES: Final = 6 << 30
"""Measured: an empty module and build cache grow to 5 GB, the programs to 0.6 GB."""

TOOLS: Final = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "hollow-node": "./cmd/hollow-node",
}

APART: Final = {"helm": MODULE / "helm"}
"""Programs of a module of their own: what they depend on must not change what the cluster is made of."""


class Progress(Protocol):
    """Where to tell how far things are."""

    def __call__(self, message: str, /) -> None: ...


def quiet(message: str) -> None:
    """Tell nobody."""


def cache_folder() -> Path:
    """The user's cache for built programs and running clusters."""
    return platformdirs.user_cache_path("versionedconfig") / "cluster"


def programs(progress: Progress = quiet) -> Path:
    """The folder with all programs; builds them where they are not there yet.

    Raises:
        ClusterError: no Go, a Go too old, no room, a failed build.
    """
    version = _go_version()
    folder = cache_folder() / f"build-{_key(version)}"
    if (folder / "done").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_suffix(".lock"), "waiting for another build of the same programs", progress):
        if not (folder / "done").exists():
            _build(folder, progress)
    return folder


def _go_version() -> str:
    go = shutil.which("go")
    needed = re.search(r"^go (\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    wanted = needed.group(1) if needed else "?"
    if go is None:
        raise ClusterError(
            f"there is no Go here to build the local cluster with: install Go {wanted} or newer, "
            "or start a Docker engine and install kind, or name another cluster with KUBECONFIG"
        )
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, cwd=MODULE, check=False)
    version = done.stdout.strip().removeprefix("go")
    if done.returncode != 0 or _numbers(version) < _numbers(wanted):
        raise ClusterError(
            f"the local cluster needs Go {wanted} or newer and {go} is {version or done.stderr.strip()}: "
            "install a newer one, or name another cluster with KUBECONFIG"
        )
    return version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _key(go_version: str) -> str:
    digest = hashlib.sha256(f"{go_version} {KUBERNETES}".encode())
    sources = [*MODULE.glob("**/go.mod"), *MODULE.glob("**/go.sum"), *MODULE.glob("cmd/**/*.go")]
    for source in sorted([*sources, Path(__file__)]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path, progress: Progress) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise ClusterError(
            f"the first build needs {NEEDED_BYTES >> 30} GB of disk and {folder.parent} has {free >> 30}: "
            "make room, or set XDG_CACHE_HOME, GOCACHE and GOMODCACHE to a larger disk"
        )
    major, minor = _numbers(KUBERNETES)[:2]
    flags = " ".join(
        f"-X k8s.io/component-base/version.{name}={value}"
        for name, value in (("gitVersion", KUBERNETES), ("gitMajor", major), ("gitMinor", minor))
    )
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix="building-", ignore_cleanup_errors=True
    ) as temporary:
        work = Path(temporary, "go-tmp")
        work.mkdir()
        started = time.monotonic()
        for number, (name, package) in enumerate(TOOLS.items(), 1):
            progress(f"building {name} ({number} of {len(TOOLS)}; once, takes minutes)")
            command = [
                "go",
                "build",
                "-trimpath",
                "-ldflags",
                f"-s -w {flags}",
                "-o",
                f"{temporary}/{name}",
                package,
            ]
            code, complaints = _run_go(command, work, APART.get(name, MODULE))
            if code != 0:
                tail = "\n".join(complaints.strip().splitlines()[-15:])
                room = ": the disk is full, make room" if "no space left" in complaints else ""
                raise ClusterError(f"building {name} failed{room}:\n{tail}")
        shutil.rmtree(work)
        (Path(temporary) / "done").touch()
        Path(temporary).rename(folder)
        # TemporaryDirectory wants to find its folder again.
        Path(temporary).mkdir()
        progress(f"built in {time.monotonic() - started:.0f} s")


def _run_go(command: list[str], work: Path, module: Path) -> tuple[int, str]:
    """Exit code and stderr. When this process is told to end, go, its compilers and its work folder go too."""
    with subprocess.Popen(
        command,
        cwd=module,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CGO_ENABLED": "0", "GOTMPDIR": str(work)},
        start_new_session=True,
    ) as go:
        try:
            _, complaints = go.communicate()
        except BaseException:
            os.killpg(go.pid, signal.SIGKILL)
            raise
    return go.returncode, complaints


@contextlib.contextmanager
def lock(path: Path, meanwhile: str, progress: Progress) -> Iterator[None]:
    """One holder at a time; the others tell `meanwhile`. Held by the kernel: it goes with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(meanwhile)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
