"""The fault is real, on real kubelets, and protection ends it.

E2E_ROUNDS says how often each is tried; every round is a namespace of its own.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pykube
import pytest

from e2e import harness
from e2e.cluster.provide import Cluster
from e2e.harness import (
    Kubectl,
    Operator,
    config_map,
    deployment,
    fetch,
    pods_read,
    wait_for_rollout,
    wait_gone,
    wait_protected,
)

ROUNDS = int(os.environ.get("E2E_ROUNDS", "4"))
AT_ONCE = 4
"""Rounds wait for kubelets most of the time."""

Round = Callable[[str], set[str]]
"""The steps in one namespace; the nodes that serve something else than the API server says."""


def stale_nodes(cluster: Cluster, api: pykube.HTTPClient, namespace: str) -> set[str]:
    """Nodes with a running pod that reads something else than what stands in the API server now."""
    live = fetch(api, pykube.ConfigMap, namespace, "app-cfg")
    assert live is not None
    readings = pods_read(cluster, api, namespace)
    assert len(readings) == 7
    assert all(reading.mode() for reading in readings), "a pod reads nothing at all"
    return {reading.node for reading in readings if reading.mode() != {live["data"]["MODE"]}}


def rounds(kubectl: Kubectl, api: pykube.HTTPClient, one: Round) -> list[set[str]]:
    """What each of the rounds found."""

    def in_a_namespace(number: int) -> set[str]:
        with harness.temporary_namespace(kubectl, api, "kubelet") as namespace:
            found = one(namespace)
            print(f"round {number}: {len(found)} stale nodes {sorted(found)}")
            return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(in_a_namespace, range(1, ROUNDS + 1)))


@pytest.mark.timeout(60 + 30 * ROUNDS, func_only=True)
def test_a_reused_name_serves_old_content(
    stopped_operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient
) -> None:
    """Without the operator: delete and create an immutable ConfigMap under running pods, restart the rollout."""

    def one(namespace: str) -> set[str]:
        kubectl.create(namespace, config_map(data={"MODE": "blue"}), deployment(replicas=7))
        wait_for_rollout(kubectl, namespace)
        assert stale_nodes(cluster, api, namespace) == set()
        kubectl("delete", "-n", namespace, "configmap/app-cfg")
        kubectl.create(namespace, config_map(data={"MODE": "green"}))
        kubectl("rollout", "restart", "-n", namespace, "deployment/web")
        wait_for_rollout(kubectl, namespace)
        return stale_nodes(cluster, api, namespace)

    found = rounds(kubectl, api, one)
    assert all(found), f"no stale node in {found.count(set())} of {ROUNDS} rounds"


@pytest.mark.timeout(60 + 40 * ROUNDS, func_only=True)
def test_a_protected_name_never_does(
    operator: Operator, cluster: Cluster, kubectl: Kubectl, api: pykube.HTTPClient
) -> None:
    """With the operator: the same steps, and the same once more when the name has become free."""

    def one(namespace: str) -> set[str]:
        kubectl.create(namespace, config_map(data={"MODE": "blue"}), deployment(replicas=7))
        wait_for_rollout(kubectl, namespace)
        wait_protected(api, namespace)
        kubectl("delete", "-n", namespace, "configmap/app-cfg", "--wait=false")
        reuse = ("create", "configmap", "app-cfg", "-n", namespace, "--from-literal=MODE=green")
        assert "already exists" in kubectl(*reuse, check=False).stderr
        kubectl("rollout", "restart", "-n", namespace, "deployment/web")
        wait_for_rollout(kubectl, namespace)
        during = stale_nodes(cluster, api, namespace)

        kubectl("delete", "-n", namespace, "deployment/web")
        wait_gone(api, namespace)
        kubectl.create(namespace, config_map(data={"MODE": "green"}), deployment(replicas=7))
        wait_for_rollout(kubectl, namespace)
        return during | stale_nodes(cluster, api, namespace)

    found = rounds(kubectl, api, one)
    assert not any(found), f"stale nodes in {ROUNDS - found.count(set())} of {ROUNDS} rounds"
