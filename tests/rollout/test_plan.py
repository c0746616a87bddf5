"""Where targets stand and which may move: tables, and a simulated cluster for whole rollouts."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from versionedconfig.model import ConfigKey, Reference, WorkloadKey
from versionedconfig.resource import TargetStatus, max_concurrent
from versionedconfig.rollout.plan import Aim, Plan, Scene, State, plan
from versionedconfig.workload import Health, Revision, Workload

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
AIM = Aim("ConfigMap", "app", "app-2", frozenset({"app-1", "app-2"}), max_concurrent="100%")


def workload(name: str = "web", *names: str, health: Health = Health.DONE, revision: int = 1) -> Workload:
    references = tuple(
        Reference("ConfigMap", n, ("volumes", i, "configMap", "name")) for i, n in enumerate(names)
    )
    return Workload("Deployment", "n", name, f"uid-{name}", "1", 5, references, health, revision=revision)


def key(name: str) -> WorkloadKey:
    return WorkloadKey("Deployment", "n", name)


def revision(owner: str, number: int) -> Revision:
    return Revision(
        "n", f"{owner}-{number}", "u", "1", (ConfigKey("ConfigMap", "n", "app-2"),), number, f"uid-{owner}"
    )


def step(
    workloads: Iterable[Workload],
    aim: Aim = AIM,
    previous: Iterable[TargetStatus] = (),
    *,
    promoted: bool = False,
    now: datetime = NOW,
    **scene: Any,
) -> Plan:
    """One look; `scene` with names of Deployments instead of keys."""
    for field in ("in_flight", "behind"):
        scene[field] = {key(name) for name in scene.get(field, ())}
    for field in ("refusals", "troubles", "sick", "restarted"):
        scene[field] = {key(name): text for name, text in scene.get(field, {}).items()}
    told = {WorkloadKey(target.kind, "n", target.name): target for target in previous}
    return plan(aim, workloads, scene=Scene(**scene), previous=told, promoted=promoted, now=now)


def moves(result: Plan) -> set[str]:
    return {key.name for key in result.granted}


def one(result: Plan) -> TargetStatus:
    (target,) = result.targets
    return target


def test_a_logical_name_always_moves() -> None:
    result = step([workload("web", "app")], revisions=[revision("web", 2)])

    assert one(result).state == State.WAITING
    assert moves(result) == {"web"}


def test_an_old_version_moves() -> None:
    assert moves(step([workload("web", "app-1")])) == {"web"}


def test_the_current_version_is_updated() -> None:
    result = step([workload("web", "app-2")])

    assert one(result).state == State.UPDATED
    assert not result.granted


def test_an_undo_is_respected() -> None:
    """V8: it was at the current version after that had become current, and now it is not."""
    before = one(step([workload("web", "app-2", revision=2)]))

    undone = step([workload("web", "app-1", revision=3)], previous=[before])

    assert one(undone).state == State.OVERRIDDEN
    assert not undone.granted
    again = step([workload("web", "app-1", revision=3)], previous=[one(undone)])
    assert one(again).state == State.OVERRIDDEN


def test_an_undo_after_a_crash_before_the_status_was_written_is_respected() -> None:
    """The promotion wrote the revision; the ReplicaSet of the current version has a higher one: it had moved."""
    promotion = one(step([workload("web", "app-1", revision=1)], promoted=True))

    undone = step(
        [workload("web", "app-1", revision=3)], previous=[promotion], revisions=[revision("web", 2)]
    )

    assert one(undone).state == State.OVERRIDDEN


def test_going_back_to_earlier_content_is_no_undo() -> None:
    """V5: the current version's ReplicaSet is there, from before it became current again."""
    promotion = one(step([workload("web", "app-1", revision=2)], promoted=True))

    result = step(
        [workload("web", "app-1", revision=2)], previous=[promotion], revisions=[revision("web", 1)]
    )

    assert moves(result) == {"web"}


def test_an_undo_ends_with_the_next_content() -> None:
    overridden = replace_state(one(step([workload("web", "app-1")])), State.OVERRIDDEN)

    result = step([workload("web", "app-1", revision=3)], previous=[overridden], promoted=True)

    assert moves(result) == {"web"}


