"""The local cluster's errors: one line that says what to do, and nothing left behind."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from e2e.cluster import build, components, local, provide
from e2e.cluster.errors import ClusterError
from e2e.cluster.pki import Authority

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def programs_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, **scripts: str) -> None:
    """A PATH with these shell scripts alone."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_no_go_names_every_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_on_path(monkeypatch, tmp_path / "bin")

    with pytest.raises(
        ClusterError, match=r"install Go 1\.\d+.* or newer, or start a Docker engine .*KUBECONFIG"
    ):
        build.programs()


def test_go_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_on_path(monkeypatch, tmp_path / "bin", go="echo go1.21.3")

    with pytest.raises(ClusterError, match=r"needs Go 1\.\d+.* is 1\.21\.3: install a newer one"):
        build.programs()


def test_a_go_that_cannot_even_say_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GOTOOLCHAIN=local and an old Go refuse a newer go.mod in words of their own."""
    programs_on_path(monkeypatch, tmp_path / "bin", go="echo 'go.mod requires go >= 9' >&2; exit 1")

    with pytest.raises(ClusterError, match=r"is go\.mod requires go >= 9"):
        build.programs()


NEW_GO = 'if [ "$1" = env ]; then echo go1.99.0; exit; fi'


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_on_path(monkeypatch, tmp_path / "bin", go=NEW_GO)
    monkeypatch.setattr(build, "NEEDED_BYTES", 1 << 60)

    with pytest.raises(ClusterError, match="make room, or set XDG_CACHE_HOME"):
        build.programs()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("undefined: x", "failed:\nundefined: x"),
        ("write: no space left on device", "the disk is full, make room"),
    ],
)
def test_a_failed_build_shows_its_end_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path, says: str, words: str
) -> None:
    programs_on_path(monkeypatch, tmp_path / "bin", go=f"{NEW_GO}; echo '{says}' >&2; exit 1")
    monkeypatch.setattr(build, "NEEDED_BYTES", 0)

    with pytest.raises(ClusterError) as caught:
        build.programs()

    assert words in str(caught.value)
    left = [path for path in own_cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not left


def test_programs_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "count"
    script = f'{NEW_GO}; echo built >> {counter}; while [ "$1" != -o ]; do shift; done; : > "$2"'
    programs_on_path(monkeypatch, tmp_path / "bin", go=script)
    monkeypatch.setattr(build, "NEEDED_BYTES", 0)
    told: list[str] = []

    folder = build.programs(told.append)

    assert {path.name for path in folder.iterdir()} == {*build.TOOLS, "done"}
    assert any(f"building hollow-node ({len(build.TOOLS)} of {len(build.TOOLS)}" in line for line in told)
    assert build.programs() == folder
    assert counter.read_text().count("built") == len(build.TOOLS)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]

        with pytest.raises(ClusterError, match=f"port {port} is taken: name another one with --port"):
            local._ports(3, port)


def test_ports_differ() -> None:
    ports = local._ports(20, 0)
    every = [
        ports.api,
        ports.etcd,
        ports.etcd_peer,
        ports.controller_manager,
        ports.scheduler,
        *ports.kubelets,
    ]

    assert len(set(every)) == 25


def test_kubeconfigs_are_private_and_signed_by_the_cluster(tmp_path: Path) -> None:
    authority = Authority.new(tmp_path / "pki")

    path = authority.kubeconfig(
        tmp_path / "node-0.kubeconfig", "https://127.0.0.1:1", "system:node:node-0", "system:nodes"
    )

    assert path.stat().st_mode & 0o077 == 0
    assert set(yaml.safe_load(path.read_text())["users"][0]["user"]) == {
        "client-certificate-data",
        "client-key-data",
    }
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "pki").iterdir())


SLEEPER = ["/bin/sh", "-c", "exec sleep 1000"]


def fake_components(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]) -> None:
    """Clusters of one process that is not Kubernetes, with a kubectl that says no."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "kubectl").write_text("#!/bin/sh\nexit 1\n")
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setattr(build, "programs", lambda progress: folder)
    monkeypatch.setattr(components, "processes", lambda *_: {"etcd": {"command": command}})
    monkeypatch.setattr(local, "READY_SECONDS", 1.0)


