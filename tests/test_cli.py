"""The command line's errors: one line, and the process ends."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "versionedconfig", "run", "--metrics-port", "0", "--health-port", "0"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=30, check=False)


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    done = run("--kubeconfig", str(tmp_path / "none"))

    assert done.returncode == 2
    assert "--kubeconfig" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "nonsense", "{}", "current-context: x\n", "\x00"])
def test_a_kubeconfig_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    done = run("--kubeconfig", str(path))

    assert done.returncode == 1
    assert "cannot use the kubeconfig" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
