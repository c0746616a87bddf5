"""The judge against a model of the kubelet: whatever happens, in whatever order and however late it is heard, no pod that
reads old content is called fresh, and none that reads the live content is called stale.

VERSIONEDCONFIG_HISTORIES says how many histories (make truth: 10,000).
"""

import os
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.staleness.kubelet import USAGES, RunningPod, World
from versionedconfig.staleness.history import Timing
from versionedconfig.staleness.record import Usage

HISTORIES = int(os.environ.get("VERSIONEDCONFIG_HISTORIES", "150"))
NODES = st.sampled_from(["n0", "n1"])
WAITS = st.sampled_from([0.2, 1, 3, 10, 45, 150, 400])


class Cluster(RuleBasedStateMachine):
    """Steps of the people, the pods and the nodes."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = World(random.Random(seed), Timing())

    def pods(self) -> list[RunningPod]:
        return [pod for pod in self.world.pods.values() if not (pod.dead or pod.deleting or pod.ending)]

    @precondition(lambda self: self.world.thing is None)
    @rule(content=st.sampled_from("xy"), immutable=st.sampled_from([True, True, False]), seconds=WAITS)
    def create(self, content: str, immutable: bool, seconds: float) -> None:
        self.world.create(content, immutable)
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.thing is not None)
    @rule(seconds=WAITS)
    def delete(self, seconds: float) -> None:
        self.world.delete()
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.thing is not None)
    @rule(content=st.sampled_from("xy"), immutable=st.booleans(), seconds=WAITS)
    def recreate(self, content: str, immutable: bool, seconds: float) -> None:
        """`kubectl replace --force`"""
        self.world.delete()
        self.world.pass_time(self.world.rng.uniform(0, 0.1))
        self.world.create(content, immutable)
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.thing is not None and not self.world.thing.immutable)
    @rule(seconds=WAITS)
    def flip(self, seconds: float) -> None:
        self.world.flip()
        self.world.pass_time(seconds)

    @rule(usage=st.sampled_from(USAGES), node=NODES, seconds=WAITS)
    def start(self, usage: Usage, node: str, seconds: float) -> None:
        self.world.start_pod(usage, node)
        self.world.pass_time(seconds)

    @precondition(lambda self: self.pods())
    @rule(data=st.data(), how=st.sampled_from(["remove", "remove", "finish", "take"]), seconds=WAITS)
    def end(self, data: st.DataObject, how: str, seconds: float) -> None:
        getattr(self.world, how)(data.draw(st.sampled_from(self.pods())))
        self.world.pass_time(seconds)

    @precondition(lambda self: any(pod.running and pod.started for pod in self.pods()))
    @rule(data=st.data(), seconds=WAITS)
    def crash(self, data: st.DataObject, seconds: float) -> None:
        running = [pod for pod in self.pods() if pod.running and pod.started]
        self.world.crash(data.draw(st.sampled_from(running)))
        self.world.pass_time(seconds)

    @rule(node=NODES, what=st.sampled_from(["restart_kubelet", "cut", "heal"]), seconds=WAITS)
    def node(self, node: str, what: str, seconds: float) -> None:
        getattr(self.world, what)(node)
        self.world.pass_time(seconds)

    @rule(seconds=WAITS)
    def wait(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def tidy(self) -> None:
        self.world.tidy()

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for node in self.world.nodes:
                self.world.heal(node)
            self.world.pass_time(30)
            self.world.check()


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=HISTORIES, stateful_step_count=25, deadline=None)


def test_it_is_seldom_unknown() -> None:
    """Where things are not seconds apart, and no node is cut off, there is a verdict."""
    given = unknown = 0
    for seed in range(100):
        rng = random.Random(seed)
        world = World(rng, Timing())
        for _ in range(25):
            running = [pod for pod in world.pods.values() if not (pod.dead or pod.deleting or pod.ending)]
            step = rng.choice(
                ["create", "delete", "flip", "start", "start", "start", "remove", "remove", "restart"]
            )
            if step == "create" and world.thing is None:
                world.create(rng.choice("xyz"), rng.random() < 0.7)
            elif step == "delete" and world.thing is not None:
                world.delete()
            elif step == "flip" and world.thing is not None and not world.thing.immutable:
                world.flip()
            elif step == "start":
                world.start_pod(rng.choice(USAGES), rng.choice(["n0", "n1"]))
            elif step == "remove" and running:
                world.remove(rng.choice(running))
            elif step == "restart" and rng.random() < 0.3:
                world.restart_kubelet(rng.choice(["n0", "n1"]))
            world.pass_time(rng.uniform(100, 400))
            world.tidy()
            verdicts, unknowns = world.check()
            given += verdicts
            unknown += unknowns

    assert given > 500
    assert unknown <= 0.03 * given
