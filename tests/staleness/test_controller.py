"""What the controller makes of what the view tells."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from versionedconfig.kube.api import Api
from versionedconfig.model import ConfigKey, Incarnation
from versionedconfig.observability.metrics import Metrics
from versionedconfig.settings import Settings
from versionedconfig.staleness.controller import StalenessController
from versionedconfig.staleness.history import Span
from versionedconfig.view import View

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
BORN = "2026-01-01T11:00:00Z"
LATER = "2026-01-01T11:30:00Z"
CREATED = Span(NOW - 3601, NOW - 3598)


def immutable(*states: Incarnation) -> Span:
    """When the object became so, after it was seen in these states."""
    api = cast(Api, None)
    controller = StalenessController(api, View(api, Settings()), Settings(), Metrics(), now=lambda: NOW)
    for old, new in zip((None, *states), states, strict=False):
        controller.life_changed(old, new)
    return controller._life(states[-1]).immutable


def life(**more: Any) -> Incarnation:
    found = Incarnation(ConfigKey("ConfigMap", "t", "app"), "uid", "1")
    return replace(found, created=BORN, **more)


def test_when_it_became_immutable() -> None:
    """The time of an entry of managedFields is that of the last write of that manager, whatever it wrote."""
    born_so, written = (life(immutable=True, immutable_since=one) for one in (BORN, LATER))

    assert immutable(born_so) == CREATED
    assert immutable(born_so, written) == CREATED
    assert immutable(born_so, written, replace(written, immutable_since="2026-01-01T11:40:00Z")) == CREATED
    assert immutable(written) == Span(CREATED.earliest, NOW - 1798)
    assert immutable(life(), written).earliest > CREATED.latest
