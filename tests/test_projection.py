"""Projections are total: whatever somebody wrote into an object, they give an answer."""

from typing import Any

import msgspec
import pytest

from versionedconfig.model import Incarnation
from versionedconfig.projection import (
    ConfigItem,
    ControllerRevisionItem,
    PodItem,
    WorkloadItem,
    controller_revision,
    incarnation,
    job,
    pod_kept,
    replica_set,
    workload,
)
from versionedconfig.workload import Revision, Workload


def item(number: str) -> WorkloadItem:
    document = {
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": {"deployment.kubernetes.io/revision": number},
            "ownerReferences": [{"uid": "d", "controller": True}],
        },
        "spec": {},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=WorkloadItem)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("", 0), ("x", 0), ("-1", 0), ("9" * 5000, 0), ("9" * 19, 0), ("²", 0), ("٣", 0), (" 7", 0)],
)
def test_any_revision_annotation(text: str, number: int) -> None:
    """int() refuses more than 4300 digits, and one object must not stop the operator for all."""
    assert replica_set(item(text)).revision == number
    assert workload("Deployment")(item(text)).revision == number


def test_new_content_is_another_incarnation() -> None:
    """Though none of it is kept: whoever takes content from the object is told. Immutable ones have no other content."""

    def kept(version: str, **more: object) -> Incarnation:
        meta = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version}
        return incarnation("ConfigMap")(msgspec.convert({"metadata": meta, **more}, ConfigItem))

    assert kept("1").written != kept("2").written
    assert kept("1", immutable=True).written == kept("2", immutable=True).written


def decode(document: dict[str, Any], type_: Any) -> Any:
    meta = {
        "name": "x",
        "namespace": "shop",
        "uid": "u",
        "resourceVersion": "1",
        **document.pop("metadata", {}),
    }
    return msgspec.json.decode(msgspec.json.encode({"metadata": meta, **document}), type=type_)


SPEC = {"volumes": [{"configMap": {"name": "app"}}]}


def container(state: dict[str, Any], restarts: int = 0, name: str = "c") -> dict[str, Any]:
    return {"name": name, "restartCount": restarts, "state": state}


@pytest.mark.parametrize(
    ("status", "trouble", "restarted"),
    [
        ({}, "", ""),
        ({"containerStatuses": None}, "", ""),
        ({"containerStatuses": [container({"waiting": {"reason": "ContainerCreating"}})]}, "", ""),
        ({"containerStatuses": [container({"waiting": {}})]}, "", ""),
        ({"containerStatuses": [container({"waiting": {"reason": "CrashLoopBackOff"}}, 3)]}, "CrashLoopBackOff in container c", ""),
        (
            {
                "initContainerStatuses": [container({"waiting": {"reason": "CreateContainerConfigError"}}, name="i")],
                "containerStatuses": [container({"waiting": {"reason": "PodInitializing"}})],
            },
            "CreateContainerConfigError in container i",
            "",
        ),
        ({"containerStatuses": [container({"running": {"startedAt": "2026-01-31T12:00:00Z"}})]}, "", ""),
        (
            {
                "containerStatuses": [
                    container({"running": {"startedAt": "2026-01-31T12:00:05Z"}}, 1),
                    container({"running": {"startedAt": "2026-01-31T12:00:09Z"}}, 0),
                    container({"running": {"startedAt": None}}, 2),
                ]
            },
            "",
            "2026-01-31T12:00:05Z",
        ),
    ],
)  # fmt: skip
def test_what_ails_a_pod(status: dict[str, Any], trouble: str, restarted: str) -> None:
    kept = pod_kept(decode({"spec": SPEC, "status": status}, PodItem))

    assert (kept.trouble, kept.restarted) == (trouble, restarted)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"spec": {"template": {"$patch": "replace", "spec": SPEC}}}, ["app"]),
        ({}, []),
        (None, []),
        ([1], []),
        ({"spec": "text"}, []),
        ({"spec": {"template": {"spec": {"volumes": "text"}}}}, []),
    ],
)
def test_revisions_of_other_controllers_refer_to_nothing(data: Any, names: list[str]) -> None:
    found = controller_revision(decode({"revision": 4, "data": data}, ControllerRevisionItem))

    assert ([key.name for key in found.keys], found.revision) == (names, 4)


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        (None, ["app"]),
        ([{"type": "Complete", "status": "False"}], ["app"]),
        ([{"type": "Suspended", "status": "True"}], ["app"]),
        ([{"type": "SuccessCriteriaMet", "status": "True"}], ["app"]),
        ([{"type": "Complete", "status": "True"}], []),
        ([{"type": "Failed", "status": "True"}], []),
    ],
)
def test_a_job_that_has_ended_refers_to_nothing(conditions: Any, names: list[str]) -> None:
    document = {"spec": {"template": {"spec": SPEC}}, "status": {"conditions": conditions}}

    assert [key.name for key in job(decode(document, WorkloadItem)).keys] == names


def test_a_replica_set_is_a_revision_of_who_owns_it_or_a_workload() -> None:
    document: dict[str, Any] = {"spec": {"template": {"spec": SPEC}}}
    owned = {"metadata": {"ownerReferences": [{"uid": "d", "controller": True}]}}

    alone = replica_set(decode(dict(document), WorkloadItem))
    assert isinstance(alone, Workload)
    assert alone.references[0].path == ("spec", "template", "spec", "volumes", 0, "configMap", "name")
    found = replica_set(decode({**document, **owned}, WorkloadItem))
    assert isinstance(found, Revision)
    assert found.owner_uid == "d"


@pytest.mark.parametrize(
    ("text", "number"), [("-3", -3), ("7", 7), ("", 0), ("x", 0), ("1.5", 0), ("9" * 40, 0), ("٣", 0)]
)
def test_any_order_annotation(text: str, number: int) -> None:
    annotated = {"metadata": {"annotations": {"versionedconfig.io/order": text}}, "spec": {}}

    assert workload("StatefulSet")(decode(annotated, WorkloadItem)).order == number


def test_a_cron_jobs_template_is_two_levels_down() -> None:
    document = {"spec": {"jobTemplate": {"spec": {"template": {"spec": SPEC}}}}}
    found = workload("CronJob")(decode(document, WorkloadItem))

    assert found.references[0].path[:5] == ("spec", "jobTemplate", "spec", "template", "spec")
    assert not found.running
