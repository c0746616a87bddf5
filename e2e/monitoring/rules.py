"""The shipped PrometheusRule as a file for Prometheus, and a faster one of the same rules for scenarios."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.harness import ROOT

PROMETHEUS_RULE: Final = ROOT / "manifests" / "monitoring" / "prometheusrule.yaml"
FASTER: Final = 60
"""A minute of the rules is a second of a scenario."""

_MINUTES: Final = re.compile(r"\b(\d+)m\b")
_MINUTES_AS_SECONDS: Final = re.compile(r"\b(\d+) \* 60\b")


def shipped() -> dict[str, Any]:
    """What Prometheus loads: `groups`."""
    spec: dict[str, Any] = yaml.safe_load(PROMETHEUS_RULE.read_text())["spec"]
    return spec


def alerts() -> list[dict[str, Any]]:
    """Every rule."""
    return [rule for group in shipped()["groups"] for rule in group["rules"]]


def write(path: Path, *, annotations: bool = True, faster: bool = False) -> Path:
    """The rules file.

    Args:
        annotations: promtool compares them word by word, which says nothing about when an alert fires.
        faster: every length of time that the rules give in minutes is divided by FASTER: `for: 15m` becomes `15s`, a range
            `[10m]` becomes `[10s]`, and `15 * 60` becomes `15`. Lengths in plain seconds stay: they are those of Kubernetes.
    """
    spec = shipped()
    for group in spec["groups"]:
        for rule in group["rules"]:
            if not annotations:
                del rule["annotations"]
            if faster:
                rule["expr"] = _faster(rule["expr"])
                if "for" in rule:
                    rule["for"] = _faster(rule["for"])
    path.write_text(yaml.safe_dump(spec, sort_keys=False, width=1000))
    return path


def _faster(text: str) -> str:
    text = _MINUTES_AS_SECONDS.sub(lambda match: f"{int(match[1]) * 60 / FASTER:g}", text)
    return _MINUTES.sub(lambda match: f"{int(match[1]) * 60 // FASTER}s", text)
