"""The operator's own Prometheus metrics. The only file that knows prometheus_client; docs/metrics.md lists them for people.

What happens is counted when it happens. What *is* stands in the view and the controllers already, and is read there when
somebody scrapes: nothing is kept twice, and a series goes with what it tells of. Names of objects stand only on series that
exist while something is wrong.
"""

import asyncio
import platform
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from typing import Final

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from versionedconfig.model import ConfigKey
from versionedconfig.versions.choose import Cause
from versionedconfig.versions.ledger import Result

SCRAPE_SECONDS: Final = 9.0
"""Prometheus waits ten. A loop that does not answer for so long is stuck, and a scrape that fails says so."""

KINDS: Final = ("ConfigMap", "Secret")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric that is read when it is asked for."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    def empty(self) -> CounterMetricFamily | GaugeMetricFamily:
        """The metric without series; a counter where the name says so."""
        if self.name.endswith("_total"):
            return CounterMetricFamily(self.name, self.help, labels=self.labels)
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)


class Sampled(Enum):
    """All of them."""

    PROTECTED = Family(
        "versionedconfig_protected_objects", "Objects that carry the operator's finalizer.", ("kind",)
    )
    BLOCKED = Family(
        "versionedconfig_blocked_deletions",
        "Deleted objects that stay because something still uses them.",
        ("kind",),
    )
    BLOCKED_SINCE = Family(
        "versionedconfig_deletion_blocked_since_timestamp_seconds",
        "When an object was deleted that stays because something still uses it; only while it does.",
        ("kind", "namespace", "name"),
    )
    UNRESOLVED = Family(
        "versionedconfig_unresolved_references",
        "References of classes with variables that nothing gives a value to: they hold nothing.",
    )
    VERSIONS = Family("versionedconfig_versions", "Versions that are kept.", ("kind",))
    CONFIGS = Family("versionedconfig_configs", "VersionedConfigs that are looked after.")
    TARGETS = Family("versionedconfig_targets", "Targets by where they stand in their rollout.", ("state",))
    FAILED = Family(
        "versionedconfig_failed",
        "1 for each VersionedConfig whose version failed, or is fought about; only while it is so.",
        ("namespace", "name", "reason"),
    )
    STUCK = Family(
        "versionedconfig_stuck",
        "1 for each VersionedConfig that goes no further without somebody, or shows no progress for longer than its"
        " deadline; only while it is so.",
        ("namespace", "name", "reason"),
    )
    NOT_MAPPED = Family(
        "versionedconfig_policy_parameter_missing",
        "1 for each VersionedConfig whose name the VersionMap of its namespace lacks or tells wrongly; only while it does.",
        ("namespace", "name"),
    )
    PODS = Family(
        "versionedconfig_pods",
        "Pods by the version that they refer to; only while pods of a target run another one than they should.",
        ("namespace", "name", "version"),
    )
    LEFT_BEHIND = Family(
        "versionedconfig_pods_left_behind",
        "Pods of targets that run another version than they should, and that no rollout is about to replace.",
        ("namespace", "name", "version"),
    )
    STALE_PODS = Family(
        "versionedconfig_stale_pods",
        "Pods that read content of an earlier object of that name; only while there are some.",
        ("kind", "namespace", "name", "node"),
    )
    DELETED_PODS = Family(
        "versionedconfig_deleted_content_pods",
        "Pods that read content of an object that is gone; only while there are some.",
        ("kind", "namespace", "name", "node"),
    )
    UNKNOWN_PODS = Family(
        "versionedconfig_unknown_verdict_pods",
        "Pods that may read content of an earlier object of that name; only while there are some.",
        ("kind", "namespace", "name", "node"),
    )
    REFERENCES = Family("versionedconfig_index_references", "References that are kept.", ("index",))
    OBJECTS = Family("versionedconfig_mirrored_objects", "Objects that the mirror keeps.", ("resource",))
    SYNCED = Family("versionedconfig_mirror_synced", "1 where the kind was listed whole once.", ("resource",))
    SILENCE = Family(
        "versionedconfig_mirror_silence_seconds",
        "Since a page, an event or a bookmark of the kind came last; bookmarks come about once a minute.",
        ("resource",),
    )
    LIST_SECONDS = Family(
        "versionedconfig_mirror_list_seconds", "How long the last complete list took.", ("resource",)
    )
    LISTS = Family("versionedconfig_mirror_lists_total", "Complete lists.", ("resource",))
    LIST_ERRORS = Family("versionedconfig_mirror_list_errors_total", "Pages that failed.", ("resource",))
    WATCHES = Family(
        "versionedconfig_mirror_watches_total",
        "Watches that began, by why: after a list (listed), or the one before ended, was cut, silent or refused (error).",
        ("resource", "reason"),
    )
    EXPIRED = Family(
        "versionedconfig_mirror_expired_watches_total",
        "Watches that could not be resumed, so that a new list was needed.",
        ("resource",),
    )
    EVENTS = Family("versionedconfig_mirror_events_total", "Events of watches.", ("resource", "type"))
    QUEUE_DEPTH = Family("versionedconfig_queue_depth", "Keys that wait for a worker now.", ("controller",))
    QUEUE_DELAYED = Family("versionedconfig_queue_delayed", "Keys that wait for their time.", ("controller",))
    QUEUE_ADDS = Family("versionedconfig_queue_adds_total", "Keys that were taken in.", ("controller",))
    RETRIES = Family(
        "versionedconfig_queue_retries_total", "Keys that were put off after a failure.", ("controller",)
    )


