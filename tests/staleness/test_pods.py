"""How a pod uses each object, as the kubelet reads them, and what its status says."""

from typing import Any

import msgspec
import pytest

from versionedconfig.staleness.pods import CloseItem, ClosePod, close_pod
from versionedconfig.staleness.record import Consumer, Start, Usage


def pod(spec: dict[str, Any], status: dict[str, Any] | None = None, **meta: Any) -> ClosePod:
    document = {
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "resourceVersion": "1", **meta},
        "spec": {"nodeName": "n", **spec},
        "status": status or {},
    }
    return close_pod(msgspec.json.decode(msgspec.json.encode(document), type=CloseItem))


def container(name: str = "web", **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def mounting(volume: dict[str, Any], *mounts: dict[str, Any]) -> dict[str, Any]:
    mounted = [{"name": "v", **one} for one in mounts]
    return {"containers": [container(volumeMounts=mounted)], "volumes": [{"name": "v", **volume}]}


OF_MAP = {"configMap": {"name": "app"}}


@pytest.mark.parametrize(
    ("spec", "usage"),
    [
        (mounting(OF_MAP, {}), Usage("ConfigMap", "app", reads=True, follows=True)),
        (
            mounting({"configMap": {"name": "app", "optional": True}}, {}),
            Usage("ConfigMap", "app", reads=True, follows=True, required=False),
        ),
        (mounting({"secret": {"secretName": "app"}}, {}), Usage("Secret", "app", reads=True, follows=True)),
        # Counted by the kubelet, and never read.
        (mounting(OF_MAP), Usage("ConfigMap", "app", required=False)),
        (
            mounting(OF_MAP, {"subPath": "MODE"}),
            Usage(
                "ConfigMap",
                "app",
                reads=True,
                consumers=(Consumer("web", env=False, sub_path=True, required=False),),
            ),
        ),
        (
            mounting(OF_MAP, {"subPathExpr": "$(A)"}, {}),
            Usage(
                "ConfigMap", "app", reads=True, follows=True, consumers=(Consumer("web", False, True, False),)
            ),
        ),
        (
            mounting({"configMap": {"name": "app", "items": [{"key": "a", "path": "b"}]}}, {}),
            Usage("ConfigMap", "app", reads=True, follows=True, fragile=True),
        ),
        (
            mounting(
                {"projected": {"sources": [{"configMap": {"name": "app"}}, {"serviceAccountToken": {}}]}}, {}
            ),
            Usage("ConfigMap", "app", reads=True, follows=True),
        ),
        (
            {
                "containers": [
                    container(
                        env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "a"}}}]
                    )
                ]
            },
            Usage(
                "ConfigMap", "app", required=False, consumers=(Consumer("web", True, False, required=True),)
            ),
        ),
        (
            {"containers": [container(envFrom=[{"secretRef": {"name": "app", "optional": True}}])]},
            Usage("Secret", "app", required=False, consumers=(Consumer("web", True, False, required=False),)),
        ),
        (
            {"containers": [container()], "imagePullSecrets": [{"name": "app"}, {}]},
            Usage("Secret", "app", reads=True, pulls=True, required=False),
        ),
        (
            {
                "containers": [container()],
                "initContainers": [container("i", envFrom=[{"configMapRef": {"name": "app"}}])],
            },
            Usage("ConfigMap", "app", required=False, consumers=(Consumer("i", True, False, required=True),)),
        ),
    ],
)
def test_usages(spec: dict[str, Any], usage: Usage) -> None:
    assert pod(spec).usages == (usage,)


def test_a_volume_with_two_sources_may_stay_as_it_is_for_the_other_one() -> None:
    spec = mounting({"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}}, {})

    assert [one.fragile for one in pod(spec).usages] == [True, True]


def test_what_a_status_says() -> None:
    status = {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"},
            {
                "type": "PodReadyToStartContainers",
                "status": "True",
                "lastTransitionTime": "1970-01-01T00:01:01Z",
            },
        ],
        "initContainerStatuses": [
            {"name": "i", "state": {"terminated": {"exitCode": 0, "startedAt": "1970-01-01T00:01:02Z"}}}
        ],
        "containerStatuses": [
            {"name": "web", "state": {"running": {"startedAt": "1970-01-01T00:01:10Z"}}},
            {
                "name": "loops",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "startedAt": "1970-01-01T00:01:09Z"}},
            },
            {"name": "new", "state": {"waiting": {}}},
        ],
    }

    sight = pod({"containers": []}, status, deletionTimestamp="1970-01-01T00:02:00Z").sight

    assert (sight.scheduled, sight.set_up, sight.ending, sight.finished) == (60, 61, True, False)
    assert sight.starts == (
        Start("i", 62, running=False, over=True),
        Start("web", 70, running=True, over=False),
        Start("loops", 69, running=False, over=False),
        Start("new", 0, running=False, over=False),
    )


def test_a_pod_that_was_made_with_its_node() -> None:
    assert pod({"containers": []}, creationTimestamp="1970-01-01T00:01:00Z").sight.scheduled == 60