def processes_of(name: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if p.is_running() and name in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_what_never_gets_ready_is_told_with_its_log_and_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    fake_components(monkeypatch, tmp_path, SLEEPER)

    with pytest.raises(ClusterError, match=r"waited 1 s in vain for the API server"):
        local.up("never")

    assert not processes_of(str(own_cache))
    assert not local.names()


def test_a_node_that_never_gets_ready_is_told_with_its_kubelets_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_components(monkeypatch, tmp_path, SLEEPER)
    nodes = '{"items": [{"metadata": {"name": "node-0"}, "spec": {}, "status": {}}]}'
    (tmp_path / "programs" / "kubectl").write_text(f"#!/bin/sh\necho '{nodes}'\n")
    kubelet = {"command": ["/bin/sh", "-c", "echo cannot mount; exec sleep 1000"]}
    monkeypatch.setattr(components, "processes", lambda *_: {"kubelet-node-0": kubelet})

    with pytest.raises(
        ClusterError, match=r"for every node to be Ready\nnode-0 is not Ready; .*:\ncannot mount"
    ):
        local.up("unready", nodes=1)


def test_what_keeps_ending_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_components(monkeypatch, tmp_path, ["/bin/sh", "-c", "echo no such flag; exit 3"])
    monkeypatch.setattr(local, "READY_SECONDS", 30.0)

    with pytest.raises(ClusterError, match=r"etcd ended 4 times, last with 3:\nno such flag"):
        local.up("ends")


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_tied_cluster_dies_with_its_maker_even_by_sigkill(tmp_path: Path, own_cache: Path) -> None:
    """Whoever started it is gone: the supervisor and its children go, and the folder."""
    folder = own_cache / "run"
    folder.mkdir(parents=True)
    marker = f"100{os.getpid()}"
    specification = {
        "processes": {"etcd": {"command": ["/bin/sleep", marker]}},
        "sockets": str(tmp_path / "s"),
    }
    (folder / "processes.json").write_text(json.dumps(specification))
    maker = subprocess.Popen(
        [sys.executable, "-c", f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "e2e.cluster.supervisor", {str(folder)!r}], stdin=subprocess.PIPE)
time.sleep(1000)
"""],
        cwd=ROOT,
    )  # fmt: skip
    wait_for(lambda: processes_of(f"sleep {marker}") != [])

    maker.kill()
    maker.wait()

    wait_for(lambda: not processes_of(f"sleep {marker}") and not folder.exists())


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_children_die_with_a_killed_supervisor(tmp_path: Path, own_cache: Path) -> None:
    folder = own_cache / "run"
    folder.mkdir(parents=True)
    marker = f"200{os.getpid()}"
    specification = {
        "processes": {"etcd": {"command": ["/bin/sleep", marker]}},
        "sockets": str(tmp_path / "s"),
    }
    (folder / "processes.json").write_text(json.dumps(specification))
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "e2e.cluster.supervisor", str(folder)], cwd=ROOT, stdin=subprocess.PIPE
    )
    wait_for(lambda: processes_of(f"sleep {marker}") != [])
    assert supervisor.stdin is not None
    supervisor.stdin.write(b"stay")
    supervisor.stdin.close()
    time.sleep(0.5)
    assert supervisor.poll() is None, "it stays when it was told so"

    supervisor.kill()
    supervisor.wait()

    wait_for(lambda: not processes_of(f"sleep {marker}"))


def test_down_removes_what_a_crash_left(own_cache: Path) -> None:
    left = own_cache / "versionedconfig" / "cluster" / "run" / "old"
    left.mkdir(parents=True)
    sockets = own_cache / "sockets"
    sockets.mkdir()
    (left / "cluster.json").write_text('{"pid": 1, "programs": "/", "nodes": 3}')
    (left / "processes.json").write_text(json.dumps({"processes": {}, "sockets": str(sockets)}))

    assert local.find("old") is None  # pid 1 runs, but it is not ours
    assert local.stop("old")
    assert not left.exists()
    assert not sockets.exists()
    assert not local.stop("old")


@pytest.mark.parametrize("name", ["", ".", "..", "../precious", "/etc", "a/b", "-x", "x" * 101])
def test_no_name_leads_out_of_the_run_folder(own_cache: Path, name: str) -> None:
    """`down` removes the folder of that name."""
    precious = own_cache / "versionedconfig" / "cluster" / "precious"
    precious.mkdir(parents=True)

    with pytest.raises(ClusterError, match="cannot name a cluster"):
        local.stop(name)
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        local.up(name)

    assert precious.exists()


NODE_IS_READY = (
    '{"items": [{"metadata": {"name": "node-0"}, "spec": {}, '
    '"status": {"conditions": [{"type": "Ready", "status": "True"}]}}]}'
)
"""Good for every question that is asked of kubectl while a cluster starts."""


@pytest.fixture
def ready_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one sleeping process that is Ready as soon as it runs."""
    fake_components(monkeypatch, tmp_path, SLEEPER)
    (tmp_path / "programs" / "kubectl").write_text(
        f"#!/bin/sh\ntest -e $(dirname $2)/running.json && echo '{NODE_IS_READY}'\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.usefixtures("ready_components")
def test_another_process_can_end_it_while_its_maker_lives() -> None:
    """The supervisor stays a zombie until its maker looks, and has ended all the same."""
    cluster = local.up("mine", nodes=1)
    began = time.monotonic()

    subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "down", "--name", "mine"], cwd=ROOT, check=True, timeout=15
    )

    assert time.monotonic() - began < 10
    assert local.find("mine") is None
    assert not cluster.folder.exists()
    cluster.down()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.usefixtures("ready_components")
