"""The kubelet's decision table, row by row: an object A went at 1000, B of the same name came at 2000."""

import pytest

from versionedconfig.staleness.history import EVER, NEVER, NOT_YET, NOTHING, Life, Span, Timing, Why
from versionedconfig.staleness.judge import Kind, Verdict, judge, over, settle
from versionedconfig.staleness.record import Case, Consumer, Sight, Start, Usage

TIMING = Timing()
ENV = Usage("ConfigMap", "app", consumers=(Consumer("web", env=True, sub_path=False, required=True),))
OPTIONAL_ENV = Usage("ConfigMap", "app", consumers=(Consumer("web", True, False, required=False),))
VOLUME = Usage("ConfigMap", "app", reads=True, follows=True)
OPTIONAL_VOLUME = Usage("ConfigMap", "app", reads=True, follows=True, required=False)
SUB_PATH = Usage("ConfigMap", "app", reads=True, consumers=(Consumer("web", False, True, required=False),))
PULL = Usage("ConfigMap", "app", reads=True, pulls=True, required=False)
BOTH = Usage("ConfigMap", "app", reads=True, follows=True, consumers=(Consumer("web", True, False, True),))
UNREAD = Usage("ConfigMap", "app")

DELETED, CREATED, NOW = 1000.0, 2000.0, 4000.0


def about(at: float) -> Span:
    return Span(at - 1, at)


class Story:
    """What the operator sees, told in the order in which it sees it."""

    def __init__(self, *, immutable: float | None = 0, digest: str = "a") -> None:
        self.case = Case([self.life("A", 0, immutable, digest)], EVER, TIMING)
        self.usages: dict[str, Usage] = {}
        self.started: dict[str, float] = {}

    @staticmethod
    def life(uid: str, created: float, immutable: float | None, digest: str) -> Life:
        since = NOT_YET if immutable is None else about(immutable)
        return Life(uid, about(created), immutable=since, digests=(digest,) if digest else ())

    def pod(self, name: str, usage: Usage, at: float, *, node: str = "n", starts: bool = True) -> "Story":
        """It is bound, and two seconds later it runs."""
        self.usages[name] = usage
        self.case.seen(self.sight(name, at, node=node), usage, at + 0.5)
        if starts:
            self.runs(name, at + 2, bound=at, node=node)
        return self

    def runs(self, name: str, at: float, *, bound: float, node: str = "n") -> "Story":
        """Its container is started, for the first time or again."""
        self.started[name] = at
        self.case.seen(self.sight(name, bound, started=at, node=node), self.usages[name], at + 1)
        return self

    def sight(
        self,
        name: str,
        bound: float,
        *,
        started: float = 0,
        node: str = "n",
        ending: bool = False,
        finished: bool = False,
    ) -> Sight:
        starts = (Start("web", started, bool(started) and not finished, over=False),)
        return Sight(name, name, node, bound, started, starts, ending, finished)

    def ends(self, name: str, at: float, *, leaves: bool = True) -> "Story":
        """Gracefully: it is asked to, it finishes, and it leaves the API."""
        usage, started = self.usages[name], self.started.get(name, 0)
        if leaves:
            self.case.seen(self.sight(name, 0, started=started, ending=True), usage, at)
        last = self.sight(name, 0, started=started, ending=leaves, finished=True)
        self.case.seen(last, usage, at + 2)
        if leaves:
            self.case.gone(last, at + 3)
        return self

    def taken(self, name: str, at: float) -> "Story":
        """By force."""
        self.case.gone(self.sight(name, 0, started=self.started.get(name, 0), ending=True), at)
        return self

    def deleted(self, uid: str = "A", at: float = DELETED) -> "Story":
        self.case.died(uid, Span(at - 2, at))
        return self

    def created(
        self, uid: str = "B", at: float = CREATED, *, immutable: bool = True, digest: str = "b"
    ) -> "Story":
        self.case.born(self.life(uid, at, at if immutable else None, digest))
        return self

    def restarted(self, at: float) -> "Story":
        self.case.restarted("n", about(at))
        return self

    def verdicts(self, now: float = NOW) -> dict[str, Verdict]:
        history = self.case.history()
        found = {verdict.name: verdict for verdict in judge(history, now, TIMING)}
        # What is settled gives the same verdicts.
        for at in (1500.0, now - 300):
            again = judge(settle(history, at, now, TIMING), now, TIMING)
            assert {one.name: (one.kind, one.serves) for one in again} == {
                name: (one.kind, one.serves) for name, one in found.items()
            }
        return found

    def kinds(self, now: float = NOW) -> dict[str, Kind]:
        return {name: verdict.kind for name, verdict in self.verdicts(now).items()}


def test_row_1_the_first_pod_after_the_recreation_reads_the_new_one() -> None:
    story = Story().deleted().created().pod("new", BOTH, 2100)

    assert story.kinds() == {"new": Kind.FRESH}
    assert over(story.case.history(), NOW, TIMING)