def test_somebody_elses_namesake_is_not_ours() -> None:
    result = step([workload("web", "app", "app-extra", "app-2")])

    assert AIM.names(workload("web", "app", "app-extra", "app-2")) == {"app", "app-2"}
    assert moves(result) == {"web"}


def test_a_patch_that_the_mirror_does_not_show_counts_as_moving() -> None:
    result = step([workload("web", "app-1")], in_flight={"web"})

    assert one(result).state == State.UPDATING
    assert not result.granted


def test_a_refused_patch_fails_the_target_and_is_tried_again() -> None:
    workloads = [workload("a", "app-1"), workload("b", "app-1")]
    result = step(workloads, refusals={"a": "policy says no"})

    assert [target.state for target in result.targets] == [State.FAILED, State.WAITING]
    assert "policy says no" in result.targets[0].message
    assert moves(result) == {"a"}


def test_a_refusal_that_is_left_over_does_not_undo_an_undo() -> None:
    overridden = replace_state(one(step([workload("web", "app-1")])), State.OVERRIDDEN)
    result = step([workload("web", "app-1")], previous=[overridden], refusals={"web": "policy says no"})

    assert one(result).state == State.OVERRIDDEN
    assert not result.granted


def test_a_move_under_way_at_a_promotion_is_no_undo() -> None:
    """B is promoted while our patch to A is under way and the mirror still shows B: nobody chose A. Quick changes of
    content (A, B, A, B) left a target behind for this."""
    stale = workload("web", "app-2", revision=15)
    landed = replace(workload("web", "app-1", revision=15), generation=6, pending=1)
    reached = [revision("web", 15)]

    promotion = one(step([stale], promoted=True, in_flight={"web"}, revisions=reached))
    after = step([landed], previous=[promotion], revisions=reached)

    assert promotion.version == ""
    assert one(after).state == State.WAITING
    assert moves(after) == {"web"}


def test_a_revision_that_was_not_counted_yet_at_the_promotion_is_no_undo() -> None:
    """The deployment controller had not seen the last change: its ReplicaSet got the next number afterwards."""
    unseen = replace(workload("web", "app-1", revision=1), pending=1)
    promotion = one(step([unseen], promoted=True))

    result = step(
        [workload("web", "app-1", revision=3)], previous=[promotion], revisions=[revision("web", 2)]
    )

    assert moves(result) == {"web"}


def test_a_patch_that_failed_is_no_evidence_of_a_move() -> None:
    under_way = one(step([workload("web", "app-1")], in_flight={"web"}))

    assert moves(step([workload("web", "app-1")], previous=[under_way])) == {"web"}


def test_pods_that_cannot_start_are_not_rationed() -> None:
    """No object has the logical name: the failure or pause of others must not keep them from starting at all."""
    aim = replace(AIM, max_concurrent=1)
    workloads = [workload("a", "app-2", health=Health.FAILED), workload("b", "app"), workload("c", "app-1")]

    result = step(workloads, aim=aim, logical_exists=False)

    assert moves(result) == {"b"}
    assert result.targets[2].message == "a has failed"
    assert moves(step(workloads, aim=replace(aim, paused=True), logical_exists=False)) == {"b"}
    assert not step(workloads, aim=aim, logical_exists=True).granted


def test_an_emptied_status_is_survived() -> None:
    emptied = TargetStatus(kind="Deployment", name="web", state="Updating")

    assert (
        one(step([workload("web", "app-2", health=Health.PROGRESSING)], previous=[emptied])).state
        == State.UPDATING
    )


def test_a_paused_rollout_moves_nobody() -> None:
    assert not step([workload("web", "app-1")], aim=replace(AIM, paused=True)).granted


def test_a_paused_deployment_gets_its_template_and_holds_no_slot() -> None:
    """V12"""
    aim = replace(AIM, max_concurrent=1)
    result = step([workload("a", "app-2", health=Health.PAUSED), workload("b", "app-1")], aim=aim)

    assert [target.state for target in result.targets] == [State.PAUSED, State.WAITING]
    assert moves(result) == {"b"}