def test_up_finds_it_running_and_down_can_be_repeated() -> None:
    with local.up("again", nodes=1) as cluster:
        processes = cluster.processes()
        assert local.up("again", nodes=1) == cluster
        assert cluster.processes() == processes

        cluster.restart("etcd")
        assert cluster.processes()["etcd"]["starts"] == 2
        cluster.down()

    assert not processes_of(str(cluster.folder))


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.usefixtures("ready_components")
def test_a_link_to_the_cache_leads_to_the_same_clusters(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local.up("linked", nodes=1):
        other = own_cache.with_name("link")
        other.symlink_to(own_cache)
        monkeypatch.setenv("XDG_CACHE_HOME", str(other))

        assert local.find("linked") is not None


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_what_is_ended_while_it_starts_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_components(monkeypatch, tmp_path, SLEEPER)
    monkeypatch.setattr(local, "READY_SECONDS", 30.0)

    def end(message: str) -> None:
        threading.Timer(1, local.stop, ["brief"]).start()

    with pytest.raises(ClusterError, match="brief was ended while it started"):
        local.up("brief", progress=end)


def test_ending_a_build_ends_its_compilers_and_their_folders(tmp_path: Path, own_cache: Path) -> None:
    marker = f"300{os.getpid()}"
    script = f'{NEW_GO}; mkdir "$GOTMPDIR/go-build1"; sleep {marker} & wait'
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "go").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "go").chmod(0o755)
    code = "from e2e.cluster import __main__, build; build.NEEDED_BYTES = 0; __main__.main()"
    builder = subprocess.Popen(
        [sys.executable, "-c", code, "build"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: processes_of(f"sleep {marker}") != [])

    builder.terminate()

    assert builder.wait(10) == 143
    wait_for(lambda: not processes_of(f"sleep {marker}"))
    assert not list(own_cache.rglob("go-build*"))


def test_an_error_ends_with_2_and_shows_brackets_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "go").write_text("#!/bin/sh\necho 'go: [/healthz] is no option' >&2; exit 1\n")
    (folder / "go").chmod(0o755)

    done = subprocess.run(
        [sys.executable, "-m", "e2e.cluster", "up"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "is go: [/healthz] is no option: install a newer one" in done.stderr


# -- clusters of others ----------------------------------------------------------------------------------------------


def foreign_pod() -> dict[str, Any]:
    """With a volume of each sort, mounted in the second container."""
    volumes = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "part", "secret": {"secretName": "s"}},
    ]
    mounts = [
        {"name": "config", "mountPath": "/with space"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "part", "mountPath": "/part", "subPath": "key"},
    ]
    containers = [{"name": "first"}, {"name": "second", "volumeMounts": mounts}]
    statuses = [{"name": "first", "state": {"waiting": {}}}, {"name": "second", "state": {"running": {}}}]
    return {
        "metadata": {"uid": "u", "namespace": "ns", "name": "p"},
        "spec": {"volumes": volumes, "containers": containers},
        "status": {"containerStatuses": statuses},
    }


