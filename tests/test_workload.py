"""When a Deployment is through."""

from dataclasses import replace

import pytest

from versionedconfig.workload import DeploymentState, Health, health

DONE = DeploymentState(3, 3, wanted=2, total=2, updated=2, available=2, paused=False, deadline_exceeded=False)


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("all updated and available", DONE, Health.DONE),
        ("zero replicas (V14)", replace(DONE, wanted=0, total=0, updated=0, available=0), Health.DONE),
        ("the controller has not seen it", replace(DONE, observed_generation=2), Health.PROGRESSING),
        ("a stale failure of the last generation", replace(DONE, observed_generation=2, deadline_exceeded=True), Health.PROGRESSING),
        ("old pods left", replace(DONE, total=3), Health.PROGRESSING),
        ("new pods missing", replace(DONE, updated=1), Health.PROGRESSING),
        ("not available", replace(DONE, available=1), Health.PROGRESSING),
        ("deadline exceeded", replace(DONE, available=1, deadline_exceeded=True), Health.FAILED),
        ("paused (V12)", replace(DONE, observed_generation=2, paused=True), Health.PAUSED),
    ],
)  # fmt: skip
def test_cases(name: str, state: DeploymentState, expected: Health) -> None:
    assert health(state) is expected, name
