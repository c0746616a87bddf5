"""`make demo`: the fault and who is hit by it, the protection and a VersionedConfig on a real cluster, told step by step.

Every statement that is printed with a mark was checked a moment before; the first one that does not hold ends the
demonstration with exit code 1. Nothing is left behind, however it ends, unless --keep is given.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pykube
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from e2e import cluster as clusters
from e2e import harness
from e2e.cluster import LocalCluster, local
from e2e.harness import Kubectl, Manifest, Operator, Reading, config_map, deployment, wait_until

NAME = "demo"
REPLICAS = 7


class NotTrue(Exception):
    """A statement that does not hold."""


class Story:
    """One namespace, and the means to tell and to show what happens in it."""

    def __init__(
        self, console: Console, cluster: LocalCluster, api: pykube.HTTPClient, namespace: str
    ) -> None:
        self.console = console
        self.cluster = cluster
        self.api = api
        self.namespace = namespace
        self.kubectl = Kubectl(cluster.kubectl, cluster.kubeconfig)
        self.kubectl("create", "namespace", namespace)

    def title(self, text: str) -> None:
        """A part begins."""
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    def say(self, text: str) -> None:
        """What comes next, and why."""
        self.console.print(f"\n{text}")

    def run(
        self, *args: str, stdin: Manifest | None = None, fails: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl for all to see, with what it answers. `fails`: it has to."""
        where = ("-n", self.namespace)
        comment = f"  [dim]# {escape(summary(stdin))}[/]" if stdin else ""
        self.console.print(
            f"  [cyan]$ kubectl {escape(shlex.join((*args, *where)))}[/]{comment}",
            highlight=False,
            soft_wrap=True,
        )
        done = self.kubectl(*args, *where, stdin=harness.as_list([stdin]) if stdin else None, check=not fails)
        for line in (done.stdout + done.stderr).splitlines():
            colour = "yellow" if line.startswith(("Warning", "Error")) else "dim"
            self.console.print(f"    [{colour}]{escape(line)}[/]", highlight=False, soft_wrap=True)
        if fails:
            self.holds("that is refused", done.returncode != 0)
        return done

    def holds(self, statement: str, truth: bool) -> None:
        """A statement, checked.

        Raises:
            NotTrue: it does not hold.
        """
        mark = "[green]✓[/]" if truth else "[red]✗[/]"
        self.console.print(f"  {mark} {escape(statement)}", highlight=False)
        if not truth:
            raise NotTrue(statement)

    def roll_out(self) -> None:
        """Wait for the Deployment."""
        with self.console.status("the Deployment rolls out …"):
            harness.wait_for_rollout(self.kubectl, self.namespace)

    def content(self, name: str, key: str) -> str:
        """What the API server says."""
        found = harness.fetch(self.api, pykube.ConfigMap, self.namespace, name)
        return str(found["data"][key]) if found else "(nothing)"

    def readings(self, said: str, key: str, count: int) -> list[Reading]:
        """A table of what each pod reads, beside what the API server says."""
        found = harness.pods_read(self.cluster, self.api, self.namespace)
        table = Table("node", "pod", "the API server says", "the pod reads", title_justify="left")
        for reading in sorted(found, key=lambda reading: (reading.node, reading.pod)):
            values = sorted(reading.mode(key=key))
            colour = "green" if values == [said] else "bold red"
            table.add_row(reading.node, reading.pod, said, f"[{colour}]{escape(', '.join(values))}[/]")
        self.console.print(table)
        self.holds(f"{count} pods run", len(found) == count)
        return found


def summary(manifest: Manifest) -> str:
    """What a manifest is about, on one line."""
    spec = manifest.get("spec", {})
    data = manifest.get("data") or spec.get("data") or {}
    said = [f"{key}={value}" for key, value in data.items()]
    said += ["immutable"] if manifest.get("immutable") else []
    said += [f"{spec['replicas']} replicas"] if "replicas" in spec else []
    return f"{manifest['kind']} {manifest['metadata']['name']}: {', '.join(said)}"


# -- (a) -------------------------------------------------------------------------------------------------------------


def put_to_use(story: Story, content: str) -> None:
    """An immutable ConfigMap, and pods on every node that read it."""
    story.say(f"An immutable ConfigMap, and a Deployment of {REPLICAS} replicas that uses it:")
    story.run("create", "-f", "-", stdin=config_map("testcm", {"MODE": content}))
    story.run(
        "create", "-f", "-", stdin=deployment(spec=harness.reading_pod_spec("testcm"), replicas=REPLICAS)
    )
    story.roll_out()