FOREIGN_KUBECTL = r"""
shift 2
case "$*" in
"get pods -A --field-selector spec.nodeName=n -o json") cat "$(dirname "$0")/pods.json" ;;
"exec -n ns p -c second -- find /with space -follow -type f") printf '/with space/..data/k\n/with space/k\n' ;;
"exec -n ns p -c second -- cat /with space/k") printf '\377\n' ;;
"exec -n ns p -c second -- find /part -follow -type f") printf '/part\n' ;;
"exec -n ns p -c second -- cat /part") printf '\376' ;;
"exec -n ns p -c second -- env -0") printf 'A=1\nB=2\0C=x=y\0' ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def foreign(tmp_path: Path) -> provide.ForeignCluster:
    """A kubectl that knows one pod."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{FOREIGN_KUBECTL}")
    kubectl.chmod(0o755)
    (tmp_path / "pods.json").write_text(json.dumps({"items": [foreign_pod()]}))
    return provide.ForeignCluster(tmp_path / "kubeconfig", kubectl)


def test_a_foreign_pods_config_volumes_are_read_byte_by_byte(foreign: provide.ForeignCluster) -> None:
    assert foreign.files("n", "u") == {"config/k": b"\xff\n"}


def test_a_foreign_containers_environment(foreign: provide.ForeignCluster) -> None:
    assert foreign.environment("n", "u", "second") == {"A": "1\nB=2", "C": "x=y"}
    assert foreign.environment("n", "u", "first") is None


def test_what_a_foreign_container_mounts_by_sub_path(foreign: provide.ForeignCluster) -> None:
    assert foreign.sub_paths("n", "u", "second") == {"/part": b"\xfe"}
    assert foreign.sub_paths("n", "u", "first") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.usefixtures("ready_components")
def test_the_local_cluster_is_known_by_its_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` prints it for the shell; pods there can be read from their nodes alone."""
    with local.up("mine", nodes=1) as cluster:
        cluster.kubeconfig.write_text("")
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))

        with provide.find() as found:
            assert found == cluster
        assert local.find("mine") == cluster, "it was there before, and stays"


def test_a_kubeconfig_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/a:/nowhere/b")

    with pytest.raises(ClusterError, match="KUBECONFIG must name one file"), provide.find():
        pass


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_the_go_module_pins_what_the_launcher_builds() -> None:
    module = (build.MODULE / "go.mod").read_text()

    assert f"k8s.io/kubernetes {build.KUBERNETES}" in module
    for name, package in build.TOOLS.items():
        named = re.compile(rf"^(tool |\t){re.escape(package)}$", re.MULTILINE)
        assert package.startswith("./cmd/") or named.search(
            (build.APART.get(name, build.MODULE) / "go.mod").read_text()
        )
