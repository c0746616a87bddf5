"""What is written, and what is said."""

from typing import Any

import pytest

from tests.commands.statuses import MIDDLE, NEW, OLD, THREE, config
from versionedconfig.commands import steer
from versionedconfig.commands.configs import Config, Refused

FREE = config(*THREE, current=NEW)
PINNED = config(*THREE, current=OLD, latest=NEW, pin=OLD)
PAUSED = config(*THREE, current=NEW, paused=True)


@pytest.mark.parametrize(
    ("step", "spec", "said"),
    [
        (steer.pin(FREE, "22", "p"), {"pin": OLD}, "whatever the content"),
        (steer.pin(FREE, "22", "p"), {"pin": OLD}, "p unpin app -n shop"),
        (steer.pin(FREE, "44", "p"), {"pin": MIDDLE}, "its last rollout failed: no luck"),
        (steer.pin(FREE, "current", "p"), {"pin": NEW}, f"pinned to app-{NEW}"),
        (steer.pin(PINNED, OLD, "p"), {}, "already"),
        (steer.pin(PINNED, OLD, "p"), {}, "p unpin app -n shop"),
        (steer.pin(PAUSED, OLD, "p"), {"pin": OLD}, "p resume app -n shop"),
        (steer.unpin(PINNED, "p"), {"pin": None}, f"targets go to app-{NEW}"),
        (steer.unpin(config(*THREE, latest=MIDDLE, pin=OLD), "p"), {"pin": None}, "not tried again until"),
        (steer.unpin(FREE, "p"), {}, "already"),
        (steer.rollback(FREE, "", "p"), {"pin": OLD}, f"pinned to app-{OLD}"),
        (steer.rollback(FREE, "44", "p"), {"pin": MIDDLE}, f"pinned to app-{MIDDLE}"),
        # Once more, before and after the operator has followed.
        (steer.rollback(config(*THREE, current=NEW, pin=OLD), "", "p"), {}, "already"),
        (steer.rollback(PINNED, "", "p"), {"pin": NEW}, f"pinned to app-{NEW}"),
        (steer.pause(FREE, "p"), {"rollout": {"paused": True}}, "p resume app -n shop"),
        (steer.pause(PAUSED, "p"), {}, "already"),
        (steer.resume(PAUSED), {"rollout": {"paused": False}}, "move again"),
        (steer.resume(FREE), {}, "nothing to resume"),
    ],
)
def test_steps(step: steer.Step, spec: dict[str, Any], said: str) -> None:
    assert step.spec == spec
    assert said in "\n".join(step.said)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (config(*THREE[:2], current=NEW), f"no earlier version .* there are: {NEW} .*{MIDDLE} .failed."),
        (config(), "no versions yet"),
    ],
)
def test_nothing_to_go_back_to(asked: Config, why: str) -> None:
    with pytest.raises(Refused, match=why):
        steer.rollback(asked, "", "p")
