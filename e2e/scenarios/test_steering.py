"""`versionedconfig status`, `history`, `diff`, `pin` and their like, as people run them. No operator runs: what it would
have written is written by hand, so that each state can be had at once."""

import asyncio
import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pykube
import pytest

from e2e import harness
from e2e.harness import (
    Kubectl,
    Manifest,
    Operator,
    config_map,
    fetch,
    secret,
    versioned_config,
    versioned_configs,
    wait_until,
)
from versionedconfig.commands import steer
from versionedconfig.commands.configs import Config, Refused
from versionedconfig.kube.api import Api
from versionedconfig.model import ObjectKey

OLD, MIDDLE, NEW = "2222222222", "4444444444", "4gggggggg2"
HASHES: Final = (OLD, MIDDLE, NEW)
DAY: Final = "2026-01-0{}T00:00:00Z"


def run(
    kubectl: Kubectl, namespace: str, *arguments: str, kubeconfig: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in that namespace, as an administrator or with that kubeconfig."""
    command = [sys.executable, "-m", "versionedconfig", *arguments, "-n", namespace]
    command += ["--kubeconfig", str(kubeconfig or kubectl.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def ask(kubectl: Kubectl, namespace: str, *arguments: str, code: int = 0) -> Any:
    """Its answer, decoded."""
    done = run(kubectl, namespace, *arguments, "-o", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def refusal(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that it said."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def condition(kind: str, status: str, reason: str, message: str = "", generation: int = 1) -> Manifest:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": DAY.format(1),
        "observedGeneration": generation,
    }


def target(name: str, state: str, version: str, **more: Any) -> Manifest:
    return {
        "kind": "Deployment",
        "name": name,
        "state": state,
        "version": version,
        "since": DAY.format(3),
        **more,
    }


def tell(kubectl: Kubectl, namespace: str, name: str, **status: Any) -> None:
    """Write that into its status, as the operator does."""
    body = json.dumps({"status": status})
    patch = ("patch", "vcfg", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", body)
    kubectl(*patch)


def rolled_out(name: str) -> Manifest:
    """A status after three versions; the second one failed."""
    versions: list[Manifest] = [
        {
            "name": f"{name}-{hash_}",
            "hash": hash_,
            "created": DAY.format(number + 1),
            "since": DAY.format(number + 1),
            "state": "Unused",
            "cause": "SpecChange",
            "result": "Succeeded",
        }
        for number, hash_ in enumerate(HASHES)
    ]
    versions[0] |= {"state": "InUse"}
    versions[0]["users"] = {"pods": 0, "revisions": 2, "workloads": ["Deployment/api"]}
    versions[1] |= {"result": "Failed", "message": "Deployment web does not get healthy"}
    versions[2] |= {"state": "Current", "cause": "Rollback"}
    versions[2]["users"] = {"pods": 4, "revisions": 0, "workloads": ["Deployment/web"]}
    return {
        "observedGeneration": 1,
        "currentVersion": f"{name}-{NEW}",
        "latestVersion": f"{name}-{NEW}",
        "currentSince": DAY.format(3),
        "targetsSummary": "1/2",
        "versions": versions[::-1],
        "targets": [
            target("api", "Overridden", f"{name}-{OLD}"),
            target("web", "Updated", f"{name}-{NEW}"),
        ],
        "conditions": [
            condition("Ready", "True", "UpToDate", "1 of 2 targets use it; set back by hand: api"),
            condition("Reconciling", "False", "NotReconciling"),
        ],
    }


@pytest.fixture
def shop(stopped_operator: Operator, kubectl: Kubectl, namespace: str) -> str:
    """A namespace with `app`, of ConfigMaps, and `keys`, of Secrets, each with three versions."""
    files = ({"MODE": "blue", "OLD": "x"}, {"MODE": "red"}, {"MODE": "green\n", "NEW": "y"})
    kubectl.create(
        namespace,
        versioned_config("app", files[-1]),
        versioned_config("keys", {"TOKEN": "Z3JlZW4="}, kind="Secret"),
        *(config_map(f"app-{hash_}", data) for hash_, data in zip(HASHES, files, strict=True)),
        secret(f"keys-{OLD}", {"TOKEN": "swordfish", "SAME": "opensesame", "GONE": "abracadabra"}),
        secret(f"keys-{MIDDLE}", {"TOKEN": "swordfish"}),
        secret(f"keys-{NEW}", {"TOKEN": "hocuspocus1", "SAME": "opensesame", "MORE": "alakazam"}),
    )
    for name in ("app", "keys"):
        tell(kubectl, namespace, name, **rolled_out(name))
    return namespace


def live(api: pykube.HTTPClient, namespace: str, name: str = "app") -> Manifest:
    found = fetch(api, versioned_configs(api), namespace, name)
    assert found is not None
    return found


# -- looking ---------------------------------------------------------------------------------------------------------


def test_history_tells_what_became_of_each_version(kubectl: Kubectl, shop: str) -> None:
    versions = ask(kubectl, shop, "history", "app")["versions"]

    assert [version["hash"] for version in versions] == [NEW, MIDDLE, OLD]
    assert [version["marks"] for version in versions] == [["current", "latest"], [], []]
    assert versions[2]["users"] == {"pods": 0, "revisions": 2, "workloads": ["Deployment/api"]}
    text = run(kubectl, shop, "history", "vcfg/app").stdout
    assert "Deployment/web, 4 pods" in text
    assert "Deployment/api, 2 old revisions" in text
    assert f"{MIDDLE}: Deployment web does not get healthy" in text


def test_diff_shows_what_changed(kubectl: Kubectl, shop: str) -> None:
    done = run(kubectl, shop, "diff", "app")

    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        f"--- app-{MIDDLE}/MODE",
        f"+++ app-{NEW}/MODE",
        "@@ -1 +1 @@",
        "-red",
        "\\ No newline at end of file",
        "+green",
        "--- /dev/null",
        f"+++ app-{NEW}/NEW",
        "@@ -0,0 +1 @@",
        "+y",
        "\\ No newline at end of file",
    ]
    answer = ask(kubectl, shop, "diff", "app", "22", "current", code=1)
    assert (answer["from"], answer["to"]) == (f"app-{OLD}", f"app-{NEW}")
    whats = {change["key"]: change["what"] for change in answer["changes"]}
    assert whats == {"MODE": "Changed", "NEW": "Added", "OLD": "Removed"}
    same = run(kubectl, shop, "diff", "app", "latest", "current")
    assert (same.returncode, same.stdout) == (0, f"no difference between app-{NEW} and app-{NEW}\n")
    assert f"beginning of {NEW}, {MIDDLE}" in refusal(run(kubectl, shop, "diff", "app", "4"), code=2)
    assert "there are: " in refusal(run(kubectl, shop, "diff", "app", "999"), code=2)


def test_diff_of_secrets_shows_no_value(kubectl: Kubectl, shop: str) -> None:
    text = run(kubectl, shop, "diff", "keys", OLD, NEW)
    document = run(kubectl, shop, "diff", "keys", OLD, NEW, "-o", "json")

    assert (text.returncode, document.returncode) == (1, 1)
    assert text.stdout.splitlines() == [
        f"Secret keys-{OLD} -> keys-{NEW}:",
        "  removed GONE: 11 bytes",
        "  added MORE: 8 bytes",
        "  changed TOKEN: 9 -> 11 bytes",
    ]
    for value in ("swordfish", "opensesame", "abracadabra", "hocuspocus1", "alakazam"):
        assert value not in text.stdout + text.stderr + document.stdout + document.stderr


def test_a_version_that_somebody_deleted_is_said_to_be_gone(kubectl: Kubectl, shop: str) -> None:
    kubectl("delete", "configmap", f"app-{MIDDLE}", "-n", shop)

    assert "is not there any more" in refusal(run(kubectl, shop, "diff", "app"), code=2)


def test_status_has_on_top_what_needs_attention(kubectl: Kubectl, shop: str, namespace: str) -> None:
    done = run(kubectl, shop, "status", "app")

    lines = done.stdout.splitlines()
    assert lines[0] == f"ConfigMap {shop}/app  Ready=True  Reconciling=False"
    assert [line.split()[1:4] for line in lines if line.startswith("Deployment ")] == [
        ["api", f"app-{OLD}", "Overridden"],
        ["web", f"app-{NEW}", "Updated"],
    ]
    every = ask(kubectl, shop, "status")["configs"]
    assert [(row["name"], row["kind"], row["targets"]) for row in every] == [
        ("app", "ConfigMap", "1/2"),
        ("keys", "Secret", "1/2"),
    ]
    everywhere = run(kubectl, shop, "status", "-A").stdout
    assert everywhere.startswith("NAMESPACE")
    assert shop in everywhere
    kubectl("delete", "vcfg", "--all", "-n", shop)
    assert "no VersionedConfigs" in run(kubectl, shop, "status").stdout


# -- steering --------------------------------------------------------------------------------------------------------


def test_pin_and_back(kubectl: Kubectl, api: pykube.HTTPClient, shop: str) -> None:
    answer = ask(kubectl, shop, "pin", "app", "22")
    assert (answer["changed"], answer["pin"]) == (True, OLD)
    pinned = live(api, shop)
    assert pinned["spec"]["pin"] == OLD
    managers = {field["manager"] for field in pinned["metadata"]["managedFields"]}
    assert "kubectl-versionedconfig" in managers

    again = run(kubectl, shop, "pin", "app", f"app-{OLD}")
    assert again.stdout.startswith(f"app: pinned to app-{OLD} already")
    assert live(api, shop)["metadata"]["resourceVersion"] == pinned["metadata"]["resourceVersion"]
    assert "pinned" in run(kubectl, shop, "history", "app").stdout

    done = run(kubectl, shop, "unpin", "app")
    assert done.stdout == f"app: follows its content again: targets go to app-{NEW}\n"
    free = live(api, shop)
    assert "pin" not in free["spec"]
    assert free["spec"]["data"] == pinned["spec"]["data"]
    assert not ask(kubectl, shop, "unpin", "app")["changed"]
    assert live(api, shop)["metadata"]["resourceVersion"] == free["metadata"]["resourceVersion"]


def test_a_pin_to_nothing_is_refused(kubectl: Kubectl, api: pykube.HTTPClient, shop: str) -> None:
    before = live(api, shop)

    said = refusal(run(kubectl, shop, "pin", "app", "999"))

    assert f"there are: {NEW} (current, latest), {MIDDLE} (failed), {OLD}" in said
    assert live(api, shop) == before


def test_rollback_passes_over_what_failed(kubectl: Kubectl, api: pykube.HTTPClient, shop: str) -> None:
    done = run(kubectl, shop, "rollback", "app")

    assert done.returncode == 0, done.stderr
    assert live(api, shop)["spec"]["pin"] == OLD
    assert f"pinned to app-{OLD}" in done.stdout
    assert f"versionedconfig unpin app -n {shop}" in done.stdout
    to = run(kubectl, shop, "rollback", "app", "--to", MIDDLE)
    assert live(api, shop)["spec"]["pin"] == MIDDLE
    assert "its last rollout failed" in to.stdout


def test_pause_and_resume(kubectl: Kubectl, api: pykube.HTTPClient, shop: str) -> None:
    assert ask(kubectl, shop, "pause", "app")["paused"]
    paused = live(api, shop)
    assert paused["spec"]["rollout"]["paused"]
    assert not ask(kubectl, shop, "pause", "app")["changed"]
    assert live(api, shop) == paused
    assert "resume app" in run(kubectl, shop, "pin", "app", OLD).stdout

    assert ask(kubectl, shop, "resume", "app")["changed"]
    assert not live(api, shop)["spec"]["rollout"]["paused"]
    assert not ask(kubectl, shop, "resume", "app")["changed"]


def test_another_object_of_that_name_is_not_written_to(
    kubectl: Kubectl, api: pykube.HTTPClient, shop: str
) -> None:
    """Somebody makes it anew between what was read and what is written."""

    def replaced(config: Config) -> steer.Step:
        kubectl("delete", "vcfg", "app", "-n", shop)
        kubectl.create(shop, versioned_config("app", {"MODE": "another"}))
        return steer.pin(config, OLD, "versionedconfig")

    async def try_it() -> None:
        client = await Api.connect(str(kubectl.kubeconfig))
        try:
            await steer.steer(client, ObjectKey(shop, "app"), replaced)
        finally:
            await client.close()

    with pytest.raises(Refused, match="deleted or replaced"):
        asyncio.run(try_it())
    assert "pin" not in live(api, shop)["spec"]


# -- following -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watching(
    kubectl: Kubectl, namespace: str, *options: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`status app --watch` as it runs, and the lines that it has said."""
    command = [sys.executable, "-m", "versionedconfig", "status", "app", "--watch", *options]
    command += ["-n", namespace, "--kubeconfig", str(kubectl.kubeconfig)]
    said: list[str] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        stdout = process.stdout
        reader = threading.Thread(target=lambda: said.extend(stdout))
        reader.start()
        try:
            yield process, said
            process.wait(30)
        finally:
            process.kill()
            reader.join()


def rolling(kubectl: Kubectl, namespace: str, web: str, ready: str = "False", **more: str) -> None:
    """One step of a rollout, as the operator tells it."""
    message = f"{int(web == 'Updated')} of 1 targets are updated"
    conditions = [condition("Ready", ready, "RollingOut", message)]
    conditions += [condition(kind, status, "TargetFailed", "no luck") for kind, status in more.items()]
    tell(
        kubectl,
        namespace,
        "app",
        targets=[target("web", web, f"app-{NEW}")],
        conditions=conditions,
    )


def test_a_rollout_is_followed_to_its_end(kubectl: Kubectl, shop: str) -> None:
    rolling(kubectl, shop, "Waiting")
    with watching(kubectl, shop) as (process, said):
        wait_until(lambda: any("Waiting" in line for line in said), 30, "the first state is told")
        rolling(kubectl, shop, "Updating")
        wait_until(lambda: any("Updating" in line for line in said), 30, "the second state is told")
        assert process.poll() is None
        rolling(kubectl, shop, "Updated", ready="True")

    assert process.returncode == 0
    assert said[0] == f"Deployment/web: Waiting at app-{NEW}\n"
    assert said[-1] == "app: 1/1 targets updated: RollingOut: 1 of 1 targets are updated\n"


def test_a_failure_ends_it(kubectl: Kubectl, shop: str) -> None:
    rolling(kubectl, shop, "Updating")
    with watching(kubectl, shop, "-o", "json") as (process, said):
        wait_until(lambda: said, 30, "the first state is told")
        rolling(kubectl, shop, "Failed", Degraded="True")

    assert process.returncode == 1
    assert [json.loads(line)["outcome"] for line in said] == ["Going", "Failed"]


def test_a_deletion_ends_it(kubectl: Kubectl, shop: str) -> None:
    rolling(kubectl, shop, "Updating")
    with watching(kubectl, shop) as (process, said):
        wait_until(lambda: said, 30, "the first state is told")
        kubectl("delete", "vcfg", "app", "-n", shop)

    assert process.returncode == 1
    assert said[-1] == "error: app was deleted\n"


def test_ready_for_an_older_spec_is_no_end(kubectl: Kubectl, shop: str) -> None:
    kubectl("patch", "vcfg", "app", "-n", shop, "--type=merge", "-p", '{"spec":{"data":{"MODE":"pink"}}}')
    with watching(kubectl, shop) as (process, said):
        wait_until(lambda: any("last change" in line for line in said), 30, "it says what it waits for")
        assert process.poll() is None
        tell(
            kubectl,
            shop,
            "app",
            observedGeneration=2,
            conditions=[condition("Ready", "True", "UpToDate", generation=2)],
        )

    assert process.returncode == 0


def test_in_a_terminal_it_is_drawn_live(kubectl: Kubectl, shop: str) -> None:
    command = [sys.executable, "-m", "versionedconfig", "status", "app", "-w", "-n", shop]
    command += ["--kubeconfig", str(kubectl.kubeconfig)]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        drawn = b""
        # Linux tells the end of the other side by an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                drawn += part
        os.close(ours)

    assert process.returncode == 0
    assert b"\x1b[" in drawn
    assert "━".encode() in drawn
    assert b"Overridden" in drawn


# -- kubectl, errors and rights --------------------------------------------------------------------------------------


def test_it_is_a_kubectl_plugin(kubectl: Kubectl, shop: str) -> None:
    def plugin(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubectl.kubeconfig)}
        command = [str(kubectl.program), "versionedconfig", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    done = plugin("history", "app", "-n", shop)
    assert done.returncode == 0, done.stderr
    assert NEW in done.stdout
    assert plugin("diff", "app", "-n", shop).returncode == 1
    assert "kubectl versionedconfig unpin app" in plugin("rollback", "app", "-n", shop).stdout
    assert "Usage: kubectl versionedconfig history" in plugin("history", "--help").stdout


def test_what_is_not_there_is_told(kubectl: Kubectl, shop: str) -> None:
    for command in (("history", "ap"), ("status", "ap"), ("status", "ap", "--watch"), ("unpin", "ap")):
        said = refusal(run(kubectl, shop, *command))
        assert f"no VersionedConfig ap in namespace {shop}; there are: app, keys" in said
    assert "-n names another" in refusal(run(kubectl, "default", "history", "ap"))
    assert "cannot be a name" in refusal(run(kubectl, shop, "pin", "..", "22"))

    kubectl.create(shop, versioned_config("fresh", {"MODE": "blue"}))
    for command in (("history", "fresh"), ("pin", "fresh", "22"), ("rollback", "fresh")):
        said = refusal(run(kubectl, shop, *command))
        assert "no versions yet, and no operator has looked at it" in said
    tell(kubectl, shop, "fresh", conditions=[condition("Stalled", "True", "NotSupported", "leave it out")])
    assert "no versions yet: NotSupported: leave it out" in refusal(
        run(kubectl, shop, "diff", "fresh"), code=2
    )


def test_the_role_of_an_editor_suffices(
    kubectl: Kubectl, api: pykube.HTTPClient, shop: str, tmp_path: Path
) -> None:
    accounts = {}
    for role in ("edit", "view"):
        kubectl("create", "serviceaccount", role, "-n", shop)
        account = f"--serviceaccount={shop}:{role}"
        kubectl("create", "rolebinding", role, "-n", shop, f"--clusterrole={role}", account)
        accounts[role] = harness.account_kubeconfig(kubectl, tmp_path / role, role, shop)
    steps = (
        ("history", "app"),
        ("status", "app"),
        ("status",),
        ("status", "app", "--watch"),
        ("rollback", "app"),
        ("unpin", "app"),
    )
    for step in steps:
        done = run(kubectl, shop, *step, kubeconfig=accounts["edit"])
        assert done.returncode == 0, (step, done.stderr)
        said = refusal(run(kubectl, shop, *step, kubeconfig=accounts["view"]))
        assert "you may not " in said
    for name in ("app", "keys"):
        done = run(kubectl, shop, "diff", name, kubeconfig=accounts["edit"])
        assert done.returncode == 1, done.stderr
    said = refusal(run(kubectl, shop, "status", "-A", kubeconfig=accounts["edit"]))
    assert "you may not list versionedconfigs in all namespaces" in said
    # Who may look at VersionedConfigs and not at Secrets.
    kubectl(
        "create", "role", "look", "-n", shop, "--verb=get", "--resource=versionedconfigs.versionedconfig.io"
    )
    kubectl("create", "rolebinding", "look", "-n", shop, "--role=look", f"--serviceaccount={shop}:view")
    said = refusal(run(kubectl, shop, "diff", "keys", kubeconfig=accounts["view"]), code=2)
    assert f"you may not get secrets in namespace {shop}" in said
    assert "patch" in refusal(run(kubectl, shop, "pin", "app", OLD, kubeconfig=accounts["view"]))


def test_a_cluster_that_does_not_know_the_kind(
    stopped_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    kubectl("delete", "crd", "versionedconfigs.versionedconfig.io")
    try:
        for command in (("history", "app"), ("status",), ("status", "app", "--watch"), ("pin", "app", "22")):
            said = refusal(run(kubectl, namespace, *command))
            assert "this cluster does not know VersionedConfigs" in said
    finally:
        harness.install(kubectl, api)