def test_row_2_a_pod_that_waited_for_the_object_reads_the_new_one() -> None:
    story = Story().deleted().pod("waits", ENV, 1500, starts=False).created().runs("waits", 2010, bound=1500)

    assert story.kinds() == {"waits": Kind.FRESH}


@pytest.mark.parametrize("usage", [ENV, VOLUME, SUB_PATH, BOTH, PULL, OPTIONAL_ENV, OPTIONAL_VOLUME])
@pytest.mark.parametrize("at", [500, 1500, 2500])
def test_row_3_what_the_node_has_read_stays(usage: Usage, at: float) -> None:
    """For the pod that read it, for one that comes while the object is away, and for one that comes when it is back."""
    story = Story().pod("old", VOLUME, 100)
    if at < DELETED:
        story.pod("other", usage, at)
    story.deleted()
    if DELETED < at < CREATED:
        story.pod("other", usage, at)
    story.created()
    if at > CREATED:
        story.pod("other", usage, at)

    verdicts = story.verdicts()

    assert {name: one.kind for name, one in verdicts.items()} == {"old": Kind.STALE, "other": Kind.STALE}
    assert verdicts["other"].serves == {"A"}
    assert not over(story.case.history(), NOW, TIMING)


def test_row_3_also_for_a_container_that_is_started_again() -> None:
    story = Story().pod("old", BOTH, 100).deleted().created().runs("old", 3000, bound=100)

    assert story.kinds() == {"old": Kind.STALE}


@pytest.mark.parametrize("usage", [ENV, VOLUME])
def test_row_3_a_pod_that_needs_it_has_read_it(usage: Usage) -> None:
    """It came with its object, too close for the clocks to tell which was first; but it could not have started without."""
    story = Story().pod("old", usage, 1).deleted().created().pod("new", ENV, 2100)

    assert story.kinds() == {"old": Kind.STALE, "new": Kind.STALE}


def test_row_3_another_node_is_not_concerned() -> None:
    story = Story().pod("old", ENV, 100).deleted().created().pod("elsewhere", ENV, 2100, node="m")

    assert story.kinds() == {"old": Kind.STALE, "elsewhere": Kind.FRESH}


def test_row_4_what_nobody_has_read_is_not_kept() -> None:
    story = Story().pod("csi", UNREAD, 100).deleted().created().pod("new", ENV, 2100)

    assert story.kinds() == {"new": Kind.FRESH}


def test_row_5_a_mutable_one_is_followed_by_volumes_and_not_by_environments() -> None:
    story = Story(immutable=None).pod("files", VOLUME, 100).pod("env", ENV, 100).pod("part", SUB_PATH, 100)
    story.deleted().created()

    assert story.kinds() == {"files": Kind.FRESH, "env": Kind.STALE, "part": Kind.STALE}


def test_row_5_files_stay_while_the_object_is_away() -> None:
    story = Story(immutable=None).pod("files", VOLUME, 100).pod("optional", OPTIONAL_VOLUME, 100).deleted()

    assert story.kinds(1900) == {"files": Kind.DELETED, "optional": Kind.FRESH}


@pytest.mark.parametrize(
    ("flipped", "usage", "kind", "why"),
    [
        (500, VOLUME, Kind.STALE, Why.CERTAIN),
        (960, VOLUME, Kind.UNKNOWN, Why.FLIP),
        (500, ENV, Kind.FRESH, Why.CERTAIN),
    ],
)
def test_row_6_a_flip_counts_from_the_next_read(flipped: float, usage: Usage, kind: Kind, why: Why) -> None:
    story = Story(immutable=flipped).pod("old", usage, 100).deleted().created().pod("new", VOLUME, 2500)

    verdict = story.verdicts()["new"]

    assert (verdict.kind, verdict.why) == (kind, why)


def test_row_7_a_mutable_successor_is_followed() -> None:
    story = Story(immutable=None).pod("files", VOLUME, 100).deleted().created(immutable=False)
    story.deleted("B", 2500).created("C", 3000, digest="c")

    assert story.kinds() == {"files": Kind.FRESH}


def test_row_8_each_name_is_a_chain() -> None:
    story = Story(immutable=None).pod("files", VOLUME, 100).deleted().created()
    story.deleted("B", 2500).created("C", 3000, digest="c")

    verdict = story.verdicts()["files"]

    assert (verdict.kind, verdict.serves) == (Kind.STALE, frozenset({"B"}))


def test_row_9_with_the_last_pod_goes_what_was_kept() -> None:
    story = Story().pod("old", BOTH, 100).deleted().ends("old", 1500).pod("new", BOTH, 1504).created()
    story.runs("new", 2010, bound=1504)

    assert story.kinds() == {"new": Kind.FRESH}


def test_row_9_a_pod_that_comes_in_the_second_in_which_the_last_one_left() -> None:
    story = Story().pod("old", BOTH, 100).deleted().created().ends("old", 2100)
    # Its timestamp says 2102; the other one's end was heard at 2103, before this one.
    story.usages["new"] = BOTH
    story.case.seen(story.sight("new", 2102), BOTH, 2103.2)
    story.runs("new", 2106, bound=2102)

    assert story.kinds() == {"new": Kind.FRESH}


