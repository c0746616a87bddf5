"""Owns a cluster's processes: starts them, starts one again when it ends, and ends all of them with itself.

A process of its own, so that a cluster can outlive the command that made it. `python -m e2e.cluster.supervisor FOLDER`
reads FOLDER/processes.json and keeps FOLDER/running.json. Every child is killed by the kernel when this process dies, even
by SIGKILL; and this process ends when its standard input closes, that is when whoever started it is gone, unless a byte
came before: then it stays.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

RESTART_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def main(folder: Path) -> None:
    """Run until told to end; then the folder is removed."""
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    specification: dict[str, Any] = json.loads((folder / "processes.json").read_text())
    children: dict[str, subprocess.Popen[bytes]] = {}
    starts: dict[str, int] = {}
    exits: dict[str, int] = {}
    again: dict[str, float] = {}
    guard = die_with_parent()

    def start(name: str) -> None:
        process = specification["processes"][name]
        with (folder / f"{name}.log").open("ab") as log:
            children[name] = subprocess.Popen(
                process["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **process.get("env", {})},
                cwd=folder,
                preexec_fn=guard,
            )
        starts[name] = starts.get(name, 0) + 1

    def tell() -> None:
        running = {n: {"pid": c.pid, "starts": starts[n], "exit": exits.get(n)} for n, c in children.items()}
        temporary = folder / ".running.json"
        temporary.write_text(json.dumps(running))
        temporary.rename(folder / "running.json")

    try:
        for name in specification["processes"]:
            start(name)
        tell()
        tie = [sys.stdin]
        while not stopping:
            ready, _, _ = select.select(tie, [], [], 0.1)
            if ready:
                if not os.read(sys.stdin.fileno(), 1):
                    break
                tie = []
            now = time.monotonic()
            for name, child in list(children.items()):
                code = child.poll()
                if code is None:
                    continue
                if name not in again:
                    exits[name] = code
                    again[name] = now + RESTART_SECONDS
                elif now >= again[name]:
                    del again[name]
                    start(name)
                    tell()
    finally:
        _end(children)
        shutil.rmtree(specification["sockets"], ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _end(children: dict[str, subprocess.Popen[bytes]]) -> None:
    """At once, and wait for it. Nothing they hold is kept, and an API server that ends in good order first waits for
    its open watches."""
    for child in children.values():
        child.kill()
    for child in children.values():
        child.wait()


def die_with_parent() -> Callable[[], None]:
    """For a child before exec. Looked up here, since little may be done between fork and exec. This process has one
    thread, so "parent" means the process (prctl(2): it means the thread)."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def guard() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return guard


if __name__ == "__main__":
    main(Path(sys.argv[1]))
