"""When a workload is through."""

from dataclasses import replace

import pytest

from versionedconfig.workload import Health, Numbers, health

DONE = Numbers("Deployment", 3, 3, wanted=2, total=2, updated=2, available=2)
SET = replace(DONE, kind="StatefulSet")
DAEMONS = replace(DONE, kind="DaemonSet", total=0)


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
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
        ("set: all updated and available", SET, Health.DONE),
        ("set: old pods left", replace(SET, updated=1), Health.PROGRESSING),
        ("set: not available", replace(SET, available=1), Health.PROGRESSING),
        ("set: partition, the others are through (V11)", replace(SET, updated=1, partition=1), Health.DONE),
        ("set: partition, the others are not", replace(SET, wanted=3, total=3, updated=1, partition=1, available=3), Health.PROGRESSING),
        ("set: partition above all (V11)", replace(SET, updated=0, partition=9), Health.DONE),
        ("set: OnDelete (V11)", replace(SET, updated=1, on_delete=True), Health.MANUAL),
        ("set: OnDelete, replaced by hand", replace(SET, on_delete=True), Health.DONE),
        ("set: not seen", replace(SET, observed_generation=2), Health.PROGRESSING),
        ("daemons: through", DAEMONS, Health.DONE),
        ("daemons: on the way", replace(DAEMONS, updated=1), Health.PROGRESSING),
        ("daemons: no node wants one", replace(DAEMONS, wanted=0, updated=0, available=0), Health.DONE),
        ("daemons: OnDelete", replace(DAEMONS, updated=0, on_delete=True), Health.MANUAL),
        ("cron job", Numbers("CronJob", 3, 0, wanted=1, total=0, updated=0, available=0), Health.DONE),
        ("replica set", replace(DONE, kind="ReplicaSet", updated=0), Health.DONE),
        ("replica set that starts", replace(DONE, kind="ReplicaSet", updated=0, available=0), Health.PROGRESSING),
    ],
)  # fmt: skip
def test_cases(name: str, numbers: Numbers, expected: Health) -> None:
    assert health(numbers) is expected, name