def test_a_failed_target_stops_the_rollout() -> None:
    aim = replace(AIM, max_concurrent=3)
    result = step([workload("a", "app-2", health=Health.FAILED), workload("b", "app-1")], aim=aim)

    assert not result.granted


def test_the_deadline_counts_from_the_move_and_stays_passed() -> None:
    aim = replace(AIM, progress_deadline_seconds=60)
    moving = workload("web", "app-2", health=Health.PROGRESSING)
    first = one(step([moving], aim=aim))

    late = one(step([moving], aim=aim, previous=[first], now=NOW + timedelta(seconds=61)))
    later = one(step([moving], aim=aim, previous=[late], now=NOW + timedelta(seconds=62)))

    assert (first.state, late.state, later.state) == (State.UPDATING, State.FAILED, State.FAILED)
    assert first.since == late.since == later.since
    well = step([workload("web", "app-2")], aim=aim, previous=[later], now=NOW + timedelta(seconds=63))
    assert one(well).state == State.FAILED
    assert well.look_again == 10
    healed = step([workload("web", "app-2")], aim=aim, previous=well.targets, now=NOW + timedelta(seconds=73))
    assert one(healed).state == State.UPDATED


def test_what_has_failed_is_not_well_between_two_crashes() -> None:
    """A container that crashes again and again runs in between."""
    workloads = [workload("a", "app-2", health=Health.PROGRESSING), workload("b", "app-1")]
    failed = step(workloads, troubles={"a": "pod a-1: CrashLoopBackOff"}).targets

    runs = step(
        [workload("a", "app-2"), workload("b", "app-1")], previous=failed, now=NOW + timedelta(seconds=6)
    )

    assert [target.state for target in runs.targets] == [State.FAILED, State.WAITING]
    assert runs.targets[0].message == "pod a-1: CrashLoopBackOff"
    assert not runs.granted
    mended = step(
        [workload("a", "app-3"), workload("b", "app-1")],
        previous=failed,
        promoted=True,
        aim=replace(AIM, current="app-3", versions=AIM.versions | {"app-3"}),
    )
    assert mended.targets[0].state == State.UPDATED


def test_another_workload_of_the_same_name_is_another_target() -> None:
    """Deleted and created again while nobody looked: it was never undone."""
    before = one(step([workload("web", "app-2", revision=2)]))
    again = replace(workload("web", "app-1"), uid="another")

    result = step([again], previous=[before])

    assert one(result).state == State.WAITING
    assert moves(result) == {"web"}


def test_a_target_that_comes_back_is_no_undo() -> None:
    """It was not looked at while the content went there and back: its old revision proves nothing."""
    result = step(
        [workload("web", "app-1", revision=3)], revisions=[revision("web", 1)], latest={"uid-web": 3}
    )

    assert moves(result) == {"web"}
    assert one(result).from_revision == 3


def test_what_refers_to_a_version_that_is_gone_moves_at_once() -> None:
    """Its pods cannot start: nobody chose that."""
    aim = replace(AIM, lost=frozenset({"app-1"}), paused=True)
    undone = [TargetStatus("Deployment", "web", "app-2", "Updated")]

    result = step([workload("web", "app-1", revision=3)], aim=aim, previous=undone)

    assert one(result).state == State.WAITING
    assert moves(result) == {"web"}
    assert {key.name for key in result.urgent} == {"web"}


def test_a_version_that_nobody_ran_has_not_succeeded() -> None:
    assert step([]).succeeded
    assert step([workload("a", "app-2")]).succeeded
    assert not step([workload("a", "app-2"), workload("b", "app-1")]).succeeded
    assert not step([workload("a", "app-2", health=Health.PAUSED)]).succeeded
    undone = [TargetStatus("Deployment", "a", "app-2", "Updated")]
    result = step([workload("a", "app-1", revision=3)], previous=undone)
    assert one(result).state == State.OVERRIDDEN
    assert result.finished
    assert not result.succeeded