def fault(story: Story) -> set[str]:
    """Without the operator: old content under a new object. The pods that read it."""
    story.title("(a) What goes wrong without the operator")
    put_to_use(story, "old")
    story.say(
        "The content has to change. It is immutable, so it is deleted and created anew, and the pods restarted:"
    )
    story.run("delete", "configmap/testcm")
    story.run("create", "-f", "-", stdin=config_map("testcm", {"MODE": "new"}))
    story.run("rollout", "restart", "deployment/web")
    story.roll_out()

    found = story.readings(story.content("testcm", "MODE"), "MODE", REPLICAS)
    nodes = sorted({reading.node for reading in found})
    stale = sorted({reading.node for reading in found if reading.mode() == {"old"}})
    story.holds("the API server says: new", story.content("testcm", "MODE") == "new")
    story.holds("every pod was started after the new object had been created", _younger(story, "testcm"))
    story.holds(f"and yet the pods on {len(stale)} of {len(nodes)} nodes read: old", bool(stale))
    told = [event for event in harness.fetch_all(story.api, pykube.Event, story.namespace) if _about(event)]
    story.holds("no Event says a word about testcm", not told)
    return {reading.pod for reading in found if reading.mode() == {"old"}}


def found_afterwards(story: Story, old: set[str]) -> None:
    """The operator came after the damage."""
    story.say("It came when all that had happened already. What does it say of it?")
    with story.console.status("the operator looks back …"):
        wait_until(lambda: _called_stale(story), 15, "a StaleConfig")
    story.run("get", "stalecfg")
    story.holds(
        f"it names the {len(old)} pods that read the old content, and no other", _called_stale(story) == old
    )


def _called_stale(story: Story) -> set[str]:
    kind = pykube.object_factory(story.api, "versionedconfig.io/v1alpha1", "StaleConfig")
    found = harness.fetch(story.api, kind, story.namespace, "configmap-testcm") or {}
    nodes = found.get("status", {}).get("nodes", [])
    return {pod["name"] for node in nodes for pod in node["pods"] if pod["verdict"] == "Stale"}


def _younger(story: Story, name: str) -> bool:
    created = (harness.fetch(story.api, pykube.ConfigMap, story.namespace, name) or {})["metadata"]
    pods = harness.live_pods(story.api, story.namespace)
    return all(pod["metadata"]["creationTimestamp"] >= created["creationTimestamp"] for pod in pods)


def _about(event: Manifest) -> bool:
    return "testcm" in event.get("message", "") or event["involvedObject"].get("name") == "testcm"


# -- (b) -------------------------------------------------------------------------------------------------------------


def protection(story: Story) -> None:
    """With the operator: the same steps."""
    story.title("(b) The same steps with the operator")
    put_to_use(story, "old")
    with story.console.status("the ConfigMap is being protected …"):
        harness.wait_protected(story.api, story.namespace, "testcm")
    story.holds(f"the ConfigMap carries the finalizer {harness.IN_USE}", True)

    story.say("The same deletion:")
    deleted = story.run("delete", "configmap/testcm", "--wait=false")
    story.holds("kubectl warned", "Warning:" in deleted.stderr)
    story.run("create", "-f", "-", stdin=config_map("testcm", {"MODE": "new"}), fails=True)
    story.holds("the object, and with it its name, is still there", story.content("testcm", "MODE") == "old")
    with story.console.status("an Event will tell who holds it …"):
        (event,) = wait_until(
            lambda: harness.events(story.api, story.namespace, "testcm", "DeletionBlocked"),
            15,
            "an Event on the ConfigMap",
        )
    story.say("Who holds it?")
    story.run("events", "--for=configmap/testcm", "--types=Warning")
    names = [pod["metadata"]["name"] for pod in harness.live_pods(story.api, story.namespace)]
    named = [name for name in names if name in event["message"]]
    story.holds(
        f"the Event names {len(named)} pods and counts {REPLICAS - len(named)} more",
        bool(named) and f"and {REPLICAS - len(named)} more" in event["message"],
    )

    story.run("rollout", "restart", "deployment/web")
    story.roll_out()
    found = story.readings("old", "MODE", REPLICAS)
    story.holds(
        "every pod on every node reads what the API server says", all(r.mode() == {"old"} for r in found)
    )

    story.say("When the last pod is gone, the name is free:")
    story.run("delete", "deployment/web")
    with story.console.status("the pods end …"):
        harness.wait_gone(story.api, story.namespace, "testcm")
    story.holds(
        "no pod is left, and the ConfigMap is gone", not harness.live_pods(story.api, story.namespace)
    )
    put_to_use(story, "new")
    found = story.readings("new", "MODE", REPLICAS)
    story.holds("every pod on every node reads: new", all(r.mode() == {"new"} for r in found))


