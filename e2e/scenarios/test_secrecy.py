"""What people keep secret stands where they put it, and nowhere else."""

import base64
import copy
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pykube

from e2e import harness
from e2e.harness import (
    IN_USE,
    Kubectl,
    Manifest,
    Operator,
    config_map,
    deployment,
    fetch,
    finalizers,
    plain_pod_spec,
    reading_pod_spec,
    secret,
    settle,
    versioned_config,
    wait_for_rollout,
    wait_protected,
    wait_until,
    wait_versioned,
)
from e2e.stories import versioned_secret

CONTENT = {
    "Secret": ("data",),
    "ConfigMap": ("data", "binaryData"),
    "VersionedConfig": ("spec.data", "spec.stringData", "spec.binaryData"),
}
"""Where content belongs."""


@dataclass(frozen=True)
class Marker:
    """Text that occurs nowhere by chance."""

    text: str

    @property
    def base64(self) -> str:
        return base64.b64encode(self.text.encode()).decode()

    def spellings(self) -> list[str]:
        """As it is, and what base64 of any text around it has in common, whatever stands before it."""
        found = [self.text]
        for before in range(3):
            encoded = base64.b64encode(b"\0" * before + self.text.encode()).decode()
            # The characters that bits of a neighbour go into differ.
            found.append(encoded[-(-before * 8 // 6) : len(encoded) // 4 * 4 - 4])
        return found

    def within(self, text: str) -> bool:
        return any(spelling in text for spelling in self.spellings())


def everything(kubectl: Kubectl) -> Iterator[Manifest]:
    """Every object of every kind that can be listed."""
    kinds = kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    assert {"events", "events.events.k8s.io", "versionedconfigs.versionedconfig.io"} <= set(kinds)
    yield from json.loads(kubectl("get", ",".join(kinds), "-A", "-o", "json").stdout)["items"]


def without_content(found: Manifest) -> tuple[Manifest, list[Any]]:
    """The object with its content taken out, and the content."""
    rest, content = copy.deepcopy(found), []
    for path in CONTENT.get(found["kind"], ()):
        *parents, last = path.split(".")
        part = rest
        for parent in parents:
            part = part.get(parent, {})
        content.append(part.pop(last, None))
    return rest, content


def test_the_search_finds_what_it_looks_for() -> None:
    """In base64 too, wherever in the text it stands."""
    marker = Marker("marker-0123456789abcdef")
    for before in range(7):
        for after in range(4):
            encoded = base64.b64encode(b"x" * before + marker.text.encode() + b"y" * after).decode()
            assert marker.within(encoded), (before, after)
    assert not marker.within(base64.b64encode(b"something else altogether, and longer").decode())
    assert min(map(len, marker.spellings())) > 20


def test_a_secret_is_told_to_nobody(
    operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    """V32: neither in metadata, status or Events of anything, nor in the operator's log or metrics."""
    marker = Marker(f"marker-{secrets.token_hex(16)}")
    spec = reading_pod_spec()
    spec["volumes"].append({"name": "s", "secret": {"secretName": "db"}})
    spec["containers"][0]["envFrom"] = [{"secretRef": {"name": name}} for name in ("db", "plain", "taking")]
    data = {"MODE": f"{marker.text} one", "other": f"a{marker.text}"}

    # `kubectl create`, since `apply` itself copies all of it into an annotation.
    conflict = {"MODE": "two", "other": marker.text}
    taken = kubectl(
        *("create", "configmap", "taken", "--append-hash", "--dry-run=client", "-o", "name"),
        *(f"--from-literal={key}={value}" for key, value in conflict.items()),
    ).stdout.strip()
    kubectl.create(
        namespace,
        secret("db", {"TOKEN": f"ab{marker.text}", "another": marker.text}),
        secret("unused", {"TOKEN": marker.text}),
        versioned_config("app-cfg", data, binaryData={"b": marker.base64}),
        config_map(taken.removeprefix("configmap/"), {"MODE": marker.text}),
        versioned_config("taken", conflict),
        versioned_config("large", {"MODE": marker.text + "é" * (1 << 19)}),
        versioned_config("broken", {"MODE": marker.text}, binaryData={"b": marker.base64 + "A"}),
        versioned_config("pinned", {"MODE": marker.text}, pin="0123456789"),
        secret("mutable", {"PASSWORD": f"abc{marker.text}"}, immutable=False),
        versioned_secret("plain", {"MODE": marker.text}),
        versioned_secret("encoded", data={"MODE": marker.base64}, type="Opaque"),
        versioned_secret("taking", {"OWN": marker.text}, **taken_from("mutable")),
        versioned_secret("wrong", data={"MODE": marker.base64 + "A"}),
        versioned_secret("docker", {".dockerconfigjson": marker.text}, type="kubernetes.io/dockerconfigjson"),
        versioned_secret("lacks", {"OWN": marker.text}, **taken_from("mutable", keys=["NONE"])),
        versioned_config("shows", {"OWN": marker.text}, **taken_from("mutable")),
        versioned_secret("asked", {"OTHER": marker.text}),
        deployment("asks", _asking("asked"), replicas=0),
        deployment(spec=spec, replicas=1),
    )
    ready = ("app-cfg", "plain", "encoded", "taking")
    for name in ready:
        wait_versioned(api, namespace, name)
    refused = {
        "taken": "NameConflict",
        "large": "InvalidContent",
        "broken": "InvalidContent",
        "pinned": "PinNotKept",
        "wrong": "InvalidContent",
        "docker": "InvalidContent",
        "lacks": "SourceMissing",
        "shows": "InvalidContent",
        "asked": "KeyMissing",
    }
    for name, reason in refused.items():
        _wait_refused(api, namespace, name, reason)
    wait_for_rollout(kubectl, namespace)
    wait_protected(api, namespace, "db", pykube.Secret)

    # Content changes, an undo, and a deletion that waits and is told of.
    patch = json.dumps({"spec": {"data": {"MODE": f"abc{marker.text}"}}})
    current = {name: str(wait_versioned(api, namespace, name)["status"]["currentVersion"]) for name in ready}
    before = current["app-cfg"]
    kubectl("patch", "-n", namespace, "vcfg/app-cfg", "--type=merge", "-p", patch)
    for what, text in (("vcfg/plain", f"de{marker.text}"), ("secret/mutable", f"f{marker.text}")):
        field: Manifest = {"stringData": {"MODE": text}}
        change = json.dumps({"spec": field} if what.startswith("vcfg/") else field)
        kubectl("patch", "-n", namespace, what, "--type=merge", "-p", change)
    for name in ("app-cfg", "plain", "taking"):
        wait_versioned(api, namespace, name, besides=current[name])
    kubectl("rollout", "undo", "-n", namespace, "deployment/web")
    wait_for_rollout(kubectl, namespace)
    kubectl("delete", "-n", namespace, "secret/db", f"configmap/{before}", "--wait=false")
    for name in ("db", before):
        _wait_told_of(api, namespace, name)
    settle(kubectl, api, versions=True)
    operator.kill()
    operator.start()
    settle(kubectl, api, versions=True)
    assert IN_USE in finalizers(fetch(api, pykube.Secret, namespace, "db"))

    holding = set()
    for found in everything(kubectl):
        rest, content = without_content(found)
        where = f"{found['kind']} {found['metadata'].get('namespace')}/{found['metadata']['name']}"
        assert not marker.within(json.dumps(rest)), f"it is in {where}, outside of the content"
        if marker.within(json.dumps(content)):
            holding.add((found["kind"], found["metadata"]["name"]))
    assert not marker.within(operator.log), "it is in the operator's log"
    assert not marker.within(str(operator.metrics())), "it is in the operator's metrics"

    # It was there to be found.
    assert {name for kind, name in holding if kind == "VersionedConfig"} == {*ready, *refused}
    named = {name for kind, name in holding if kind == "Secret"}
    assert {"db", "unused", "mutable", *(current[name] for name in ready[1:])} < named
    # Two versions of app-cfg, the stranger's, and the content of the one with a pin.
    assert len([name for kind, name in holding if kind == "ConfigMap"]) == 4


def taken_from(name: str, **more: Any) -> dict[str, Any]:
    """`from`, of one Secret."""
    return {"from": [{"kind": "Secret", "name": name, **more}]}


def _asking(name: str) -> Manifest:
    """A pod that asks a Secret for a key."""
    spec = plain_pod_spec()
    ref = {"name": name, "key": "KEY"}
    spec["containers"][0]["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": ref}}]
    return spec


def _wait_refused(api: pykube.HTTPClient, namespace: str, name: str, reason: str) -> None:
    def told() -> bool:
        found = fetch(api, harness.versioned_configs(api), namespace, name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return ("Stalled", "True", reason) in [(c["type"], c["status"], c["reason"]) for c in conditions]

    wait_until(told, 30, f"{name} is refused for {reason}")


def _wait_told_of(api: pykube.HTTPClient, namespace: str, name: str) -> None:
    told = "DeletionBlocked"
    wait_until(lambda: harness.events(api, namespace, name, told), 15, f"an Event tells who holds {name}")