def test_what_was_always_broken_stops_nobody_when_others_run_the_version() -> None:
    broken = workload("z", "app-2", health=Health.FAILED)

    alone = step([broken, workload("a", "app-1")], aim=BACK)
    proved = step([broken, workload("a", "app-2"), workload("b", "app-1")], aim=BACK)

    assert not alone.granted
    assert moves(proved) == {"b"}
    assert step([broken, workload("a", "app-2")], aim=BACK).succeeded


def test_who_waits_for_a_turn_is_waited_for() -> None:
    """By another VersionedConfig that would move the same workload, so that one patch does for both."""
    aim = replace(AIM, max_concurrent=1)
    result = step([workload(name, "app-1") for name in "abc"], aim=aim)

    assert moves(result) == {"a"}
    assert {key.name for key in result.waiting} == {"b", "c"}
    assert not result.urgent
    assert not step([workload("a", "app-1")], aim=replace(aim, paused=True)).waiting
    stuck = step([workload("a", "app")], aim=aim, logical_exists=False)
    assert {key.name for key in stuck.urgent} == {"a"}


def test_max_concurrent() -> None:
    assert [max_concurrent(v, 10) for v in (3, "3", "25%", "1%", "100%")] == [3, 3, 2, 1, 10]


@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.one_of(st.integers(1, 5), st.sampled_from(["1%", "25%", "50%", "100%"])),
    st.randoms(use_true_random=False),
)
def test_a_rollout_ends_and_never_exceeds_its_limit(count: int, limit: int | str, random: Any) -> None:
    aim = replace(AIM, max_concurrent=limit)
    workloads = {f"w{i:02}": workload(f"w{i:02}", random.choice(["app", "app-1"])) for i in range(count)}
    previous: list[TargetStatus] = list(step(workloads.values(), aim=aim, promoted=True).targets)
    for _ in range(count * 4):
        result = step(workloads.values(), aim=aim, previous=previous)
        if result.updated == count:
            break
        previous = list(result.targets)
        for name in moves(result):
            workloads[name] = workload(name, "app-2", health=Health.PROGRESSING, revision=2)
        moving = [w for w in workloads.values() if w.health is Health.PROGRESSING]
        assert len(moving) <= max_concurrent(limit, count)
        # At least one gets healthy in each round; which, and how many more, is chance.
        for number, w in enumerate(random.sample(moving, len(moving))):
            if number == 0 or random.random() < 0.6:
                workloads[w.name] = replace(w, health=Health.DONE)
    else:
        raise AssertionError("the rollout did not end")


def replace_state(target: TargetStatus, state: State) -> TargetStatus:
    return TargetStatus(target.kind, target.name, target.version, state)


# -- order, waiting, and what never gets through by itself -------------------------------------------------------------


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_lower_orders_go_first_and_the_others_wait_until_they_are_through() -> None:
    """V27: one canary, then the rest."""
    canary = replace(workload("z", "app-1"), order=-1)
    rest = [workload(name, "app-1") for name in "abc"]

    assert moves(step([canary, *rest])) == {"z"}
    moving = replace(workload("z", "app-2", health=Health.PROGRESSING), order=-1)
    assert moves(step([moving, *rest])) == set()
    assert moves(step([replace(workload("z", "app-2"), order=-1), *rest])) == {"a", "b", "c"}


def test_what_is_broken_already_moves_last() -> None:
    aim = replace(AIM, max_concurrent=1)
    workloads = [workload(name, "app-1") for name in "abc"]

    assert moves(step(workloads, aim=aim, sick={"a": "pod a-1: CrashLoopBackOff"})) == {"b"}


def test_a_target_has_to_stay_healthy_for_a_while() -> None:
    aim = replace(AIM, min_ready_seconds=5, max_concurrent=1)
    both = [workload("a", "app-2"), workload("b", "app-1")]
    first = step(both, aim=aim)

    assert [target.state for target in first.targets] == [State.UPDATING, State.WAITING]
    assert not first.granted
    assert first.look_again == 5
    fell = step(
        [workload("a", "app-2", health=Health.PROGRESSING), both[1]],
        aim=aim,
        previous=first.targets,
        now=later(3),
    )
    assert fell.targets[0].healthy_since == ""
    back = step(both, aim=aim, previous=fell.targets, now=later(4))
    assert not step(both, aim=aim, previous=back.targets, now=later(8)).granted
    assert moves(step(both, aim=aim, previous=back.targets, now=later(9))) == {"b"}