# -- (c) -------------------------------------------------------------------------------------------------------------


def versions(story: Story) -> None:
    """A VersionedConfig: content changes without any name being used twice."""
    story.title("(c) A VersionedConfig: change content, break it, go back")
    story.say("Content with a logical name, and a Deployment that refers to that name:")
    spec = harness.reading_pod_spec("app-config")
    crash = {"name": "app-config", "key": "CRASH", "optional": True}
    spec["containers"][0]["env"].append({"name": "CRASH", "valueFrom": {"configMapKeyRef": crash}})
    rollout = {"minReadySeconds": 3}
    resource = harness.versioned_config("app-config", {"MODE": "first"}, rollout=rollout)
    story.run("apply", "-f", "-", stdin=resource)
    first = _ready(story)
    story.run("apply", "-f", "-", stdin=deployment(spec=spec, replicas=REPLICAS))
    _uses(story, first)
    _all_read(story, first, "first")
    predicted = story.run(
        *("create", "configmap", "app-config", "--from-literal=MODE=first"),
        *("--append-hash", "--dry-run=client", "-o", "name"),
    ).stdout.strip()
    story.holds(
        "the version's name is the one that kubectl gives for the same content",
        predicted == f"configmap/{first}",
    )

    story.say("Now the content changes:")
    story.run("patch", "vcfg/app-config", "--type=merge", "-p", '{"spec":{"data":{"MODE":"second"}}}')
    second = _ready(story, besides=first)
    _uses(story, second)
    _all_read(story, second, "second")
    story.run("get", "vcfg/app-config")
    story.run("get", "configmaps", "-l", "versionedconfig.io/name=app-config")
    story.holds("the first version is still there", story.content(first, "MODE") == "first")

    if harness.rewrites_at_admission(story.kubectl):
        story.say("The Deployment's manifest, which holds the logical name, is applied again:")
        pods = {reading.uid for reading in story.readings("second", "MODE", REPLICAS)}
        story.run("apply", "-f", "-", stdin=deployment(spec=spec, replicas=REPLICAS))
        story.holds("the Deployment refers to the second version as before", _reference(story) == second)
        story.roll_out()
        now = {reading.uid for reading in story.readings("second", "MODE", REPLICAS)}
        story.holds("and no pod was replaced", now == pods)

    story.say("It was a mistake. Back, with what everybody knows:")
    story.run("rollout", "undo", "deployment/web")
    _uses(story, first)
    _all_read(story, first, "first")
    with story.console.status("the operator looks at it …"):
        harness.settle(story.kubectl, story.api, versions=True)
    story.run("get", "vcfg/app-config", "-o", "jsonpath={.status.targets[0].message}")
    story.holds("the operator leaves it so", _reference(story) == first)
    story.holds("and keeps the second version", story.content(second, "MODE") == "second")

    story.say("Content with which no container lives (they exit where CRASH is 1):")
    story.run("patch", "vcfg/app-config", "--type=merge", "-p", '{"spec":{"data":{"CRASH":"1"}}}')
    with story.console.status("the version fails …"):
        wait_until(lambda: "RolledBack" in _ready_condition(story), 90, "the version is taken back")
    story.run("get", "vcfg/app-config", "-o", "jsonpath={.status.conditions[0].message}")
    _uses(story, first)
    _all_read(story, first, "first")

    story.say("The fault is mended:")
    story.run("patch", "vcfg/app-config", "--type=merge", "-p", '{"spec":{"data":{"CRASH":null}}}')
    _ready(story, besides=first)
    _uses(story, second)
    _all_read(story, second, "second")


def _ready(story: Story, besides: str = "") -> str:
    """Wait for the VersionedConfig to be ready, with another version than `besides`; its version."""
    with story.console.status("the VersionedConfig gets ready …"):
        found = harness.wait_versioned(story.api, story.namespace, "app-config", besides=besides)
    version = str(found["status"]["currentVersion"])
    story.holds(f"its content is the immutable ConfigMap {version}", _immutable(story, version))
    return version


