"""What is shipped for monitoring: alerts and dashboard use metrics that the operator has, and every alert has a page."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.monitoring.promql import metrics_of
from versionedconfig.observability.metrics import Metrics, Sampled

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests" / "monitoring"
RUNBOOKS = ROOT / "docs" / "runbooks"

PROMETHEUS_OWN: Final = {"up"}


def document(name: str) -> dict[str, Any]:
    """The one object in a file."""
    found: dict[str, Any] = yaml.safe_load((MONITORING / name).read_text())
    return found


RULES = [rule for group in document("prometheusrule.yaml")["spec"]["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def registered() -> Iterator[str]:
    """Every name under which the operator has series."""
    for family in Metrics().registry.collect():
        if family.type == "counter":
            yield f"{family.name}_total"
        elif family.type == "histogram":
            yield from (f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        else:
            yield family.name


KNOWN = {*registered(), *PROMETHEUS_OWN}


def expressions() -> list[tuple[str, str]]:
    """Where each stands, and it."""
    alerts = [(rule["alert"], rule["expr"]) for rule in RULES]
    return alerts + [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('sum by (a, b) (rate(x_total{l="y"}[5m])) > 0 or vector(0)', {"x_total"}),
        ("time() - max without (pod) (x) > 15 * 60 and on (job) y offset 5m", {"x", "y"}),
        ("histogram_quantile(0.9, sum by (le) (rate(x_bucket[$__rate_interval])))", {"x_bucket"}),
    ],
)
def test_metrics_of(expression: str, expected: set[str]) -> None:
    assert metrics_of(expression) == expected


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_exists(where: str, expression: str) -> None:
    used = metrics_of(expression)

    assert used
    assert used <= KNOWN, where


def test_every_sampled_metric_is_used() -> None:
    used = set().union(*(metrics_of(expression) for _, expression in expressions()))
    assert {one.value.name for one in Sampled} <= used


# -- alerts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    page = ROOT / annotations["runbook_url"]
    text = page.read_text()

    assert rule["labels"]["severity"] in ("critical", "warning")
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["summary"].endswith(".")
    assert "{{" not in annotations["summary"]
    assert len(annotations["description"]) > len(annotations["summary"])
    assert page.relative_to(RUNBOOKS).stem == rule["alert"]
    assert text.startswith(f"# {rule['alert']}\n")
    for heading in ("## What it means", "## How to look", "## How to cure it"):
        assert f"\n{heading}\n" in text
    assert "kubectl" in text


def test_every_page_is_of_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {rule["alert"] for rule in RULES}


def test_labels_in_descriptions_are_those_of_the_metric() -> None:
    """A label that is not there would be an empty word."""
    labels = {one.value.name: set(one.value.labels) for one in Sampled}
    labels["versionedconfig_finalizer_bypasses_total"] = {"how"}
    for rule in RULES:
        said = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"]))
        has = set().union(*(labels.get(name, set()) for name in metrics_of(rule["expr"])))
        assert said <= has, rule["alert"]


# -- the rest --------------------------------------------------------------------------------------------------------


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
    assert [panel["title"] for panel in PANELS if not panel["description"].endswith(".")] == []


def test_queries_use_the_variables_of_the_dashboard() -> None:
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(t["expr"] for panel in PANELS for t in panel["targets"])))

    assert variables == {"datasource", "job", "namespace"}
    assert used == {"job", "namespace", "__rate_interval"}
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'job=~"$job"' in target["expr"]


def test_the_service_finds_the_operator() -> None:
    service, monitor = document("service.yaml"), document("servicemonitor.yaml")
    (base,) = [
        one
        for one in yaml.safe_load_all((ROOT / "manifests" / "base" / "deployment.yaml").read_text())
        if one["kind"] == "Deployment"
    ]
    pod = base["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}

    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert ports[service["spec"]["ports"][0]["targetPort"]] == service["spec"]["ports"][0]["port"]
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "versionedconfig"
    # Else the namespace of the object that a series is about would have another name.
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True
    assert {document(name)["metadata"]["namespace"] for name in ("service.yaml", "servicemonitor.yaml")} == {
        base["metadata"]["namespace"]
    }


def test_kustomization_names_all_files() -> None:
    kustomization = document("kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]

    files = {path.name for path in MONITORING.iterdir()} - {"kustomization.yaml"}
    named = {file.partition("=")[2] for file in generated["files"]}
    assert {*kustomization["resources"], *named} == files
    assert generated["options"]["labels"] == {"grafana_dashboard": "1"}


def test_the_list_of_metrics_for_people_is_whole() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)(?:\{[\w, ]*\})?` \| (\w+) \|", text, re.MULTILINE))
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in Metrics().registry.collect()
        if family.name.startswith("versionedconfig_")
    }

    assert rows == families


def test_labels_in_the_list_for_people_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)(?:\{([\w, ]*)\})?` \|", text, re.MULTILINE)
    told = {name: tuple(filter(None, labels.split(", "))) for name, labels in rows}

    assert {one.value.name: one.value.labels for one in Sampled}.items() <= told.items()
