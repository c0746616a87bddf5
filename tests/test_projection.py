"""Projections are total: whatever somebody wrote into an object, they give an answer."""

import msgspec
import pytest

from versionedconfig.model import Incarnation
from versionedconfig.projection import ConfigItem, WorkloadItem, incarnation, replica_set, workload


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