Sample = tuple[Sampled, tuple[str, ...], float]
"""A metric, the values of its labels, and its value."""


class _OnScrape(Collector):
    """Every family of Sampled, those without series too."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def describe(self) -> Iterator[Metric]:
        return (one.value.empty() for one in Sampled)

    def collect(self) -> Iterator[Metric]:
        families = {one: one.value.empty() for one in Sampled}
        for one, labels, value in self._samples():
            families[one].add_metric(labels, value)
        yield from families.values()


class Metrics:
    """One for the process; a registry of its own, so that two in one process (tests) do not meet."""

    def __init__(self) -> None:
        # A second series for each counter, to say since when: process_start_time_seconds says it.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._blocked: dict[ConfigKey, float] = {}
        """Since when, as Unix time."""
        self._read: Callable[[], Iterable[Sample]] = tuple
        self._loop: asyncio.AbstractEventLoop | None = None
        ProcessCollector(registry=self.registry)
        self.registry.register(_OnScrape(self._samples))
        Gauge(
            "versionedconfig_build_info",
            "1; what runs.",
            ["version", "python", "kopf"],
            registry=self.registry,
        ).labels(version("versionedconfig"), platform.python_version(), version("kopf")).set(1)
        self._finalizer = Counter(
            "versionedconfig_finalizer_writes_total",
            "Finalizer patches by what they did and how they ended.",
            ["action", "outcome"],
            registry=self.registry,
        )
        self.usage_check_errors = Counter(
            "versionedconfig_usage_check_errors_total",
            "Live lists before a release that failed; the finalizer stayed.",
            registry=self.registry,
        )
        self.break_glass = Counter(
            "versionedconfig_break_glass_total",
            "Objects released though in use, since somebody gave a reason in the release annotation.",
            registry=self.registry,
        )
        self._bypasses = Counter(
            "versionedconfig_finalizer_bypasses_total",
            "Objects in use that vanished all the same: stripped of their finalizer (stripped), or deleted in the moment"
            " in which it was put on (race).",
            ["how"],
            registry=self.registry,
        )
        self.quarantines = Counter(
            "versionedconfig_quarantines_total",
            "Objects that a force-deleted pod goes on holding, since its node may still run it.",
            registry=self.registry,
        )
        self.would = Counter(
            "versionedconfig_observed_actions_total",
            "What would have been done, in observe mode.",
            ["action"],
            registry=self.registry,
        )
        self.requests = Counter(
            "versionedconfig_api_requests_total",
            "Requests to the API server by how it answered; code 0: it did not.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.templates_rewritten = Counter(
            "versionedconfig_template_patches_total",
            "Workload templates moved to another version.",
            registry=self.registry,
        )
        self._made = Counter(
            "versionedconfig_versions_made_total",
            "Versions created.",
            ["kind"],
            registry=self.registry,
        )
        self.versions_collected = Counter(
            "versionedconfig_versions_collected_total",
            "Unused versions deleted.",
            registry=self.registry,
        )
        self._reuses = Counter(
            "versionedconfig_name_reuses_total",
            "Objects that were created under the name of one that had vanished while pods used it.",
            ["kind"],
            registry=self.registry,
        )
        self._promotions = Counter(
            "versionedconfig_promotions_total",
            "Versions that became current, by why: config changes, as people see them.",
            ["cause"],
            registry=self.registry,
        )
        self._rollouts = Histogram(
            "versionedconfig_rollout_duration_seconds",
            "How long rollouts to a version took that had a target, by how they ended.",
            ["result"],
            buckets=(5, 15, 30, 60, 120, 300, 600, 1200, 3600, 7200, 21600),
            registry=self.registry,
        )
        self._reconciles = Histogram(
            "versionedconfig_reconcile_duration_seconds",
            "How long one pass over a key, or over the keys of a namespace, took.",
            ["controller"],
            buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60),
            registry=self.registry,
        )
        # A series that appears with 1 has not increased, as Prometheus sees it.
        for kind in KINDS:
            self._made.labels(kind)
            self._reuses.labels(kind)
        for how in ("stripped", "race"):
            self._bypasses.labels(how)
        for cause in Cause:
            self._promotions.labels(cause)
        for result in Result:
            self._rollouts.labels(result)

    def serve(self, port: int) -> None:
        """Serve them on all addresses, from a thread of the library's own."""
        start_http_server(port, registry=self.registry)

    def follow(
        self, read: Callable[[], Iterable[Sample]], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Where to ask what is, from now on. With `loop` it is asked in there: scrapes come in threads of their own."""
        self._read, self._loop = read, loop

    def finalizer(self, action: str, outcome: str) -> None:
        """Count one finalizer patch."""
        self._finalizer.labels(action, outcome).inc()

    def bypass(self, how: str) -> None:
        """Count an object in use that vanished."""
        self._bypasses.labels(how).inc()

    def request(self, verb: str, resource: str, status: int) -> None:
        """Count one API request."""
        self.requests.labels(verb, resource, str(status)).inc()

    def reused(self, kind: str) -> None:
        """Count an object that was created under the name of one that had vanished in use."""
        self._reuses.labels(kind).inc()

    def made(self, kind: str) -> None:
        """Count a version that was created."""
        self._made.labels(kind).inc()

    def promoted(self, cause: str) -> None:
        """Count a version that became current."""
        self._promotions.labels(cause).inc()

    def rollout_ended(self, result: Result, seconds: float) -> None:
        """Count a rollout that is over."""
        self._rollouts.labels(result).observe(seconds)

    def reconciled(self, controller: str, seconds: float) -> None:
        """Count one pass."""
        self._reconciles.labels(controller).observe(seconds)

    def blocked(self, key: ConfigKey, since: float | None) -> None:
        """Say since when (Unix time) the key's deletion waits, or (None) that it does not."""
        if since is not None:
            self._blocked[key] = since
        else:
            self._blocked.pop(key, None)

    def _samples(self) -> list[Sample]:
        if self._loop is None:
            return self._all()

        async def ask() -> list[Sample]:
            return self._all()

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(SCRAPE_SECONDS)

    def _all(self) -> list[Sample]:
        waiting = Tally(key.kind for key in self._blocked)
        return [
            *((Sampled.BLOCKED, (kind,), waiting[kind]) for kind in KINDS),
            *((Sampled.BLOCKED_SINCE, tuple(key), since) for key, since in self._blocked.items()),
            *self._read(),
        ]