def test_a_container_that_was_started_again_begins_the_wait_anew() -> None:
    """The kubelet restarts it at once the first time, and the pod may count as ready all the while."""
    aim = replace(AIM, min_ready_seconds=5)
    first = step([workload("a", "app-2")], aim=aim).targets
    again = {"a": "2026-01-31T12:00:04Z"}

    result = step([workload("a", "app-2")], aim=aim, previous=first, restarted=again, now=later(6))
    assert one(result).state == State.UPDATING
    assert result.look_again == 3
    after = step([workload("a", "app-2")], aim=aim, previous=result.targets, restarted=again, now=later(9))
    assert one(after).state == State.UPDATED


def test_what_wants_no_pods_need_not_wait() -> None:
    aim = replace(AIM, min_ready_seconds=5)

    assert one(step([replace(workload("a", "app-2"), running=False)], aim=aim)).state == State.UPDATED


def test_who_was_healthy_once_is_through() -> None:
    """What comes later is no news about the version, and no reason to take it back."""
    done = one(step([workload("web", "app-2")]))
    result = step(
        [workload("web", "app-2", health=Health.FAILED)],
        previous=[done],
        troubles={"web": "pod web-1: CrashLoopBackOff"},
        aim=replace(AIM, roll_back=True),
    )

    assert one(result).state == State.UPDATED
    assert result.failure is None


def test_pods_to_be_replaced_by_hand_stop_nobody() -> None:
    """V11"""
    aim = replace(AIM, max_concurrent=1)
    result = step([workload("a", "app-2", health=Health.MANUAL), workload("b", "app-1")], aim=aim)

    assert result.targets[0].state == State.MANUAL
    assert moves(result) == {"b"}


def test_a_replica_set_with_old_pods_waits_for_somebody() -> None:
    alone = replace(workload("a", "app-2"), kind="ReplicaSet")
    rs = WorkloadKey("ReplicaSet", "n", "a")

    def look(behind: set[WorkloadKey]) -> State:
        result = plan(AIM, [alone], scene=Scene(behind=behind), previous={}, promoted=False, now=NOW)
        return State(one(result).state)

    assert look({rs}) == State.MANUAL
    assert look(set()) == State.UPDATED


# -- failing and going back --------------------------------------------------------------------------------------------

BACK = replace(AIM, roll_back=True)


def promoted_from(*workloads: Workload, aim: Aim = BACK) -> list[TargetStatus]:
    """Targets that were healthy with app-1, at the promotion of app-2."""
    first = replace(aim, current="app-1")
    done = step([replace(w, health=Health.DONE) for w in workloads], aim=first).targets
    return list(step(workloads, aim=aim, previous=done, promoted=True).targets)


def test_a_pod_that_does_not_start_fails_its_target_at_once() -> None:
    previous = promoted_from(workload("web", "app-1"))
    assert previous[0].previous == "app-1"

    result = step(
        [workload("web", "app-2", health=Health.PROGRESSING)],
        aim=BACK,
        previous=previous,
        troubles={"web": "pod web-1: CrashLoopBackOff in container c"},
    )

    assert one(result).state == State.FAILED
    assert result.failure is not None
    assert result.failure.target == "Deployment web"
    assert "CrashLoopBackOff" in result.failure.message


def test_a_target_that_was_never_healthy_proves_nothing_about_the_version() -> None:
    """It would take every new version back for a fault of its own."""
    troubles = {"web": "pod web-1: ImagePullBackOff in container c"}
    new = step([workload("web", "app-2", health=Health.PROGRESSING)], aim=BACK, troubles=troubles)
    broken = step(
        [workload("web", "app-1", health=Health.PROGRESSING)],
        aim=BACK,
        promoted=True,
        previous=[TargetStatus("Deployment", "web", "app-1", "Updated")],
        sick=troubles,
    )
    after = step(
        [workload("web", "app-2", health=Health.PROGRESSING)],
        aim=BACK,
        previous=broken.targets,
        troubles=troubles,
    )

    assert one(new).state == one(after).state == State.FAILED
    assert new.failure is None
    assert after.failure is None


