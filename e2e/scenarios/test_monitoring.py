"""A real Prometheus scrapes the operator: what goes wrong fires the shipped alerts, which resolve when it is well again, and
every query of the dashboard finds something.

The rules are sped up, a minute to a second (e2e/monitoring/rules.py).
"""

import json
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pykube
import pytest

from e2e.harness import (
    OPERATOR_USER,
    ROOT,
    STRIPPED,
    Kubectl,
    Manifest,
    Operator,
    config_map,
    deployment,
    pod,
    reading_pod_spec,
    unscheduled,
    versioned_config,
    wait_for_rollout,
    wait_gone,
    wait_protected,
    wait_until,
)
from e2e.monitoring import programs, rules
from e2e.monitoring.server import JOB, Prometheus
from e2e.stories import (
    BAD,
    crashing_pod_spec,
    edit,
    vanish,
    version_of,
    wait_moved,
    wait_read,
    wait_refused,
    wait_rolled_back,
)

DASHBOARD: dict[str, Any] = json.loads((ROOT / "manifests" / "monitoring" / "dashboard.json").read_text())
PATIENCE = 60


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes nothing yet."""
    server = Prometheus(programs.find("prometheus"), tmp_path_factory.mktemp("prometheus"))
    try:
        yield server
    finally:
        server.stop()


def watch(prometheus: Prometheus, operator: Operator) -> None:
    """Scrapes the operator's process of now; until Prometheus has seen it."""
    prometheus.scrape(operator.metrics_port)
    wait_until(lambda: prometheus.query("up == 1"), PATIENCE, "the operator is scraped")
    wait_resolved(prometheus, "VersionedConfigOperatorAbsent")


def wait_firing(prometheus: Prometheus, alert: str, **labels: str) -> None:
    """Until the alert fires, with a description that says what it is about."""
    found = wait_until(lambda: prometheus.firing(alert, **labels), PATIENCE, f"{alert} {labels} fires")
    description = found["annotations"]["description"]
    assert "error" not in description
    assert "<no value>" not in description
    assert all(value in description for label, value in labels.items() if label in ("namespace", "name"))


def wait_resolved(prometheus: Prometheus, alert: str, **labels: str) -> None:
    wait_until(lambda: prometheus.firing(alert, **labels) is None, PATIENCE, f"{alert} {labels} is resolved")


def named_series(operator: Operator, namespace: str) -> set[str]:
    """Names of the metrics that tell of objects in that namespace."""
    return {name.partition("{")[0] for name in operator.metrics() if f'namespace="{namespace}"' in name}