def _ready_condition(story: Story) -> str:
    """Reason and message."""
    kind = harness.versioned_configs(story.api)
    found = harness.fetch(story.api, kind, story.namespace, "app-config") or {}
    about = found.get("metadata", {}).get("generation")
    told = [
        f"{c['reason']}: {c['message']}"
        for c in found.get("status", {}).get("conditions", [])
        if c["type"] == "Ready" and c["observedGeneration"] == about
    ]
    return told[0] if told else ""


def _immutable(story: Story, name: str) -> bool:
    found = harness.fetch(story.api, pykube.ConfigMap, story.namespace, name)
    return found is not None and found.get("immutable") is True


def _reference(story: Story) -> str:
    found = harness.fetch(story.api, pykube.Deployment, story.namespace, "web")
    return str(found["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]) if found else ""


def _uses(story: Story, version: str) -> None:
    with story.console.status(f"the Deployment moves to {version} …"):
        wait_until(lambda: _reference(story) == version, 30, f"the Deployment refers to {version}")
    story.holds(f"the Deployment refers to {version}", True)
    story.roll_out()


def _all_read(story: Story, version: str, content: str) -> None:
    found = story.readings(story.content(version, "MODE"), "MODE", REPLICAS)
    story.holds(
        f"every pod on every node reads: {content}", all(reading.mode() == {content} for reading in found)
    )


# -- the frame -------------------------------------------------------------------------------------------------------


def tell(console: Console, cluster: LocalCluster, folder: Path, *, keep: bool) -> None:
    """The whole story. `folder` is for the operator's files."""
    began = time.monotonic()
    with ExitStack() as ending:
        api = harness.connect(cluster, folder)
        ending.callback(api.session.close)

        damaged = Story(console, cluster, api, "fault")
        old = fault(damaged)

        kubectl = Kubectl(cluster.kubectl, cluster.kubeconfig)
        with console.status("installing and starting the operator …"):
            harness.install(kubectl, api)
            operator = Operator(
                harness.account_kubeconfig(kubectl, folder / "operator.kubeconfig"), folder / "operator.log"
            )
            if not keep:
                ending.callback(operator.stop)
            operator.start(beside=cluster.kubeconfig if keep else None)
        console.print(
            "\nThe operator runs now, as its own ServiceAccount with the roles of manifests/base.\n"
        )

        found_afterwards(damaged, old)
        protection(Story(console, cluster, api, "protection"))
        versions(Story(console, cluster, api, "versions"))
        if complaints := operator.complaints():
            raise NotTrue("the operator's log is free of errors:\n" + "\n".join(complaints))
    console.print(f"\n[bold green]All of it held[/], in {time.monotonic() - began:.0f} s.")


def go_on(cluster: LocalCluster) -> str:
    """What to type next."""
    return f"""
The cluster and the operator go on. To look around:

  export KUBECONFIG={cluster.kubeconfig}
  export PATH={cluster.programs}:$PATH
  kubectl get vcfg,deployments,configmaps -n versions
  kubectl edit vcfg/app-config -n versions
  tail -f {cluster.folder}/operator.log

To end both:

  {Path(sys.executable).relative_to(harness.ROOT)} -m e2e.cluster down --name {NAME}
"""


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the operator running")
    keep: bool = parser.parse_args().keep
    # Not a terminal: nothing is as wide as it says; lines that are cut would hide what they show.
    console = Console(width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with ExitStack() as ending, console.status("starting a local cluster …") as status:
            # Never a cluster that is there already: it would hold the state of an earlier demonstration, and somebody may
            # be looking around in it.
            if keep and local.find(NAME) is not None:
                end = f"{Path(sys.executable).relative_to(harness.ROOT)} -m e2e.cluster down --name {NAME}"
                raise clusters.ClusterError(
                    f"a demonstration is kept already: go on with it, or end it with: {end}"
                )
            name = NAME if keep else f"{NAME}-{os.getpid()}"

            def progress(message: str) -> None:
                status.update(message)
                if not console.is_terminal:
                    console.print(message)

            cluster = clusters.up(name, tied=not keep, progress=progress)
            if not keep:
                ending.enter_context(cluster)
            status.stop()
            console.print(f"A local cluster with {len(cluster.nodes)} nodes runs.")
            tell(console, cluster, cluster.folder, keep=keep)
    except clusters.ClusterError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    except (AssertionError, NotTrue) as error:
        console.print(f"\n[bold red]It does not hold:[/] {escape(str(error))}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    if keep:
        console.print(go_on(cluster), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
