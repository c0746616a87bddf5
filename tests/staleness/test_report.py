"""What people are told."""

import pytest

from tests.staleness.test_judge import BOTH, ENV, NOW, TIMING, Story
from versionedconfig.model import ConfigKey
from versionedconfig.staleness import report
from versionedconfig.staleness.history import Why
from versionedconfig.staleness.judge import Kind, judge, judge_node

KEY = ConfigKey("ConfigMap", "shop", "app")


def status(story: Story, *, kubelets_asked: bool = True) -> dict[str, object]:
    history = story.case.history()
    verdicts = judge(history, NOW, TIMING)
    new_pods = {
        node.name: kind for node in history.nodes if (kind := judge_node(history, node, NOW, TIMING).new_pods)
    }
    return report.status(KEY, history, verdicts, new_pods, 1000, kubelets_asked=kubelets_asked)


def test_a_name_that_was_reused() -> None:
    story = Story().pod("old", BOTH, 100).pod("fresh", ENV, 2100, node="m").deleted().created()

    told = status(story)

    assert {
        name: told[name]
        for name in ("kind", "name", "verdict", "since", "nodeCount", "podCount", "confidence")
    } == {
        "kind": "ConfigMap",
        "name": "app",
        "verdict": "Stale",
        "since": "1970-01-01T00:16:40Z",
        "nodeCount": 1,
        "podCount": 1,
        "confidence": "Certain",
    }
    assert (
        told["message"]
        == "ConfigMap app was deleted and created again while pods used it: 1 pod read an earlier content."
    )
    assert "Cordon" in str(told["cure"])
    assert told["nodes"] == [
        {
            "name": "n",
            "verdict": "Stale",
            "newPods": "Stale",
            "pods": [
                {
                    "name": "old",
                    "uid": "old",
                    "verdict": "Stale",
                    "serves": ["A"],
                    "reason": "the environment of container web was made from the object of 1970-01-01T00:00:00Z when it was"
                    " started; the node serves the object of 1970-01-01T00:00:00Z to its volume",
                }
            ],
        },
        {
            "name": "m",
            "verdict": "Fresh",
            "newPods": "Fresh",
            "pods": [{"name": "fresh", "uid": "fresh", "verdict": "Fresh"}],
        },
    ]


def test_what_is_gone() -> None:
    told = status(Story().pod("old", BOTH, 100).deleted(), kubelets_asked=False)

    assert (told["verdict"], told["confidence"]) == ("ServingDeleted", "Likely")
    assert str(told["message"]).startswith("ConfigMap app was deleted while pods used it: 1 pod still read")
    assert report.UNASKED in str(told["message"])


@pytest.mark.parametrize("why", [why for why in Why if why is not Why.CERTAIN])
def test_every_doubt_has_its_words(why: Why) -> None:
    assert report.WHY[why]


def test_the_worst_is_told_first() -> None:
    assert report.worst([Kind.FRESH, Kind.UNKNOWN, Kind.DELETED, Kind.STALE]) is Kind.STALE
    assert report.worst([]) is Kind.FRESH
