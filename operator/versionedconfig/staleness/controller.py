"""Notices that a name was reused, or its object deleted, while pods used it; keeps a StaleConfig as long as that matters.

In a cluster without trouble it costs nothing but a time per key that pods left. Where an object in use vanishes, the pods of
its namespace are watched closely (pods.py), and what is seen is recorded and judged.
"""

import asyncio
import functools
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.kube.queue import WorkQueue
from versionedconfig.kube.writes import Regarding, upsert_event
from versionedconfig.model import API_VERSION, GROUP, ConfigKey, Incarnation, Node, ObjectKey, timestamp
from versionedconfig.observability.metrics import Metrics
from versionedconfig.protection.quarantine import ALIVE_AFTER
from versionedconfig.references.index import Keys
from versionedconfig.settings import Settings
from versionedconfig.staleness import report
from versionedconfig.staleness.history import EVER, NEVER, NOT_YET, History, Life, Span, Timing
from versionedconfig.staleness.judge import Kind, Verdict, heard_of, judge_node, settle
from versionedconfig.staleness.memory import recall, remember
from versionedconfig.staleness.past import Past, look_back
from versionedconfig.staleness.pods import CloseItem, ClosePod, close_pod, seconds
from versionedconfig.staleness.record import Case
from versionedconfig.view import View

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/{GROUP}/{API_VERSION}/staleconfigs"

GATHER_SECONDS: Final = 0.3
"""Events of that time are judged together."""

YOUNG_SECONDS: Final = 4.0
"""Where a whole application goes, its objects go a moment before its pods are asked to: nothing is said of that."""

LOOK_SECONDS: Final = 10.0
"""A verdict can change with time alone."""

SETTLE_AFTER: Final = 300.0
"""What is older than that is not heard of any more."""

NODES_AT_ONCE: Final = 8
"""Judged without giving way."""

KUBELET_SECONDS: Final = 10.0
"""How often a kubelet is asked when it was started."""

STARTED: Final = b"process_start_time_seconds "

RECENT_SECONDS: Final = 600.0
"""What is older is compacted: at the latest when the second of two compactions is through."""

SOURCE: Final = secrets.token_hex(4)
"""Of fingerprints of Secrets: they cannot be compared with those of another process (projection.py)."""

MOST_CASES: Final = 500
MOST_NAMESPACES: Final = 50
"""Watched closely at a time; the others wait until it is their turn."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Metadata(_Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resource_version: str


class _Item(_Struct, frozen=True):
    metadata: _Metadata
    status: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class StaleConfig:
    """What is kept of one."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    status: dict[str, Any]


def _kept(item: _Item) -> StaleConfig:
    meta = item.metadata
    return StaleConfig(meta.namespace, meta.name, meta.uid, meta.resource_version, item.status)


STALE_CONFIGS: Final = Resource(name="staleconfigs", path=PATH, item=_Item, project=_kept, may_be_absent=True)


def name_of(key: ConfigKey) -> str:
    """Of the key's StaleConfig."""
    name = f"{key.kind.lower()}-{key.name}"
    if len(name) <= 253:
        return name
    return f"{name[:240]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def timing(settings: Settings) -> Timing:
    """How fast the cluster's kubelets are."""
    sync = settings.kubelet_sync_seconds
    # Half of it is jitter (pkg/kubelet/pod_workers.go), and a machine is busy at times.
    return Timing(sync=1.5 * sync + 5, resync=2 * sync + 10)


@dataclass(slots=True)
class _Open:
    """One case and what belongs to it."""

    case: Case
    since: float
    """For people: when it began."""
    begun: float
    """When we began to look."""
    settled: float
    restored: float | None = None
    """It was remembered; what is known of it is of that time."""
    trial: bool = False
    """It is not known yet whether there is anything to tell."""
    told: str = ""
    """In an Event, last."""
    seconds: float = 0.0
    """How long it took to judge it."""
    affected: Mapping[tuple[str, Kind], int] = field(default_factory=dict)
    """Pods that do not certainly read what is live, by node and verdict."""


