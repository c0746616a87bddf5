"""What a scrape shows: series with names only while something is wrong, and each counter from the start."""

import asyncio
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from versionedconfig.kube.api import Api
from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.observability.census import Census
from versionedconfig.observability.metrics import KINDS, Metrics, Sample, Sampled
from versionedconfig.projection import PodKept
from versionedconfig.resource import Condition, Spec, Status, TargetStatus, VersionStatus
from versionedconfig.rollout.plan import State
from versionedconfig.settings import Settings
from versionedconfig.staleness.controller import StalenessController
from versionedconfig.versions import controller
from versionedconfig.versions.controller import VersionsController
from versionedconfig.versions.maps import Entries, Meaning, VersionMap, VersionMaps
from versionedconfig.view import View
from versionedconfig.workload import Revision

APP = ObjectKey("shop", "app")
V1, V2 = "app-2222222222", "app-4444444444"
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
CONFIG = ConfigKey("ConfigMap", "shop", "app-cfg")


class Told:
    """VersionedConfigs as a controller would tell them."""

    def __init__(self) -> None:
        self.found: list[controller.Told] = []

    def told(self) -> Iterable[controller.Told]:
        return self.found


class Scene:
    """A view without a cluster, and what a scrape finds in it."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.view = View(cast(Api, None), Settings())
        self.maps = VersionMaps(cast(Api, None), self.view)
        self.staleness = StalenessController(cast(Api, None), self.view, Settings(), self.metrics)
        self.told = Told()
        census = Census(
            self.view,
            cast(VersionsController, self.told),
            self.maps,
            self.staleness,
            lambda: [*self.view.mirrors, self.maps.mirror],
            [self.maps.queue],
            clock=lambda: self.view.pods.last_heard + 30,
            now=lambda: NOW,
        )
        self.metrics.follow(census)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Of a metric: the values of its labels, in their order, to its value."""
        (family,) = [one for one in self.metrics.registry.collect() if one.name == name]
        found = {tuple(sample.labels.values()): sample.value for sample in family.samples}
        assert len(found) == len(family.samples), "the same series twice"
        return found

    def pod(self, name: str, version: str, owner: str = "") -> None:
        """A pod that refers to that version, of that ReplicaSet."""
        keys = (ConfigKey("ConfigMap", "shop", version),)
        self.view.pods._upsert(pod_kept(name, keys, owner))

    def config(
        self, *targets: TargetStatus, conditions: list[Condition] | None = None, untold: str = ""
    ) -> None:
        """The VersionedConfig `app`, at its second version."""
        status = Status(
            current_version=V2,
            versions=[VersionStatus(V2), VersionStatus(V1)],
            conditions=conditions or [],
        )
        self.told.found = [controller.Told(APP, Spec(), status, targets, untold)]


def pod_kept(name: str, keys: tuple[ConfigKey, ...], owner: str) -> PodKept:
    return PodKept("shop", name, f"uid-{name}", "1", keys, owner=owner)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_counters_are_there_before_anything_happens() -> None:
    text = generate_latest(Metrics().registry).decode()

    assert 'versionedconfig_finalizer_bypasses_total{how="stripped"} 0.0' in text
    assert "versionedconfig_usage_check_errors_total 0.0" in text
    assert 'versionedconfig_promotions_total{cause="SpecChange"} 0.0' in text
    assert 'versionedconfig_rollout_duration_seconds_count{result="failed"} 0.0' in text
    assert "_created" not in text


def test_every_metric_says_what_it_is() -> None:
    families = list(Metrics().registry.collect())

    assert len({family.name for family in families}) == len(families)
    assert [family.name for family in families if len(family.documentation) < 5] == []
    assert {one.value.name.removesuffix("_total") for one in Sampled} <= {family.name for family in families}


def test_a_blocked_deletion_has_a_series_while_it_is_blocked(scene: Scene) -> None:
    scene.metrics.blocked(CONFIG, 1700000000)

    assert scene.series("versionedconfig_blocked_deletions") == {("ConfigMap",): 1, ("Secret",): 0}
    since = "versionedconfig_deletion_blocked_since_timestamp_seconds"
    assert scene.series(since) == {("ConfigMap", "shop", "app-cfg"): 1700000000}

    scene.metrics.blocked(CONFIG, None)
    assert scene.series("versionedconfig_blocked_deletions") == {(kind,): 0 for kind in KINDS}
    assert scene.series(since) == {}


def test_protected_objects_and_versions_are_counted_by_kind(scene: Scene) -> None:
    for number, owner in enumerate(["", "app", "app"]):
        key = ConfigKey("ConfigMap", "shop", f"cfg-{number}")
        scene.view.config_maps._upsert(Incarnation(key, f"u{number}", "1", in_use=number > 1, owner=owner))

    assert scene.series("versionedconfig_protected_objects") == {("ConfigMap",): 1, ("Secret",): 0}
    assert scene.series("versionedconfig_versions") == {("ConfigMap",): 2, ("Secret",): 0}
    assert scene.series("versionedconfig_mirrored_objects")["configmaps",] == 3