def on_delete(name: str, config: str) -> Manifest:
    """A StatefulSet that replaces no pod by itself."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": reading_pod_spec(config)},
        },
    }


def change_of(kubectl: Kubectl, namespace: str, name: str, data: dict[str, str | None]) -> None:
    patch = json.dumps({"spec": {"data": data}})
    kubectl("patch", "-n", namespace, f"vcfg/{name}", "--type=merge", "-p", patch)


def test_trouble_fires_alerts_fills_the_dashboard_and_passes(
    operator: Operator, prometheus: Prometheus, kubectl: Kubectl, api: pykube.HTTPClient, namespace: str
) -> None:
    watch(prometheus, operator)
    began = time.monotonic()
    names = {
        "rolls-back": ("VersionedConfigRolloutFailed", {"name": "app-cfg", "reason": "RolledBack"}),
        "stuck": ("VersionedConfigRolloutStuck", {"name": "keys", "reason": "KeyMissing"}),
        "left": ("VersionedConfigPodsLeftBehind", {"name": "apart"}),
        "blocked": ("VersionedConfigDeletionBlocked", {"kind": "ConfigMap", "name": "blocked"}),
        "reused": ("VersionedConfigStaleReuse", {"kind": "ConfigMap", "name": "reused"}),
        "gone": ("VersionedConfigDeletedContentServed", {"kind": "ConfigMap", "name": "gone"}),
    }
    old = ("reused", "gone", "doubt")

    # All is well.
    kubectl.create(
        namespace,
        *(versioned_config(name, {"MODE": "one"}) for name in ("keys", "apart")),
        versioned_config("app-cfg", {"MODE": "one"}, rollout={"minReadySeconds": 5}),
        *(config_map(name) for name in ("blocked", "stripped", "reused", "gone")),
        *(pod(name, unscheduled(reading_pod_spec(name))) for name in ("blocked", "stripped")),
    )
    first = {name: version_of(api, namespace, name) for name in ("app-cfg", "keys", "apart")}
    kubectl.create(
        namespace,
        deployment("web", crashing_pod_spec(), replicas=1),
        deployment("asks", reading_pod_spec("keys"), replicas=1),
        on_delete("apart", first["apart"]),
        *(deployment(name, reading_pod_spec(name), replicas=1) for name in ("reused", "gone")),
    )
    wait_moved(kubectl, api, namespace, first["app-cfg"])
    wait_moved(kubectl, api, namespace, first["keys"], "asks")
    kubectl("rollout", "status", "-n", namespace, "statefulset/apart", "--timeout=60s", check=False)
    kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/apart-0", "--timeout=60s")
    for name in first:
        version_of(api, namespace, name)
    for name in ("blocked", "stripped"):
        wait_protected(api, namespace, name)
    for name in ("reused", "gone"):
        wait_read(api, namespace, name)
    wait_until(lambda: named_series(operator, namespace) == set(), 15, "nothing is named")

    # Trouble, all of it at once. Of what is read and replaced within a moment nobody can tell what was read.
    kubectl.create(namespace, config_map("doubt"), deployment("doubt", reading_pod_spec("doubt"), replicas=1))
    wait_for_rollout(kubectl, namespace, "doubt")
    for name in old:
        vanish(kubectl, namespace, name)
    kubectl.create(namespace, *(config_map(name, {"MODE": "green"}) for name in ("reused", "doubt")))
    kubectl("delete", "-n", namespace, "--wait=false", "configmap/blocked", "configmap/stripped")
    strip = ("patch", "-n", namespace, "configmap/stripped", "--type=merge", "-p", STRIPPED)
    kubectl(*strip, f"--as={OPERATOR_USER}")
    edit(kubectl, namespace, data=BAD)
    change_of(kubectl, namespace, "keys", {"MODE": None, "OTHER": "two"})
    change_of(kubectl, namespace, "apart", {"MODE": "two"})
    wait_rolled_back(api, namespace)
    wait_refused(api, namespace, "KeyMissing", name="keys")
    second = version_of(api, namespace, "apart", besides=first["apart"])

    wait_firing(prometheus, "VersionedConfigFinalizerBypassed", how="stripped")
    for alert, labels in names.values():
        wait_firing(prometheus, alert, namespace=namespace, **labels)
    (blocked,) = prometheus.query(
        f'versionedconfig_deletion_blocked_since_timestamp_seconds{{namespace="{namespace}"}}'
    )
    shown = kubectl("get", "-n", namespace, "configmap/blocked", "-o", "json").stdout
    deleted = datetime.fromisoformat(json.loads(shown)["metadata"]["deletionTimestamp"])
    assert blocked["metric"]["name"] == "blocked"
    assert float(blocked["value"][1]) == deleted.timestamp()
    pods = prometheus.query(f'versionedconfig_pods{{namespace="{namespace}", name="apart"}}')
    assert {one["metric"]["version"]: one["value"][1] for one in pods} == {first["apart"]: "1"}
    ends = 'versionedconfig_rollout_duration_seconds_count{{result="{}"}}'
    for result in ("failed", "rolled_back", "succeeded"):
        assert operator.metrics()[ends.format(result)] >= 1, result
    assert empty_queries(prometheus, time.monotonic() - began) == []
    assert unsound_rules(prometheus) == []

    # And its end.
    kubectl("delete", "-n", namespace, *(f"deployment/{name}" for name in old))
    kubectl("delete", "-n", namespace, "pod/blocked", "--wait=false")
    edit(kubectl, namespace, data={"MODE": "three", "CRASH": None})
    change_of(kubectl, namespace, "keys", {"MODE": "two"})
    kubectl("delete", "-n", namespace, "pod/apart-0", "--wait=false")
    wait_gone(api, namespace, "blocked")
    version_of(api, namespace, besides=first["app-cfg"])
    version_of(api, namespace, "keys", besides=first["keys"])
    for alert, labels in names.values():
        wait_resolved(prometheus, alert, namespace=namespace, **labels)
    wait_resolved(prometheus, "VersionedConfigFinalizerBypassed")
    wait_until(lambda: named_series(operator, namespace) == set(), 30, "nothing is named any more")
    assert version_of(api, namespace, "apart") == second
    # What was not made did not fire.
    expected = {alert for alert, _ in names.values()} | {"VersionedConfigFinalizerBypassed"}
    assert prometheus.fired(time.monotonic() - began) == expected


def empty_queries(prometheus: Prometheus, seconds: float) -> list[str]:
    """The dashboard's queries that found nothing in the time."""
    empty = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in (("job", JOB), ("namespace", ".*"), ("__rate_interval", "10s")):
                expression = expression.replace(f"${variable}", value)
            found = prometheus.query_range(expression, seconds)
            if not found:
                empty.append(f"{panel['title']}: {expression}")
    return empty


def unsound_rules(prometheus: Prometheus) -> list[str]:
    """Rules that Prometheus cannot evaluate."""
    loaded = prometheus.rules()
    assert {rule["name"] for rule in loaded} == {rule["alert"] for rule in rules.alerts()}
    return [f"{rule['name']}: {rule.get('lastError')}" for rule in loaded if rule["health"] != "ok"]


def test_an_operator_that_is_not_there_is_missed(operator: Operator, prometheus: Prometheus) -> None:
    watch(prometheus, operator)

    operator.kill()
    wait_firing(prometheus, "VersionedConfigOperatorAbsent")

    operator.start()
    watch(prometheus, operator)


def test_metrics_are_named_as_others_name_theirs(operator: Operator) -> None:
    """promtool knows the conventions."""
    promtool: Path = programs.find("promtool")
    done = subprocess.run(
        [str(promtool), "check", "metrics"],
        input=operator.exposition(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
