"""What a scrape finds: reads the view, the queues and the controllers, and changes nothing.

It runs in the loop, so it has to be quick: what goes through pods one by one does so only where a version other than the
current one has any.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from versionedconfig.kube.mirror import Mirror
from versionedconfig.kube.queue import BatchQueue
from versionedconfig.model import ConfigKey, ObjectKey
from versionedconfig.observability.metrics import KINDS, Sample, Sampled
from versionedconfig.resource import Status, TargetStatus
from versionedconfig.rollout.plan import UNFINISHED, State
from versionedconfig.staleness.controller import StalenessController
from versionedconfig.staleness.judge import Kind
from versionedconfig.versions.controller import VersionsController
from versionedconfig.versions.ledger import failing, stuck
from versionedconfig.versions.maps import VersionMaps
from versionedconfig.view import View

_SERIES = {
    Kind.STALE: Sampled.STALE_PODS,
    Kind.DELETED: Sampled.DELETED_PODS,
    Kind.UNKNOWN: Sampled.UNKNOWN_PODS,
}


@dataclass(frozen=True, slots=True)
class Census:
    """One for the process; call it in the loop."""

    view: View
    versions: VersionsController
    maps: VersionMaps
    staleness: StalenessController
    mirrors: Callable[[], Iterable[Mirror[Any]]]
    queues: Iterable[BatchQueue[Any, Any]]
    clock: Callable[[], float] = time.monotonic
    """The mirrors'."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __call__(self) -> Iterator[Sample]:
        """Everything that is to be told now."""
        yield from self._objects()
        yield from self._configs()
        for key, node, verdict, number in self.staleness.affected():
            yield _SERIES[verdict], (*key, node), number
        yield from self._streams()
        yield from self._work()

    def _objects(self) -> Iterator[Sample]:
        protected: Counter[str] = Counter()
        versions: Counter[str] = Counter()
        for life in self.view.incarnations():
            protected[life.key.kind] += life.in_use
            versions[life.key.kind] += bool(life.owner)
        for kind in KINDS:
            yield Sampled.PROTECTED, (kind,), protected[kind]
            yield Sampled.VERSIONS, (kind,), versions[kind]
        yield Sampled.UNRESOLVED, (), self.view.holders.unresolved
        for name, index in (
            ("holders", self.view.holders),
            ("templates", self.view.templates),
            ("revisions", self.view.revisions),
        ):
            yield Sampled.REFERENCES, (name,), index.references

    def _configs(self) -> Iterator[Sample]:
        states: Counter[str] = Counter()
        number = 0
        now = self.now()
        for one in self.versions.told():
            number += 1
            states.update(target.state for target in one.targets)
            deadline = one.spec.rollout.progress_deadline_seconds
            if reason := failing(one.status):
                yield Sampled.FAILED, (*one.owner, reason), 1
            if reason := one.untold or stuck(one.status, one.targets, deadline, now):
                yield Sampled.STUCK, (*one.owner, reason), 1
            yield from self._pods(one.owner, one.spec.kind, one.status, one.targets)
        yield Sampled.CONFIGS, (), number
        for state in State:
            yield Sampled.TARGETS, (state,), states[state]
        for owner in self.maps.missing():
            yield Sampled.NOT_MAPPED, tuple(owner), 1

    def _pods(
        self, owner: ObjectKey, kind: str, status: Status, targets: Collection[TargetStatus]
    ) -> Iterator[Sample]:
        """Of one VersionedConfig, where they do not all run what they should."""
        current = status.current_version
        names = {owner.name, *(v.name for v in status.versions), *(t.version for t in targets if t.version)}
        keys = {name: ConfigKey(kind, owner.namespace, name) for name in names}
        numbers = {name: number for name in names if (number := len(self.view.holders.pods(keys[name])))}
        overridden = any(target.state == State.OVERRIDDEN for target in targets)
        if not current or (numbers.keys() <= {current} and not overridden):
            return
        by_uid = {target.uid: target for target in targets if target.uid}
        astray = False
        left: defaultdict[str, int] = defaultdict(int)
        for name in numbers:
            if name == current and not overridden:
                continue
            for pod in self.view.pods_of(keys[name]):
                # Those of Jobs, and those of nobody, run what they began with.
                target = by_uid.get(self.view.workload_uid(pod))
                if target is None or name == _meant(target, current):
                    continue
                astray = True
                if target.state not in UNFINISHED:
                    left[name] += 1
        if astray:
            for name, number in numbers.items():
                yield Sampled.PODS, (*owner, name), number
        for name, number in left.items():
            yield Sampled.LEFT_BEHIND, (*owner, name), number

    def _streams(self) -> Iterator[Sample]:
        now = self.clock()
        for mirror in self.mirrors():
            name, counters = mirror.resource.name, mirror.counters
            yield Sampled.OBJECTS, (name,), len(mirror.objects)
            yield Sampled.SYNCED, (name,), mirror.synced
            yield Sampled.SILENCE, (name,), now - mirror.last_heard
            yield Sampled.LIST_SECONDS, (name,), counters.list_seconds
            yield Sampled.LISTS, (name,), counters.lists
            yield Sampled.LIST_ERRORS, (name,), counters.list_errors
            yield Sampled.EXPIRED, (name,), counters.expired
            for reason, number in counters.watches.items():
                yield Sampled.WATCHES, (name, reason), number
            for event, number in counters.events.items():
                yield Sampled.EVENTS, (name, event.lower()), number

    def _work(self) -> Iterator[Sample]:
        for queue in self.queues:
            yield Sampled.QUEUE_DEPTH, (queue.name,), queue.depth
            yield Sampled.QUEUE_DELAYED, (queue.name,), queue.delayed
            yield Sampled.QUEUE_ADDS, (queue.name,), queue.adds
            yield Sampled.RETRIES, (queue.name,), queue.retries


def _meant(target: TargetStatus, current: str) -> str:
    """The version that the pods of a target should run: what somebody set by hand is meant."""
    return target.version if target.state == State.OVERRIDDEN else current
