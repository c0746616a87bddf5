"""What a scan concludes from today's objects, and what it does not."""

from typing import Any

import msgspec
import pytest

from versionedconfig.commands.scan import VERSIONED, Consumption, Pod, What, consumptions, examine
from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.references import Holders

KEY = ConfigKey("ConfigMap", "n", "c")


def pod(spec: dict[str, Any], *started: str, **metadata: Any) -> Pod:
    statuses = [{"state": {"running": {"startedAt": moment}}} for moment in started]
    body = {
        "metadata": {"name": "p", "namespace": "n", **metadata},
        "spec": spec,
        "status": {"containerStatuses": [*statuses, {"state": {"waiting": {}}}]},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def only(found: Pod) -> Consumption:
    (use,) = consumptions(found)
    return use


def volume(optional: bool = False, **mount: Any) -> dict[str, Any]:
    return {
        "containers": [{"volumeMounts": [{"name": "v", "mountPath": "/v", **mount}]}],
        "volumes": [{"name": "e"}, {"name": "v", "configMap": {"name": "c", "optional": optional}}],
    }


def test_environment_and_sub_paths_never_see_a_change() -> None:
    env = {"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}
    key = {
        "containers": [{"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}]
    }

    assert only(pod(env)).frozen
    assert only(pod(key)).frozen
    assert only(pod(volume(subPath="k"))).frozen
    assert only(pod(volume(subPathExpr="$(K)"))).frozen
    assert not only(pod(volume())).frozen


def test_the_container_that_runs_longest_counts_if_it_needed_the_object() -> None:
    assert (
        only(pod(volume(), "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z")).started == "2026-01-01T00:00:00Z"
    )
    assert only(pod(volume())).started == ""
    assert only(pod(volume(optional=True), "2026-01-01T00:00:00Z")).started == ""


@pytest.mark.parametrize(
    ("owner", "labels", "user"),
    [
        (None, {}, "Pod p"),
        (
            {"kind": "ReplicaSet", "name": "web-5d4", "controller": True},
            {"pod-template-hash": "5d4"},
            "Deployment web",
        ),
        ({"kind": "ReplicaSet", "name": "web", "controller": True}, {}, "ReplicaSet web"),
        ({"kind": "StatefulSet", "name": "db", "controller": True}, {}, "StatefulSet db"),
        ({"kind": "Node", "name": "n", "controller": False}, {}, "Pod p"),
    ],
)
def test_users_are_named_as_people_know_them(owner: Any, labels: dict[str, str], user: str) -> None:
    found = pod(volume(), labels=labels, ownerReferences=[owner] if owner else [])

    assert only(found).user == user


@pytest.mark.parametrize(
    ("name", "versioned"),
    [
        ("app-config", False),
        ("settings", False),
        ("app-87m5g5hd76", True),
        ("app-v2", True),
        ("app-2026-01-31", True),
        ("app-1.2.3", True),
        ("app-deadbeef", True),
        ("v2", True),
        ("log4j", False),
    ],
)
def test_names_that_tell_their_content(name: str, versioned: bool) -> None:
    assert bool(VERSIONED.fullmatch(name)) is versioned


def findings(life: Incarnation, *uses: Consumption, templates: bool = False) -> set[What]:
    named = {KEY: {"Deployment web"}} if templates else {}
    return {finding.what for finding in examine([life], uses, Holders({}), named)}


def test_only_what_is_certain_is_called_reused() -> None:
    life = Incarnation(KEY, "u", "1", immutable=True, created="2026-01-02T00:00:00Z")
    before, after = "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"

    assert What.REUSED in findings(life, Consumption(KEY, "Pod p", False, before))
    assert What.REUSED not in findings(life, Consumption(KEY, "Pod p", False, after))
    assert What.REUSED not in findings(life, Consumption(KEY, "Pod p", False, ""))
    mutable = Incarnation(KEY, "u", "1", created="2026-01-02T00:00:00Z")
    assert findings(mutable, Consumption(KEY, "Pod p", False, before)) == set()
    assert findings(mutable, Consumption(KEY, "Pod p", True, before)) == {What.NOT_UPDATED}


def test_a_version_of_ours_has_no_fixed_name() -> None:
    fixed = Incarnation(KEY, "u", "1", immutable=True)
    owned = Incarnation(KEY, "u", "1", immutable=True, owner="app")

    assert findings(fixed, templates=True) == {What.FIXED_NAME}
    assert findings(owned, templates=True) == set()
