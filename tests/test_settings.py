"""What settings mean to the API server and to an object."""

import pytest

from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.references.selector import parse_selector
from versionedconfig.settings import Settings


@pytest.mark.parametrize(
    ("finished", "pending", "selector"),
    [
        (False, True, "status.phase!=Succeeded,status.phase!=Failed"),
        (True, True, ""),
        (True, False, "spec.nodeName!="),
        (False, False, "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="),
    ],
)
def test_pods_that_hold_are_chosen_by_the_api_server(finished: bool, pending: bool, selector: str) -> None:
    assert Settings(finished_pods_hold=finished, pending_pods_hold=pending).pod_selector == selector


def test_versions_are_looked_after_whatever_the_limits() -> None:
    settings = Settings(selector=parse_selector("tier=gold"), namespaces=frozenset({"shop"}))
    life = Incarnation(ConfigKey("ConfigMap", "shop", "c"), "u", "1", labels=(("tier", "gold"),))
    elsewhere = Incarnation(ConfigKey("ConfigMap", "other", "c"), "u", "1", labels=(("tier", "gold"),))
    plain = Incarnation(ConfigKey("ConfigMap", "shop", "c"), "u", "1")
    version = Incarnation(ConfigKey("ConfigMap", "other", "app-1"), "u", "1", owner="app")

    assert [settings.looks_after(one) for one in (life, elsewhere, plain, version)] == [
        True,
        False,
        False,
        True,
    ]
