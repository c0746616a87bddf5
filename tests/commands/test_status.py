"""What a status means, and how it is drawn."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.commands.statuses import MIDDLE, NEW, OLD, THREE, conditions, config, target, version
from versionedconfig.commands.configs import Config
from versionedconfig.commands.status import (
    ATTENTION,
    Outcome,
    Overview,
    assess,
    changes,
    drawing,
    outcome,
    overview,
    show,
    show_all,
)

NOW = datetime(2026, 1, 4, tzinfo=UTC)
READY = conditions(Ready="True")
ROLLING = conditions(Ready="False", Reconciling="True")
BACK: dict[str, Any] = {"current": OLD, "latest": MIDDLE, "conditions": READY}


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (config(), Outcome.GOING),
        (config(conditions=READY), Outcome.THROUGH),
        (config(conditions=READY, generation=2), Outcome.GOING),
        (
            config(conditions=conditions(generation=1, Ready="True"), generation=2, observedGeneration=2),
            Outcome.GOING,
        ),
        (config(conditions=conditions(generation=0, Ready="True")), Outcome.THROUGH),
        (config(conditions=ROLLING), Outcome.GOING),
        (config(conditions=conditions(Ready="False", Stalled="True")), Outcome.FAILED),
        (config(conditions=conditions(Ready="False", Degraded="True")), Outcome.FAILED),
        (config(conditions=conditions(Ready="False", Degraded="True"), generation=2), Outcome.GOING),
        (config(conditions=conditions(Ready="True", Degraded="True")), Outcome.FAILED),
        # All is well again, with the version before.
        (config(*THREE, **BACK), Outcome.FAILED),
        (config(*THREE, **BACK, pin=OLD), Outcome.THROUGH),
    ],
)
def test_outcomes(asked: Config, meant: Outcome) -> None:
    assert outcome(asked) is meant


@given(st.lists(st.sampled_from([*ATTENTION, "Unheard"]), max_size=12))
def test_what_needs_attention_is_on_top(states: list[str]) -> None:
    targets = [target(f"t{number}", state) for number, state in enumerate(states)]

    found = [shown.state for shown in assess(config(targets=targets)).targets]

    assert sorted(found) == sorted(states)
    assert found == sorted(
        found, key=lambda state: (state != "Unheard", ("Unheard", *ATTENTION).index(state))
    )


def text_of(asked: Config) -> str:
    written = io.StringIO()
    show(assess(asked), Console(file=written, width=200), NOW)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def test_the_whole_in_a_few_lines() -> None:
    asked = config(
        *THREE,
        current=NEW,
        currentSince="2026-01-03T00:00:00Z",
        conditions=ROLLING,
        targets=[
            target("a", "Updated", version=f"app-{NEW}", since="2026-01-03T23:59:30Z"),
            target("b[1]", "Overridden", version=f"app-{OLD}"),
            target("c", "Failed", wanted=f"app-{OLD}", message="no luck"),
        ],
    )

    assert text_of(asked) == (
        "ConfigMap shop/app  Ready=False  Reconciling=True\n"
        "ReadyReason: Ready message; ReconcilingReason: Reconciling message\n"
        f"version: app-{NEW}, current for 24h; 1/3 targets updated\n"
        "KIND        NAME  VERSION         STATE       SINCE  MESSAGE\n"
        f"Deployment  c     -               Failed      -      goes to app-{OLD}; no luck\n"
        f"Deployment  b[1]  app-{OLD}  Overridden  -\n"
        f"Deployment  a     app-{NEW}  Updated     30s"
    )


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        (config(observedGeneration=0), "no operator has looked at it yet"),
        (config(generation=2), "the operator has not looked at the last change yet"),
        (config(pin=OLD), f"pinned to {OLD}: the content is not followed"),
        (config(paused=True), "its rollout is paused: no further target moves"),
        (config(*THREE, current=OLD, latest=NEW), f"the content is app-{NEW}"),
        (config(*THREE, current=OLD, latest=MIDDLE), f"the content is app-{MIDDLE}, which failed: no luck"),
        (config(), "no workload refers to it"),
        (config(), "version: none yet; 0/0 targets updated"),
    ],
)
def test_what_else_to_know(asked: Config, note: str) -> None:
    assert note in text_of(asked).splitlines()


def test_a_line_for_each_change() -> None:
    steps: list[dict[str, Any]] = [
        {"conditions": ROLLING, "targets": [target("a", "Waiting"), target("b", "Waiting")]},
        {"conditions": ROLLING, "targets": [target("a", "Updating", version="v"), target("b", "Waiting")]},
        {"conditions": READY, "targets": [target("a", "Updated", version="v")]},
    ]
    answers = [assess(config(**step)) for step in steps]

    assert changes(None, answers[0]) == [
        "Deployment/a: Waiting",
        "Deployment/b: Waiting",
        "app: 0/2 targets updated: ReadyReason: Ready message; ReconcilingReason: Reconciling message",
    ]
    assert changes(answers[0], answers[0]) == []
    assert changes(answers[0], answers[1]) == ["Deployment/a: Updating at v"]
    assert changes(answers[1], answers[2]) == [
        "Deployment/a: Updated at v",
        "Deployment/b: is no target any more",
        "app: 1/1 targets updated: ReadyReason: Ready message",
    ]
    paused = assess(config(**steps[2], paused=True))
    assert changes(answers[2], paused) == ["app: its rollout is paused: no further target moves"]


@pytest.mark.parametrize("targets", [[], [target("a", "Updated")], [target("a", "Waiting")]])
def test_it_can_be_drawn(targets: list[dict[str, Any]]) -> None:
    written = io.StringIO()
    with drawing(Console(file=written, force_terminal=True, width=100)) as tell:
        tell(assess(config(conditions=ROLLING, targets=targets)))

    assert f"{sum(t['state'] == 'Updated' for t in targets)}/{len(targets)}" in written.getvalue()
    assert "━" in written.getvalue()


def test_all_of_them_with_the_failed_first() -> None:
    rows = overview(
        [
            config(version(NEW, 1), current=NEW, conditions=READY, targetsSummary="1/1"),
            config(conditions=ROLLING, pin=OLD, paused=True),
            config(conditions=conditions(Ready="False", Stalled="True")),
            config(observedGeneration=0),
        ]
    )

    assert [row.outcome.value for row in rows] == ["Failed", "Going", "Going", "Through"]
    written = io.StringIO()
    console = Console(file=written, width=200)
    show_all(Overview("shop", rows), console, NOW)
    show_all(Overview("", rows), console, NOW)
    show_all(Overview("shop", []), console, NOW)
    text = written.getvalue()
    assert "pinned, paused" in text
    assert "NAMESPACE" in text
    assert "no VersionedConfigs in namespace shop: -A shows all namespaces" in text
