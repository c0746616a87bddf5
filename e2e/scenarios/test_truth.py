"""What is said of each pod is what it really reads, whatever was done to the object, the pods and the operator.
`make truth` is the long one."""

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pykube
import pytest

from e2e import harness
from e2e.cluster.local import LocalCluster
from e2e.cluster.provide import Cluster
from e2e.harness import Kubectl, Operator
from e2e.truth import PHASE_SECONDS, History, Told

COUNT = int(os.environ.get("E2E_TRUTH", "8"))
SEED = os.environ.get("E2E_SEED") or secrets.token_hex(4)
RESTARTS = int(os.environ.get("E2E_TRUTH_RESTARTS", "0"))
"""Of kubelets, while some histories go on together."""
ABSENCES = int(os.environ.get("E2E_TRUTH_ABSENCES", "0"))
"""Of the operator, in the same time."""
TOGETHER = 15
"""Namespaces at the same time: they wait most of the time."""
MOST_UNKNOWN = 0.05
ENOUGH = 500
"""Verdicts, to tell of a share."""


@pytest.fixture
def asking_operator(operator: Operator, kubectl: Kubectl) -> Iterator[Operator]:
    """It asks the kubelets whether they restarted, where they do."""
    if not RESTARTS:
        yield operator
        return
    rights = str(harness.ROOT / "manifests/components/kubelet-metrics/rbac.yaml")
    kubectl("apply", "-f", rights)
    operator.stop()
    operator.start("--kubelet-metrics")
    yield operator
    operator.stop()
    kubectl("delete", "-f", rights)


@pytest.mark.timeout(240 + COUNT * 30)
def test_random_histories(
    cluster: Cluster, asking_operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient
) -> None:
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this cluster's kubelets take a minute to look at a pod again")
    print(f"E2E_SEED={SEED} E2E_TRUTH={COUNT} E2E_TRUTH_RESTARTS={RESTARTS} E2E_TRUTH_ABSENCES={ABSENCES}")
    told, faults = Told(), 0
    for first in range(0, COUNT, TOGETHER):
        for number, history in together(
            cluster, asking_operator, kubectl, api, range(first, min(COUNT, first + TOGETHER))
        ):
            told.add(history.told)
            faults += len(history.faults)
            if history.faults:
                print(f"history {number} in {history.namespace}", *history.log, sep="\n")
        print(f"{min(COUNT, first + TOGETHER)} histories, {faults} faults\n{told.table()}", flush=True)
    assert faults == 0
    if told.total() >= ENOUGH:
        assert told.unknown() <= MOST_UNKNOWN
    if told.total("nothing") >= ENOUGH:
        assert told.unknown("nothing") <= MOST_UNKNOWN


def together(
    cluster: LocalCluster, operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, numbers: range
) -> list[tuple[int, History]]:
    """Some histories side by side, by number."""
    with contextlib.ExitStack() as stack:
        histories = [
            # A connection of its own for each thread.
            History(
                cluster,
                kubectl,
                pykube.HTTPClient(api.config),
                stack.enter_context(harness.temporary_namespace(kubectl, api, "truth")),
                random.Random(f"{SEED}/{number}"),
            )
            for number in numbers
        ]
        rng = random.Random(f"{SEED}/{numbers}")
        with ThreadPoolExecutor(len(histories)) as pool:

            def all_do(what: Callable[[History], None]) -> list[Future[None]]:
                return [pool.submit(attempt, history, what) for history in histories]

            def wait(futures: list[Future[None]]) -> None:
                for future in futures:
                    future.result()

            wait(all_do(History.begin))
            for restarts, absences in (
                (RESTARTS // 2, ABSENCES // 2),
                (-(-RESTARTS // 2), -(-ABSENCES // 2)),
            ):
                going = all_do(History.go_on)
                disturb(cluster, operator, histories, rng, ["restart"] * restarts + ["absence"] * absences)
                wait(going)
                wait(all_do(History.check))
                if rng.random() < 0.5:
                    # What it knew it knows again: nothing happens meanwhile.
                    note(histories, "the operator is killed and started")
                    operator.kill()
                    operator.start(*operator.options)
        return list(zip(numbers, histories, strict=True))


def attempt(history: History, what: Callable[[History], None]) -> None:
    """It fails for its own history alone."""
    try:
        what(history)
    except Exception as error:
        history.faults.append(f"{what.__name__}: {error!r}")
        history.note(f"FAULT {history.faults[-1]}")


def disturb(
    cluster: LocalCluster, operator: Operator, histories: list[History], rng: random.Random, what: list[str]
) -> None:
    """Things that befall all of them, one after the other, while they go on."""
    for one in rng.sample(what, len(what)):
        time.sleep(rng.uniform(0, PHASE_SECONDS / len(what)))
        if one == "restart":
            node = rng.choice(cluster.nodes)
            note(histories, f"the kubelet of {node} is restarted")
            cluster.restart_kubelet(node)
        else:
            note(histories, "the operator is killed")
            operator.kill()
            time.sleep(rng.uniform(1, PHASE_SECONDS / len(what)))
            operator.start(*operator.options)
            note(histories, "the operator runs again")


def note(histories: list[History], text: str) -> None:
    for history in histories:
        history.note(text)
