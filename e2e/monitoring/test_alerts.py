"""The shipped alerts, as promtool tells when they fire: each in one case at least, and in one case not."""

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.monitoring import programs, rules

CASES: Final = Path(__file__).parent / "alerts.yaml"


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The one on PATH, or Debian's."""
    return programs.find("promtool")


def run(*command: object) -> None:
    """It says that all is well."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_sound(promtool: Path, tmp_path: Path) -> None:
    for faster in (False, True):
        run(promtool, "check", "rules", rules.write(tmp_path / "rules.yaml", faster=faster))


def test_alerts_fire_when_they_should_and_not_else(promtool: Path, tmp_path: Path) -> None:
    rules.write(tmp_path / "rules.yaml", annotations=False)
    cases: dict[str, Any] = yaml.safe_load(CASES.read_text())
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], **cases}, sort_keys=False, width=1000))
    run(promtool, "test", "rules", file)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tested = [
        (one["alertname"], bool(one["exp_alerts"]))
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for one in case["alert_rule_test"]
    ]
    names = {rule["alert"] for rule in rules.alerts()}

    assert len(names) == len(rules.alerts())
    assert {name for name, fires in tested if fires} == names
    assert {name for name, fires in tested if not fires} == names