def test_quick_edits_go_back_to_what_was_healthy_last() -> None:
    """app-2 never got through when app-3 came: app-1 is what there is to go back to."""
    previous = promoted_from(workload("web", "app-1"))
    moving = workload("web", "app-2", health=Health.PROGRESSING)
    between = step([moving], aim=BACK, previous=previous).targets
    aim = replace(BACK, current="app-3", versions=AIM.versions | {"app-3"})

    promoted = one(
        step([moving], aim=aim, previous=between, promoted=True, sick={"web": "pod w: CrashLoopBackOff"})
    )

    assert promoted.previous == "app-1"


def test_what_is_healthy_but_not_for_long_is_something_to_go_back_to() -> None:
    aim = replace(BACK, min_ready_seconds=5)
    young = step([workload("web", "app-2")], aim=aim).targets
    third = replace(aim, current="app-3", versions=AIM.versions | {"app-3"})

    assert one(step([workload("web", "app-2")], aim=third, previous=young, promoted=True)).previous == "app-2"


def test_everything_that_moved_goes_back_in_one_step() -> None:
    """Those that had another version get theirs."""
    workloads = [workload(name, "app-2", health=Health.PROGRESSING) for name in "abc"]
    waiting = workload("d", "app-1")
    had = [
        TargetStatus("Deployment", name, "app-2", "Updating", previous=version)
        for name, version in (("a", "app-1"), ("b", "app-0"), ("c", ""))
    ]
    had.append(TargetStatus("Deployment", "d", "app-1", "Waiting"))
    aim = Aim(
        "ConfigMap",
        "app",
        "app-1",
        frozenset({"app-0", "app-1", "app-2"}),
        max_concurrent=1,
        roll_back=True,
        rolling_back=True,
        paused=True,
    )

    result = step([*workloads, waiting], aim=aim, previous=had, promoted=True)

    assert {key.name: version for key, version in result.granted.items()} == {
        "a": "app-1",
        "b": "app-0",
        "c": "app-1",
    }
    there = [
        workload("a", "app-1"),
        workload("b", "app-0"),
        workload("c", "app-1"),
        waiting,
    ]
    after = step(there, aim=aim, previous=result.targets)
    assert [target.state for target in after.targets] == ["Updated", "Overridden", "Updated", "Updated"]
    assert after.failure is None
    assert after.finished


def test_a_failure_of_the_way_back_is_not_taken_back_again() -> None:
    aim = replace(BACK, rolling_back=True)
    had = [TargetStatus("Deployment", "web", "app-2", "Updating", previous="app-1")]

    result = step([workload("web", "app-2", health=Health.FAILED)], aim=aim, previous=had)

    assert one(result).state == State.FAILED
    assert result.failure is None


# -- a fight about the name --------------------------------------------------------------------------------------------


def test_a_logical_name_that_comes_back_three_times_is_left_alone() -> None:
    """V17"""
    told: list[TargetStatus] = []
    states = []
    for _ in range(5):
        told = list(step([workload("web", "app-2")], previous=told).targets)
        result = step([workload("web", "app")], previous=told)
        told = list(result.targets)
        states.append(told[0].state)
        if not result.granted:
            break

    assert states == ["Waiting", "Waiting", "Conflict"]
    assert not step([workload("web", "app")], previous=told, now=later(60)).granted
    assert moves(step([workload("web", "app")], previous=told, now=later(601))) == {"web"}
    assert moves(step([workload("web", "app")], previous=told, promoted=True)) == {"web"}


def test_a_logical_name_now_and_then_is_no_fight() -> None:
    told: list[TargetStatus] = []
    for day in range(10):
        told = list(step([workload("web", "app-2")], previous=told, now=later(86_400 * day)).targets)
        result = step([workload("web", "app")], previous=told, now=later(86_400 * day + 43_200))
        told = list(result.targets)
        assert moves(result) == {"web"}
