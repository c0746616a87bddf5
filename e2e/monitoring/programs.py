"""promtool and Prometheus: those on PATH, else Debian's package, fetched once into the user's cache; no root, nothing is
installed.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from e2e.cluster.build import Progress, cache_folder, lock, quiet
from e2e.cluster.errors import ClusterError

PACKAGE: Final = "prometheus"
"""Brings both."""

INSTEAD: Final = "put prometheus and promtool (2.42 or newer) on PATH instead"


class MonitoringError(ClusterError):
    """They cannot be had here."""


def find(name: str, progress: Progress = quiet) -> Path:
    """`prometheus` or `promtool`.

    Raises:
        MonitoringError: it is not there, and cannot be fetched.
    """
    if (found := shutil.which(name)) is not None:
        return Path(found)
    folder = cache_folder().parent / "monitoring"
    program = folder / PACKAGE / "usr" / "bin" / name
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / "fetch.lock", "waiting for another fetch of the same package", progress):
            if not program.exists():
                progress(f"fetching Debian's package {PACKAGE} (once)")
                _fetch(folder)
    return program


def _fetch(folder: Path) -> None:
    for needed in ("apt-get", "dpkg-deb"):
        if shutil.which(needed) is None:
            raise MonitoringError(f"there is no {needed} here to fetch Debian's {PACKAGE} with: {INSTEAD}")
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetching-") as temporary:
        work = Path(temporary)
        for part in ("lists/partial", "cache/archives/partial"):
            (work / part).mkdir(parents=True)
        # The system's own package lists may be old or missing, and are root's to bring up to date: these are ours.
        own = ["-o", f"Dir::State::Lists={work}/lists", "-o", f"Dir::Cache={work}/cache"]
        if os.geteuid() == 0:
            own += ["-o", "APT::Sandbox::User=root"]
        for command in (
            ["apt-get", *own, "--quiet", "update"],
            ["apt-get", *own, "--quiet", "download", PACKAGE],
        ):
            _run(command, work)
        (package,) = work.glob(f"{PACKAGE}_*.deb")
        _run(["dpkg-deb", "-x", str(package), PACKAGE], work)
        shutil.rmtree(folder / PACKAGE, ignore_errors=True)
        (work / PACKAGE).rename(folder / PACKAGE)


def _run(command: list[str], work: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise MonitoringError(f"{command[0]} did not end within 300 s: {INSTEAD}") from None
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise MonitoringError(f"{command[0]} cannot fetch Debian's {PACKAGE}: {INSTEAD}\n{tail}")
