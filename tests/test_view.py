"""Further kinds of workloads come into the view, are exchanged and leave it, each in one step."""

from typing import cast

import pytest

from versionedconfig.kube.api import Api
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import ConfigKey, Reference, WorkloadKey
from versionedconfig.settings import Settings
from versionedconfig.view import View
from versionedconfig.workload import Health, Workload

WIDGETS: Resource[Workload] = Resource(
    name="widgets", path="/apis/example.com/v1/widgets", item=cast(type, object), project=lambda item: item
)
WEB = WorkloadKey("Widget", "shop", "web")
APP, OTHER = ConfigKey("ConfigMap", "shop", "app"), ConfigKey("ConfigMap", "shop", "other")


def widget(*names: str, name: str = "web") -> Workload:
    """One that refers to these ConfigMaps."""
    references = tuple(Reference("ConfigMap", one, ("spec", one)) for one in names)
    return Workload("Widget", "shop", name, f"uid-{name}", "1", 1, references, Health.DONE)


@pytest.fixture
def view() -> View:
    return View(cast(Api, None), Settings())


def follow(view: View, *found: Workload) -> Mirror[Workload]:
    """A mirror that has listed these."""
    mirror = view.add_workloads("Widget", WIDGETS)
    for one in found:
        mirror._upsert(one)
    return mirror


def test_they_are_workloads_from_when_they_are_used(view: View) -> None:
    told: list[tuple[WorkloadKey, frozenset[ConfigKey]]] = []
    view.workload_changed = lambda key, keys: told.append((key, keys))
    mirror = follow(view, widget("app"))
    assert (told, view.workload(WEB), list(view.templates.referrers(APP))) == ([], None, [])

    view.use_workloads("Widget", mirror)

    assert told == [(WEB, frozenset({APP}))]
    assert view.workload(WEB) == widget("app")
    assert list(view.templates.referrers(APP)) == [WEB]
    assert view.collection("Widget") == WIDGETS.path
    mirror._upsert(widget("other"))
    assert told[1:] == [(WEB, frozenset({APP, OTHER}))]
    assert list(view.templates.referrers(APP)) == []


def test_others_in_their_place_leave_no_moment_without_them(view: View) -> None:
    before = follow(view, widget("app"), widget("app", name="gone"))
    view.use_workloads("Widget", before)
    seen: list[bool] = []
    view.workload_changed = lambda key, keys: seen.append(view.workload(WEB) is not None)

    after = follow(view, widget("app", "other"))
    view.use_workloads("Widget", after)
    view.drop_workloads("Widget", before)
    before._upsert(widget("nothing"))

    assert seen == [True, True]
    assert view.workload(WEB) == widget("app", "other")
    assert list(view.templates.referrers(APP)) == [WEB]


def test_they_leave_what_they_refer_to(view: View) -> None:
    mirror = follow(view, widget("app"))
    view.use_workloads("Widget", mirror)
    told: list[tuple[WorkloadKey, frozenset[ConfigKey]]] = []
    view.workload_changed = lambda key, keys: told.append((key, keys))

    view.drop_workloads("Widget", mirror)

    assert told == [(WEB, frozenset({APP}))]
    assert view.workload(WEB) is None
    assert list(view.templates.referrers(APP)) == []
