"""Whatever happens in whatever order: nothing guarded is lost while something holds it, and in the end nothing waits for
nobody. `make storm` is the long one."""

import os
import random
import secrets
from collections.abc import Iterator

import pykube
import pytest

from e2e.cluster.local import LocalCluster
from e2e.cluster.provide import Cluster
from e2e.harness import IN_USE, Kubectl, Operator, fetch_all, finalizers, wait_until
from e2e.storm import Recorder, Storm, losses

STEPS = int(os.environ.get("E2E_STORM", "100"))
SEED = os.environ.get("E2E_SEED") or secrets.token_hex(4)


@pytest.fixture
def namespaces(kubectl: Kubectl) -> Iterator[list[str]]:
    """They may be deleted and replaced by others."""
    mine = [f"storm-{secrets.token_hex(2)}-{i}" for i in range(3)]
    for name in mine:
        kubectl("create", "namespace", name)
    yield mine
    for name in mine:
        kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


class Everywhere(set[str]):
    """Names of namespaces that begin like ours."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("storm-")


@pytest.mark.timeout(60 + STEPS * 5)
def test_a_storm(
    cluster: Cluster,
    stopped_operator: Operator,
    kubectl: Kubectl,
    api: pykube.HTTPClient,
    namespaces: list[str],
) -> None:
    if not isinstance(cluster, LocalCluster):
        pytest.skip("the API server of somebody else's cluster is not restarted")
    operator = stopped_operator
    # Pods taken by force hold for a while: short here, so that the end does not have to wait for it.
    operator.start("--quarantine-seconds", "10")
    print(f"E2E_SEED={SEED} E2E_STORM={STEPS}")
    storm = Storm(cluster, kubectl, api, operator, namespaces, random.Random(SEED))
    with Recorder(api, Everywhere()) as recorder:
        for _ in range(STEPS):
            storm.step()
        # Nobody holds any more.
        for namespace in namespaces:
            kubectl("delete", "-n", namespace, "deployments,pods", "--all", "--wait=false")
        kubectl("delete", "persistentvolumes", "--all", "--wait=false")
        wait_until(lambda: not waiting(api, kubectl), 240, "nothing is left that waits for nobody")
    print(dict(storm.done), f"{len(recorder.changes)} changes")
    guarded = sum(change.guarded for change in recorder.changes)
    assert guarded > STEPS / 10, "hardly anything was protected: the storm shows nothing"
    assert losses(recorder.changes) == []
    operator.stop()


def waiting(api: pykube.HTTPClient, kubectl: Kubectl) -> list[str]:
    """Objects with our finalizer in the storm's namespaces, and those of them that go."""
    found = []
    names = kubectl("get", "namespaces", "-o", "name").stdout.split()
    for namespace in (name.partition("/")[2] for name in names if name.startswith("namespace/storm-")):
        for kind in (pykube.ConfigMap, pykube.Secret):
            found += [
                f"{namespace}/{o['metadata']['name']}"
                for o in fetch_all(api, kind, namespace)
                if IN_USE in finalizers(o) or "deletionTimestamp" in o["metadata"]
            ]
    return found