PODS, LEFT = "versionedconfig_pods", "versionedconfig_pods_left_behind"


def target(state: State, version: str = V2) -> TargetStatus:
    return TargetStatus("Deployment", "web", version, state, uid="web-uid")


@pytest.mark.parametrize(
    ("name", "state", "version", "astray", "left"),
    [
        ("all is well", State.UPDATED, V2, [], []),
        ("on the move", State.UPDATING, V2, [V1], []),
        ("through, and an old pod is left", State.UPDATED, V2, [V1], [V1]),
        ("by hand", State.OVERRIDDEN, V1, [V1], []),
        ("by hand, and a pod does not follow", State.OVERRIDDEN, V1, [V1, V2], [V2]),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_pods_are_told_by_version_while_some_run_another_one(
    scene: Scene, name: str, state: State, version: str, astray: list[str], left: list[str]
) -> None:
    scene.view._replica_sets._upsert(
        Revision("shop", "web-1", "set-uid", "1", (), revision=1, owner_uid="web-uid")
    )
    scene.config(target(state, version))
    if state is not State.OVERRIDDEN or V2 in astray:
        scene.pod("new", V2, "set-uid")
    for number, one in enumerate(astray):
        if one == V1:
            scene.pod(f"old-{number}", one, "set-uid")

    shown = {key[2] for key in scene.series(PODS)}
    wrong = any(one != (version if state is State.OVERRIDDEN else V2) for one in astray)
    assert shown == ({V1, V2} if wrong else set())
    assert scene.series(LEFT) == {(*APP, one): 1 for one in left}
    assert scene.series("versionedconfig_targets")[state,] == 1


def test_pods_that_nobody_moves_are_no_mismatch(scene: Scene) -> None:
    """A Job's pods, and those of nobody, run what they began with."""
    scene.config(target(State.UPDATED))
    scene.pod("new", V2, "set-uid")
    scene.pod("bare", V1)
    scene.pod("of-a-job", V1, "job-uid")

    assert (scene.series(PODS), scene.series(LEFT)) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "name"), [("Degraded", "versionedconfig_failed"), ("Stalled", "versionedconfig_stuck")]
)
def test_what_is_wrong_is_named_while_it_is(scene: Scene, kind: str, name: str) -> None:
    scene.config(conditions=[Condition(kind, "True", "Why")])
    assert scene.series(name) == {(*APP, "Why"): 1}
    assert scene.series("versionedconfig_configs") == {(): 1}

    scene.config()
    assert scene.series(name) == {}


def test_what_no_status_can_tell_is_named_too(scene: Scene) -> None:
    scene.config(untold="TooLarge")
    assert scene.series("versionedconfig_stuck") == {(*APP, "TooLarge"): 1}


@pytest.mark.parametrize(
    ("name", "entries", "missing"),
    [
        ("no map", None, True),
        ("it tells", Entries(config_maps={"app": V1}), False),
        ("of another version", Entries(config_maps={"app": V2}), True),
        ("of another kind", Entries(secrets={"app": V1}), True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_name_that_the_map_does_not_tell(
    scene: Scene, name: str, entries: Entries | None, missing: bool
) -> None:
    scene.maps.mean(APP, Meaning("ConfigMap", V1))
    if entries is not None:
        scene.maps.mirror._upsert(VersionMap("shop", "versionedconfig", "u", "1", entries))

    expected = {tuple(APP): 1} if missing else {}
    assert scene.series("versionedconfig_policy_parameter_missing") == expected


def test_mirrors_and_queues_tell_how_they_are(scene: Scene) -> None:
    counters = scene.view.pods.counters
    counters.lists, counters.expired = 2, 1
    counters.watches["cut"] = 3
    counters.events["ADDED"] = 4

    assert scene.series("versionedconfig_mirror_silence_seconds")["pods",] == 30
    assert scene.series("versionedconfig_mirror_synced")["pods",] == 0
    assert scene.series("versionedconfig_mirror_lists")["pods",] == 2
    assert scene.series("versionedconfig_mirror_expired_watches")["pods",] == 1
    assert scene.series("versionedconfig_mirror_watches")["pods", "cut"] == 3
    assert scene.series("versionedconfig_mirror_events")["pods", "added"] == 4
    assert scene.series("versionedconfig_queue_depth") == {("maps",): 0}


async def test_a_scrape_from_another_thread_reads_in_the_loop() -> None:
    metrics = Metrics()
    threads: list[threading.Thread] = []

    def read() -> list[Sample]:
        threads.append(threading.current_thread())
        return [(Sampled.CONFIGS, (), 7)]

    metrics.follow(read, asyncio.get_running_loop())

    def scrape() -> Any:
        return metrics.registry.get_sample_value("versionedconfig_configs")

    assert await asyncio.to_thread(scrape) == 7
    assert threads == [threading.main_thread()]
    metrics.follow(tuple)
    assert await asyncio.to_thread(scrape) is None