def test_row_10_a_pod_taken_by_force_may_still_be_there() -> None:
    story = Story().pod("old", BOTH, 100).deleted().taken("old", 1500).created().pod("new", ENV, 2100)

    verdict = story.verdicts()["new"]

    assert (verdict.kind, verdict.why, verdict.serves) == (Kind.UNKNOWN, Why.TAKEN, frozenset({"A"}))


def test_row_10_until_its_node_has_let_go() -> None:
    story = Story().pod("old", BOTH, 100).deleted().taken("old", 1500)
    story.case.let_go("n", 1600)
    story.created().pod("new", ENV, 2100)

    assert story.kinds() == {"new": Kind.FRESH}


def test_row_11_a_finished_pod_does_not_bridge() -> None:
    story = (
        Story()
        .pod("job", BOTH, 100)
        .deleted()
        .ends("job", 1500, leaves=False)
        .created()
        .pod("new", ENV, 2100)
    )

    assert story.kinds() == {"new": Kind.FRESH}


def test_row_12_after_a_restart_of_the_kubelet_files_are_new_and_environments_are_not() -> None:
    story = Story().pod("files", VOLUME, 100).pod("both", BOTH, 100).deleted().created().restarted(2500)

    verdicts = story.verdicts()

    assert {name: one.kind for name, one in verdicts.items()} == {"files": Kind.FRESH, "both": Kind.STALE}
    assert {part.how: part.kind for part in verdicts["both"].parts} == {
        "env": Kind.STALE,
        "volume": Kind.FRESH,
    }


def test_row_13_a_restart_while_the_object_is_away() -> None:
    story = Story().pod("files", VOLUME, 100).deleted().restarted(1500).created().pod("new", ENV, 2500)

    assert story.kinds() == {"files": Kind.FRESH, "new": Kind.FRESH}


def test_row_14_after_a_restart_an_environment_is_not_read_again() -> None:
    story = Story().pod("env", ENV, 100).restarted(500).deleted().created().pod("new", ENV, 2500)

    assert story.kinds() == {"env": Kind.STALE, "new": Kind.FRESH}


def test_row_14_but_volumes_are() -> None:
    story = Story().pod("files", VOLUME, 100).restarted(500).deleted().created().pod("new", ENV, 2500)

    assert story.kinds() == {"files": Kind.STALE, "new": Kind.STALE}


@pytest.mark.parametrize("at", [999, 1001])
def test_row_17_what_happens_at_the_same_time_is_not_known(at: float) -> None:
    story = Story()
    if at < DELETED:
        story.pod("old", OPTIONAL_ENV, at, starts=False).deleted()
    else:
        story.deleted().pod("old", OPTIONAL_ENV, at, starts=False)
    story.runs("old", at + 2, bound=at).created().pod("new", ENV, 2500)

    assert story.kinds()["new"] is Kind.UNKNOWN


def test_row_18_what_is_deleted_and_served() -> None:
    story = Story().pod("old", BOTH, 100).deleted()

    verdict = story.verdicts()["old"]

    assert (verdict.kind, verdict.serves) == (Kind.DELETED, frozenset({"A"}))


def test_the_same_content_is_not_stale() -> None:
    story = Story().pod("old", BOTH, 100).deleted().created(digest="a")

    assert story.kinds() == {"old": Kind.FRESH}
    # It is another object all the same, and it stays when the live one goes.
    assert not over(story.case.history(), NOW, TIMING)


def test_a_container_that_started_without_an_optional_object_has_nothing_of_it() -> None:
    story = Story().deleted().pod("early", OPTIONAL_ENV, 1500).created()

    verdict = story.verdicts()["early"]

    assert (verdict.kind, verdict.serves) == (Kind.STALE, frozenset({NOTHING}))


def test_a_pod_that_does_not_run_has_no_verdict() -> None:
    story = Story().pod("old", BOTH, 100).deleted().pod("waits", ENV, 1500, starts=False)

    assert story.kinds() == {"old": Kind.DELETED}


def test_a_node_that_is_not_ready_is_not_known() -> None:
    story = Story().pod("old", BOTH, 100).deleted()
    story.case.cut_off("n", Span(1440, NEVER))
    story.created()

    verdict = story.verdicts()["old"]
    assert (verdict.kind, verdict.why) == (Kind.UNKNOWN, Why.CUT_OFF)

    story.case.cut_off("n", Span(1440, 3000))
    assert story.kinds() == {"old": Kind.STALE}


def test_a_history_does_not_grow() -> None:
    story = Story().pod("old", BOTH, 100).deleted().created()
    for i in range(200):
        story.pod(f"p{i}", BOTH, 2100 + 10 * i).ends(f"p{i}", 2105 + 10 * i)

    settled = settle(story.case.history(), 4000, 4300, TIMING)

    assert sum(len(node.uses) for node in settled.nodes) < 15
    assert {one.name: one.kind for one in judge(settled, 4300, TIMING)} == {"old": Kind.STALE}
