"""The operator's own Prometheus metrics. The only file that knows prometheus_client.

Names of objects stand only on series that exist while something is wrong.
"""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from versionedconfig.model import ConfigKey
from versionedconfig.staleness.judge import Kind


class Metrics:
    """One for the process; a registry of its own, so that two in one process (tests) do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        self._blocked = Gauge(
            "versionedconfig_blocked_deletions",
            "Deleted objects that stay because something still uses them.",
            ["kind"],
            registry=self.registry,
        )
        self._blocked_uids: dict[ConfigKey, str] = {}
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
        self._unresolved = Gauge(
            "versionedconfig_unresolved_references",
            "References of classes with variables that nothing gives a value to: they hold nothing.",
            registry=self.registry,
        )
        self.requests = Counter(
            "versionedconfig_api_requests_total",
            "Requests to the API server.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.templates_rewritten = Counter(
            "versionedconfig_template_patches_total",
            "Workload templates moved to another version.",
            registry=self.registry,
        )
        self.versions_collected = Counter(
            "versionedconfig_versions_collected_total",
            "Unused versions deleted.",
            registry=self.registry,
        )
        of_node = ["kind", "namespace", "name", "node"]
        self._stale = {
            Kind.STALE: Gauge(
                "versionedconfig_stale_pods",
                "Pods that are served content of an earlier object of that name.",
                of_node,
                registry=self.registry,
            ),
            Kind.DELETED: Gauge(
                "versionedconfig_deleted_content_pods",
                "Pods that are served content of an object that was deleted.",
                of_node,
                registry=self.registry,
            ),
            Kind.UNKNOWN: Gauge(
                "versionedconfig_unknown_verdict_pods",
                "Pods that may be served content of an earlier object of that name.",
                of_node,
                registry=self.registry,
            ),
        }
        self._stale_series: dict[ConfigKey, set[tuple[str, Kind]]] = {}
        self.name_reuses = Counter(
            "versionedconfig_name_reuses_total",
            "Objects that were created under the name of one that had vanished while pods used it.",
            ["kind"],
            registry=self.registry,
        )
        for kind in ("ConfigMap", "Secret"):
            self._blocked.labels(kind)
            self.name_reuses.labels(kind)
        for how in ("stripped", "race"):
            self._bypasses.labels(how)

    def serve(self, port: int) -> None:
        """Serve them on all addresses, from a thread of the library's own."""
        start_http_server(port, registry=self.registry)

    def finalizer(self, action: str, outcome: str) -> None:
        """Count one finalizer patch."""
        self._finalizer.labels(action, outcome).inc()

    def unresolved(self, number: Callable[[], int]) -> None:
        """Where the number of unresolved references is asked for."""
        self._unresolved.set_function(number)

    def bypass(self, how: str) -> None:
        """Count an object in use that vanished."""
        self._bypasses.labels(how).inc()

    def request(self, verb: str, resource: str, status: int) -> None:
        """Count one API request."""
        self.requests.labels(verb, resource, str(status)).inc()

    def stale(self, key: ConfigKey, pods: Mapping[tuple[str, Kind], int]) -> None:
        """Say how many pods of each node have which verdict for that key; series of others vanish."""
        for node, kind in self._stale_series.pop(key, set()) - pods.keys():
            self._stale[kind].remove(*key, node)
        for (node, kind), number in pods.items():
            self._stale[kind].labels(*key, node).set(number)
        if pods:
            self._stale_series[key] = set(pods)

    def blocked(self, key: ConfigKey, uid: str | None) -> None:
        """Say that the key's deletion waits, or (None) does not."""
        if uid is not None:
            self._blocked_uids[key] = uid
        elif self._blocked_uids.pop(key, None) is None:
            return
        self._blocked.labels(key.kind).set(sum(known.kind == key.kind for known in self._blocked_uids))