class StalenessController:
    """One for the process."""

    def __init__(
        self,
        api: Api,
        view: View,
        settings: Settings,
        metrics: Metrics,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._timing = timing(settings)
        self._cases: dict[ConfigKey, _Open] = {}
        self._deaths: dict[ConfigKey, tuple[Life, float]] = {}
        """Incarnations that went a moment ago, and that nobody was seen to use: a pod may come to light that does. With the
        time at which one left last."""
        self._left: dict[ConfigKey, float] = {}
        """When a pod left last that used what is there and immutable."""
        self._immutable: dict[ConfigKey, tuple[str, Span]] = {}
        """When an incarnation (uid) became so, where more is known than it says itself."""
        self._cuts: dict[str, Span] = {}
        self._restarts: dict[str, Span] = {}
        self._lost: list[ConfigKey] = []
        """Keys whose StaleConfigs tell of them, but not what is needed to go on."""
        self._mute: set[str] = set()
        """Nodes whose kubelets do not answer; it was said."""
        self._close: dict[str, tuple[Mirror[ClosePod], asyncio.Task[Any]]] = {}
        """By namespace."""
        self._group: asyncio.TaskGroup | None = None
        self._listed = asyncio.Event()
        self.mirror: Mirror[StaleConfig] = Mirror(api, STALE_CONFIGS, self._stale_config_changed)
        self.mirror.on_listed = self._listed.set
        self.queue: WorkQueue[ConfigKey] = WorkQueue(name="staleness")

    # --- what the view tells

    def life_changed(self, old: Incarnation | None, new: Incarnation | None) -> None:
        """An incarnation came, went or changed."""
        life = new or old
        if life is None or self._settings.excluded(life.namespace):
            return
        found = self._cases.get(life.key)
        if new is not None:
            if old is not None:
                self._note_immutable(old, new)
            if found is not None:
                found.case.born(self._life(new))
                if old is None:
                    self._metrics.reused(life.key.kind)
                self._soon(life.key)
            return
        within = self._heard(life)
        if found is not None:
            found.case.died(life.uid, within)
            self._soon(life.key)
        elif self._group is not None and not self._view.terminating(life.namespace):
            dead, left = self._life(life, ended=within), self._left.pop(life.key, EVER)
            if self._view.holders.pods(life.key) or left > self._now() - self._recent:
                self._open(life.key, dead, left)
            else:
                death = self._deaths[life.key] = (dead, left)
                asyncio.get_running_loop().call_later(self._recent, self._forget, life.key, death)
        self._immutable.pop(life.key, None)

    def _note_immutable(self, old: Incarnation, new: Incarnation) -> None:
        if old.uid != new.uid or not new.immutable or old.immutable_since == new.immutable_since:
            return
        if not old.immutable:
            self._immutable[new.key] = (new.uid, self._heard(new))
        elif self._immutable.get(new.key, ("",))[0] != new.uid:
            self._immutable[new.key] = (new.uid, self._life(old).immutable)

    def _forget(self, key: ConfigKey, death: tuple[Life, float]) -> None:
        if self._deaths.get(key) is death:
            del self._deaths[key]

    def pods_counted(self, key: ConfigKey) -> None:
        """A pod that uses the key came or went."""
        if (death := self._deaths.pop(key, None)) is not None and key not in self._cases:
            self._open(key, *death)

    def pod_left(self, keys: Keys) -> None:
        """A pod that used these ended."""
        now = self._now()
        for key in keys:
            if (life := self._view.incarnation(key)) is not None and life.immutable:
                self._left[key] = now

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """A node came, went or changed."""
        now = self._now()
        if new is None:
            return
        cut = self._cuts.get(new.name)
        if not new.ready and (cut is None or cut.latest < NEVER):
            # Before the first look it may have been so for long.
            heard = now - self._timing.watch_lag - self._timing.silence if old is not None else EVER
            self._cut(new.name, Span(heard, NEVER))
        elif new.ready and cut is not None and cut.latest == NEVER:
            self._cut(new.name, Span(cut.earliest, now))
        if old is not None and (old.boot_id, old.kubelet_version) != (new.boot_id, new.kubelet_version):
            # A node that starts anew was not heard of before; if it was quick, it told in the last minutes how it was
            # (kubelet nodeStatusReportFrequency).
            recent = cut is not None and cut.latest > now - SETTLE_AFTER
            self.restarted(new.name, Span(cut.earliest if cut and recent else now - SETTLE_AFTER, now))

    def restarted(self, node: str, within: Span) -> None:
        """The node's kubelet did."""
        self._restarts[node] = within
        for key, found in self._cases.items():
            found.case.restarted(node, within)
            self._soon(key)

    def _cut(self, node: str, within: Span) -> None:
        self._cuts[node] = within
        for key, found in self._cases.items():
            found.case.cut_off(node, within)
            self._soon(key)

    def _soon(self, key: ConfigKey) -> None:
        # A large case must not keep the loop busy all the time.
        found = self._cases.get(key)
        self.queue.add_after(key, max(GATHER_SECONDS, 20 * found.seconds if found is not None else 0))

    def affected(self) -> Iterator[tuple[ConfigKey, str, Kind, int]]:
        """Pods that do not certainly read what is live: their number by key, node and verdict."""
        for key, found in self._cases.items():
            for (node, kind), number in found.affected.items():
                yield key, node, kind, number

    # --- running

    async def run(self) -> None:
        """Work for ever. Call when the view is synced."""
        await self._listed.wait()
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._recall_all()
            group.create_task(self._suspect_all())
            if self._settings.kubelet_metrics:
                group.create_task(self._ask_kubelets())
            await self.queue.run(self.reconcile)

    async def _ask_kubelets(self) -> None:
        """Where a name was reused, and again and again: when the node's kubelet was started."""
        while True:
            nodes = {node.name for found in self._cases.values() for node in found.case.history().nodes}
            await asyncio.gather(*(self._ask_kubelet(name) for name in nodes))
            await asyncio.sleep(KUBELET_SECONDS)

    async def _ask_kubelet(self, name: str) -> None:
        node = self._view.node(name)
        if node is None or not node.endpoint or not node.ready:
            return
        try:
            async for line in self._api.kubelet_metrics(node.endpoint):
                if line.startswith(STARTED):
                    self._kubelet_started(name, float(line.split()[1]))
                    return
        except (ApiError, ValueError) as error:
            status = error.status if isinstance(error, ApiError) else 0
            if name not in self._mute:
                self._mute.add(name)
                logger.warning(
                    "the kubelet cannot be asked",
                    extra={"node": name, "status": status, "detail": str(error)},
                )

    def _kubelet_started(self, name: str, at: float) -> None:
        self._mute.discard(name)
        # It is counted in whole seconds from the node's boot.
        skew = self._timing.clock_skew + 1
        within = Span(at - skew, at + skew)
        known = self._restarts.get(name)
        if known is None or not known.earliest - 1 <= at <= known.latest + 1:
            self.restarted(name, within)

    def _recall_all(self) -> None:
        now = self._now()
        for stale in list(self.mirror.objects.values()):
            status = stale.status
            key = ConfigKey(str(status.get("kind")), stale.namespace, str(status.get("name")))
            memory = status.get("memory")
            written = memory.get("at") if isinstance(memory, dict) else None
            history = recall(memory.get("history")) if isinstance(memory, dict) else None
            if stale.name != name_of(key):
                continue  # somebody else's: it is not ours to say what it should be
            if history is None or not isinstance(written, int | float):
                # What today's objects tell is less, and not nothing.
                logger.warning("what was known is lost", extra={"config": str(key)})
                self._lost.append(key)
                continue
            case = Case((), EVER, self._timing)
            case.replace(history)
            case.missed(written, now)
            self._catch_up(case, history, key, Span(written, now))
            since = seconds(status.get("since")) or now
            self._begin(key, _Open(case, since, now, now, restored=written))

    async def _suspect_all(self) -> None:
        """What today's objects alone can tell: a pod that is older than an object that it uses may have had an earlier one. And
        an object so young that the API server still knows whether it had a predecessor."""
        recent = timestamp(datetime.fromtimestamp(self._now() - RECENT_SECONDS, UTC))
        suspects: dict[ConfigKey, None] = {}
        for number, pod in enumerate(list(self._view.pods.objects.values())):
            if number % 1000 == 0:
                await asyncio.sleep(0)
            if not pod.node or self._settings.excluded(pod.namespace):
                continue
            for key in pod.keys:
                life = self._view.incarnation(key)
                if life is None or pod.created < life.created or (life.created > recent and not life.owner):
                    suspects[key] = None
        for key in (*self._lost, *suspects):
            if key not in self._cases and not self._view.terminating(key.namespace):
                try:
                    await self._try_case(key)
                except ApiError as error:
                    logger.warning(
                        "the past cannot be read",
                        extra={"config": str(key), "status": error.status, "detail": error.message},
                    )

    async def _try_case(self, key: ConfigKey) -> None:
        life = self._view.incarnation(key)
        past = await look_back(self._api, key, life.uid if life is not None else "")
        life, now = self._view.incarnation(key), self._now()
        if key in self._cases or (past is not None and life is not None and past.life.uid == life.uid):
            return
        born = self._life(life) if life is not None else None
        gone_by = born.created.latest if born is not None else now
        if past is None:
            dead = Life("earlier", Span(EVER, EVER), Span(EVER, gone_by), Span(EVER, NEVER))
            case = Case([dead], now, self._timing)
        else:
            began = [one.at for pod in past.pods for one in pod.sight.starts]
            # Who came later came when it was gone, however the timestamps overlap.
            known = {pod.uid for pod in past.pods}
            later = (pod for pods in past.since for pod in pods if pod.uid not in known)
            came = [pod.sight.scheduled for pod in later if pod.usage(key.kind, key.name) is not None]
            first = min(came, default=NEVER) - self._timing.clock_skew - self._timing.cache_lag - 0.001
            earliest = min(max(began, default=EVER), gone_by)
            ended = Span(earliest, max(earliest, min(gone_by, first)))
            case = Case([self._life(past.life, ended)], now, self._timing)
            self._replay(case, key, past, born.created.earliest if born is not None else now, now)
        if born is not None:
            case.born(born)
        trial = key not in self._lost
        self._begin(key, _Open(case, gone_by, now - YOUNG_SECONDS, now, trial=trial))

    def _replay(self, case: Case, key: ConfigKey, past: Past, at: float, now: float) -> None:
        """Tell the case of the pods, from the moment before the object vanished until now.

        Args:
            at: all that they had begun in that moment, they had begun by then: there was no other object yet.
        """
        before: tuple[ClosePod, ...] = ()
        since = EVER
        for pods in (past.pods, *past.since):
            present = {pod.uid for pod in pods}
            for pod in before:
                if pod.uid not in present:
                    # It was still there when all that were set up were.
                    case.lost(pod.sight, since, at)
            for pod in pods:
                if (usage := pod.usage(key.kind, key.name)) is not None:
                    case.seen(pod.sight, usage, at, since=since)
            before, since, at = pods, max(since, case.set_up), now

    def _catch_up(self, case: Case, history: History, key: ConfigKey, within: Span) -> None:
        """What became of the key's lives while nobody looked."""
        live, life = history.live, self._view.incarnation(key)
        if live is not None and (life is None or life.uid != live.uid):
            case.died(live.uid, within)
        if life is not None:
            born = self._life(life)
            if live is None or life.uid != live.uid:
                created = Span(
                    max(born.created.earliest, within.earliest), max(born.created.latest, within.earliest)
                )
                born = replace(born, created=created)
            case.born(born)

    def _open(self, key: ConfigKey, dead: Life, left: float) -> None:
        if len(self._cases) >= MOST_CASES:
            logger.error("too many names were reused: not looked at", extra={"config": str(key)})
            return
        now = self._now()
        case = Case([dead], left, self._timing)
        if (life := self._view.incarnation(key)) is not None:
            case.born(self._life(life))
        self._begin(key, _Open(case, dead.ended.latest, now, now))
        logger.info("vanished while in use", extra={"config": str(key)})

    def _begin(self, key: ConfigKey, found: _Open) -> None:
        self._cases[key] = found
        for node, within in self._restarts.items():
            found.case.restarted(node, within)
        for node, within in self._cuts.items():
            found.case.cut_off(node, within)
        self._look_closely(key.namespace)
        if (watch := self._close.get(key.namespace)) is not None and watch[0].synced:
            now = self._now()
            for pod in watch[0].objects.values():
                if (usage := pod.usage(key.kind, key.name)) is not None:
                    found.case.seen(pod.sight, usage, now, since=EVER)
            self._complete(key, now)
        self._soon(key)

    def _look_closely(self, namespace: str) -> None:
        if namespace in self._close or len(self._close) >= MOST_NAMESPACES or self._group is None:
            return
        resource = Resource(
            name="pods",
            path=path_of("/api/v1/pods", namespace),
            item=CloseItem,
            project=close_pod,
        )
        mirror: Mirror[ClosePod] = Mirror(
            self._api, resource, functools.partial(self._pod_changed, namespace)
        )
        mirror.on_listed = functools.partial(self._pods_listed, namespace)
        self._close[namespace] = (mirror, self._group.create_task(mirror.run()))

    def _pod_changed(self, namespace: str, old: ClosePod | None, new: ClosePod | None) -> None:
        now = self._now()
        pod = new or old
        if pod is None:
            return
        mirror = self._close[namespace][0]
        for usage in pod.usages:
            key = ConfigKey(usage.kind, namespace, usage.name)
            if (found := self._cases.get(key)) is None:
                continue
            if new is not None:
                first = mirror.counters.lists == 0
                found.case.seen(pod.sight, usage, now, since=EVER if first else self._unheard(mirror, now))
            elif (since := self._unheard(mirror, now)) is not None:
                found.case.lost(pod.sight, since, now)
            else:
                found.case.gone(pod.sight, now)
            self._soon(key)

    def _unheard(self, mirror: Mirror[Any], now: float) -> float | None:
        """While a list is taken over: since when nothing had been heard of the kind."""
        if mirror.unheard_since is None:
            return None
        return now - (time.monotonic() - mirror.unheard_since) - self._timing.watch_lag

    def _pods_listed(self, namespace: str) -> None:
        now = self._now()
        mirror = self._close[namespace][0]
        since = self._unheard(mirror, now)
        for key, found in self._cases.items():
            if key.namespace == namespace:
                if mirror.counters.lists > 1 and since is not None:
                    found.case.missed(since, now)
                self._complete(key, now)
                self._soon(key)

    def _complete(self, key: ConfigKey, now: float) -> None:
        """All pods of the namespace were told to the case."""
        found, mirror = self._cases[key], self._close[key.namespace][0]
        if found.restored is not None:
            found.case.absent(frozenset(pod.uid for pod in mirror.objects.values()), found.restored, now)
            found.restored = None

    # --- what is done

    async def reconcile(self, key: ConfigKey) -> None:
        """Judge one case, and bring its StaleConfig in step."""
        stale = self.mirror.objects.get(ObjectKey(key.namespace, name_of(key)))
        found = self._cases.get(key)
        if found is None:
            if stale is not None and not self._settings.observe:
                await self._delete(stale)
            return
        self._look_closely(key.namespace)
        watch = self._close.get(key.namespace)
        now = self._now()
        began = time.monotonic()
        self.queue.add_after(key, LOOK_SECONDS)
        if watch is None or not watch[0].synced:
            return
        self._let_go(found.case, now)
        if now - found.settled > SETTLE_AFTER / 5:
            changes, history = found.case.changes, found.case.history()
            history = await asyncio.to_thread(settle, history, now - SETTLE_AFTER, now, self._timing)
            if found.case.changes == changes:  # else the next time
                found.case.replace(history)
                found.settled = now
        history = found.case.history()
        verdicts, new_pods, is_over = await self._judge(history, now)
        found.seconds = time.monotonic() - began
        if self._view.terminating(key.namespace) or (is_over and now - found.begun > YOUNG_SECONDS):
            await self._close_case(key, stale)
            return
        staying = {
            use.pod
            for node in history.nodes
            for use in node.uses
            if use.ending == NOT_YET and use.released == NOT_YET
        }
        verdicts = [one for one in verdicts if one.pod in staying]
        if found.trial and not any(one.kind in (Kind.STALE, Kind.DELETED) for one in verdicts):
            await self._close_case(key, stale)
            return
        found.trial = False
        found.affected = report.affected(verdicts)
        if self._settings.observe:
            return
        if stale is None and (not staying or now - found.begun < YOUNG_SECONDS):
            if staying:
                self.queue.add_after(key, YOUNG_SECONDS - (now - found.begun))
            return
        wanted = report.status(
            key, history, verdicts, new_pods, found.since, kubelets_asked=self._settings.kubelet_metrics
        )
        await self._write(key, stale, wanted, history, now)
        if history.live is not None and len(history.lives) > 1 and found.told != wanted["message"]:
            await self._tell(key, history.live, wanted)
            found.told = wanted["message"]

    async def _judge(self, history: History, now: float) -> tuple[list[Verdict], dict[str, Kind], bool]:
        """Verdicts, what pods that came now would be served by node, and whether it is over."""
        verdicts: list[Verdict] = []
        new_pods: dict[str, Kind] = {}
        is_over = heard_of(history, now, self._timing)
        for number, node in enumerate(history.nodes, 1):
            if number % NODES_AT_ONCE == 0:
                await asyncio.sleep(0)
            found = judge_node(history, node, now, self._timing)
            verdicts += found.verdicts
            if found.new_pods is not None:
                new_pods[node.name] = found.new_pods
            is_over = is_over and found.over
        return verdicts, new_pods, is_over

    def _let_go(self, case: Case, now: float) -> None:
        """Nodes that were seen alive long enough after a pod was taken from them, or that are gone."""
        for node in case.history().nodes:
            kept = self._view.node(node.name)
            for use in node.uses:
                long_ago = now - use.released.earliest > ALIVE_AFTER.total_seconds()
                # A node that is gone comes back as another one.
                if use.taken and use.released.latest > now and long_ago and (kept is None or kept.ready):
                    case.let_go(node.name, now)

    async def _close_case(self, key: ConfigKey, stale: StaleConfig | None) -> None:
        found = self._cases.pop(key)
        if not any(other.namespace == key.namespace for other in self._cases):
            _, task = self._close.pop(key.namespace, (None, None))
            if task is not None:
                task.cancel()
        if stale is not None and not self._settings.observe:
            await self._delete(stale)
        if not found.trial:
            logger.info("nothing old is served any more", extra={"config": str(key)})

    async def _write(
        self, key: ConfigKey, stale: StaleConfig | None, wanted: dict[str, Any], history: History, now: float
    ) -> None:
        present = {name: value for name, value in stale.status.items() if name != "memory"} if stale else None
        if present == wanted:
            return

        def written_down() -> str | None:
            return remember(settle(history, now, now, self._timing), secret=key.kind == "Secret")

        memory = await asyncio.to_thread(written_down)
        body = wanted | ({"memory": {"at": round(now, 3), "history": memory}} if memory is not None else {})
        collection = path_of(PATH, key.namespace)
        name = name_of(key)
        try:
            if stale is None:
                manifest = {
                    "apiVersion": f"{GROUP}/{API_VERSION}",
                    "kind": "StaleConfig",
                    "metadata": {"name": name},
                }
                await self._api.create(collection, manifest, type=msgspec.Raw)
            change = [{"op": "add", "path": "/status", "value": body}]
            await self._api.patch(
                f"{collection}/{name}", change, kind="json", subresource="status", type=msgspec.Raw
            )
        except ApiError as error:
            # 404: the namespace is gone, or somebody deleted it: an event follows. 409: the mirror does not show it yet.
            if error.status not in (404, 409) and not error.has_cause("NamespaceTerminating"):
                raise

    async def _tell(self, key: ConfigKey, live: Life, wanted: dict[str, Any]) -> None:
        bad = wanted["verdict"] != str(Kind.FRESH)
        await upsert_event(
            self._api,
            Regarding("v1", key.kind, key.namespace, key.name, live.uid),
            reason="NameReused",
            message=f"{wanted['message']} See: kubectl get stalecfg {name_of(key)} -n {key.namespace} -o yaml",
            type="Warning" if bad else "Normal",
            now=datetime.fromtimestamp(self._now(), UTC),
        )

    async def _delete(self, stale: StaleConfig) -> None:
        try:
            await self._api.delete(path_of(PATH, stale.namespace, stale.name), uid=stale.uid)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _stale_config_changed(self, old: StaleConfig | None, new: StaleConfig | None) -> None:
        """Somebody deleted one that is needed, or made one that is not: it is put right."""
        changed = new or old
        if changed is None or self._group is None:
            return
        for key in self._cases:
            if key.namespace == changed.namespace and name_of(key) == changed.name:
                self.queue.add(key)
                return
        if new is not None:
            status = new.status
            self.queue.add(ConfigKey(str(status.get("kind")), new.namespace, str(status.get("name"))))

    # --- times

    @property
    def _recent(self) -> float:
        """How long after a pod's end its node may still count it."""
        return self._timing.release + self._timing.watch_lag + self._timing.report

    def _heard(self, life: Incarnation) -> Span:
        """When something happened that we heard of now."""
        mirror = self._view.config_maps if life.key.kind == "ConfigMap" else self._view.secrets
        now = self._now()
        since = self._unheard(mirror, now)
        return Span(since if since is not None else now - self._timing.watch_lag, now)

    def _life(self, new: Incarnation, ended: Span = NOT_YET) -> Life:
        now, skew = self._now(), self._timing.clock_skew

        def stamped(text: str) -> Span:
            stamp = seconds(text)
            return Span(min(stamp - skew, now), min(stamp + 1 + skew, now))

        created = stamped(new.created)
        immutable = NOT_YET
        if new.immutable:
            # Whoever made it so may have written to it again since: that is the time that it tells.
            latest = stamped(new.immutable_since).latest if new.immutable_since else now
            immutable = created if new.immutable_since == new.created else Span(created.earliest, latest)
            uid, known = self._immutable.get(new.key, ("", NOT_YET))
            if uid == new.uid:
                immutable = known
        digest = new.fingerprint.hex()
        if new.key.kind == "Secret":
            digest = f"{SOURCE}:{digest}"
        return Life(new.uid, created, ended, immutable, (digest,))
