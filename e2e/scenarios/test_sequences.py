"""Whatever is done to a VersionedConfig, its workloads and the operator: in the end every pod reads what the status claims,
and no version was ever missing that something used. `make storm` is the long one."""

import contextlib
import os
import random
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pykube
import pytest

from e2e import harness
from e2e.cluster.provide import Cluster
from e2e.harness import Kubectl, Operator
from e2e.sequences import Sequence
from e2e.storm import Recorder, losses

COUNT = int(os.environ.get("E2E_SEQUENCES", "6"))
SEED = os.environ.get("E2E_SEED") or secrets.token_hex(4)
TOGETHER = 6
"""Namespaces at the same time: one operator looks after all of them."""
STEPS = 12
KILLS = 3
"""Of the operator, while so many sequences go on together."""


@pytest.mark.timeout(120 + COUNT * 60)
def test_random_sequences(
    cluster: Cluster, operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient
) -> None:
    print(f"E2E_SEED={SEED} E2E_SEQUENCES={COUNT}")
    done: Counter[str] = Counter()
    for first in range(0, COUNT, TOGETHER):
        numbers = range(first, min(COUNT, first + TOGETHER))
        done += together(cluster, operator, kubectl, api, list(numbers))
    print(dict(done))


def together(
    cluster: Cluster, operator: Operator, kubectl: Kubectl, api: pykube.HTTPClient, numbers: list[int]
) -> Counter[str]:
    """Some sequences side by side, with the operator killed now and then."""
    with contextlib.ExitStack() as stack:
        namespaces = [stack.enter_context(harness.temporary_namespace(kubectl, api)) for _ in numbers]
        sequences = [
            # A connection of its own for each thread.
            Sequence(
                cluster, kubectl, pykube.HTTPClient(api.config), namespace, random.Random(f"{SEED}/{number}")
            )
            for number, namespace in zip(numbers, namespaces, strict=True)
        ]
        with Recorder(api, set(namespaces)) as recorder, ThreadPoolExecutor(len(sequences)) as pool:
            list(pool.map(Sequence.begin, sequences))
            for _ in range(KILLS + 1):
                list(pool.map(go_on, sequences))
                operator.kill()
                operator.start()
            list(pool.map(Sequence.end, sequences))
        faults = {s.namespace: found for s in sequences if (found := list(s.faults()))}
        assert faults == {}
        assert losses(recorder.changes) == []
        return sum((sequence.done for sequence in sequences), Counter())


def go_on(sequence: Sequence) -> None:
    """A part of the steps."""
    for _ in range(STEPS // (KILLS + 1)):
        sequence.step()
