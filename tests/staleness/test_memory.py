"""What is written down is what was known."""

import base64
import random
import zlib
from dataclasses import replace

from tests.staleness.kubelet import USAGES, World
from tests.staleness.test_judge import BOTH, NOW, TIMING, Story
from versionedconfig.staleness import memory
from versionedconfig.staleness.history import EVER, History, Life, Span, Timing
from versionedconfig.staleness.judge import judge, settle
from versionedconfig.staleness.memory import recall, remember
from versionedconfig.staleness.record import Case


def through(history: History, *, secret: bool = False) -> History:
    found = recall(remember(history, secret=secret))
    assert found is not None
    return found


def test_verdicts_are_the_same_afterwards() -> None:
    compared = 0
    for seed in range(60):
        rng = random.Random(seed)
        world = World(rng, Timing())
        world.create("x", immutable=True)
        for _ in range(6):
            world.start_pod(rng.choice(USAGES), rng.choice(["n0", "n1"]))
            world.pass_time(rng.uniform(20, 200))
        world.delete()
        world.pass_time(30)
        world.create("y", immutable=rng.random() < 0.5)
        world.pass_time(200)
        assert world.case is not None
        history = settle(world.case.history(), world.now, world.now, world.timing)
        for secret in (False, True):
            later = world.now + 100
            again = {one.pod: one.kind for one in judge(through(history, secret=secret), later, world.timing)}
            assert again == {one.pod: one.kind for one in judge(history, later, world.timing)}
            compared += len(again)
    assert compared > 100


def test_of_a_secret_nothing_is_told_but_what_is_equal() -> None:
    lives = [Life(uid, Span(0, 1), digests=(digest,)) for uid, digest in (("A", "x"), ("B", "y"), ("C", "x"))]

    again = through(History(tuple(lives)), secret=True).lives

    assert again[0].digest == again[2].digest != again[1].digest
    assert not {"x", "y"} & {one.digest for one in again}


def test_contents_of_a_secret_are_compared_with_later_ones_only_where_that_can_be() -> None:
    """A restart gives them other digests."""
    now, timing = 1000.0, Timing()
    old = Life("A", Span(0, 1), Span(400, 401), Span(0, 1), ("one:x",))
    live = Life("B", Span(450, 451), immutable=Span(450, 451), digests=("one:y",))
    case = Case((), EVER, timing)
    case.replace(through(History((old, live)), secret=True))

    case.born(replace(live, digests=("two:p",)))
    a, b = case.history().lives
    assert a.equals(b) == {False}

    case.died("B", Span(now, now))
    case.born(Life("C", Span(now, now), digests=("two:q",)))
    a, b, c = case.history().lives
    assert a.equals(c) == {True, False}
    assert b.equals(c) == {False}

    case.died("C", Span(now, now))
    case.born(Life("D", Span(now, now), digests=("two:p",)))
    *_, d = case.history().lives
    assert b.equals(d) == {True}


def test_what_is_no_history_is_none() -> None:
    bomb = base64.b64encode(zlib.compress(b"[" * 10_000_000)).decode()
    things: list[object] = [None, "x", "", {"lives": "x"}, base64.b64encode(b"x").decode(), bomb]
    for nonsense in things:
        assert recall(nonsense) is None


def test_pods_are_much_alike() -> None:
    story = Story()
    for i in range(2000):
        story.pod(f"web-{i:x}-{i * 7919 % 65536:x}", BOTH, 100 + i / 10, node=f"node-{i % 200}")
    history = settle(story.deleted().created().case.history(), NOW - 300, NOW, TIMING)

    assert len(remember(history, secret=False) or "") < 100_000


def test_what_is_too_long_is_not_kept() -> None:
    rng = random.Random(0)
    lives = tuple(Life(rng.randbytes(1000).hex(), Span(0, 1)) for _ in range(memory.MOST // 1000))

    assert remember(History(lives), secret=False) is None
