"""The wiring, on one screen: kopf runs the process and tells of VersionedConfigs; the mirrors tell of the rest.

The only file that knows kopf.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

import kopf

from versionedconfig.kube.api import Api
from versionedconfig.kube.mirror import Mirror, tune_gc
from versionedconfig.live import LiveLists
from versionedconfig.model import API_VERSION, GROUP, ConfigKey, ObjectKey, WorkloadKey
from versionedconfig.observability.census import Census
from versionedconfig.observability.metrics import Metrics
from versionedconfig.protection.controller import ProtectionController
from versionedconfig.resource import PLURAL
from versionedconfig.rollout.controller import RolloutController
from versionedconfig.rulebook import RuleBook
from versionedconfig.settings import Settings
from versionedconfig.staleness.controller import StalenessController
from versionedconfig.versions.controller import VersionsController
from versionedconfig.versions.maps import VersionMaps
from versionedconfig.view import View

logger = logging.getLogger(__name__)

DEAF_SECONDS = 180
"""A mirror that heard nothing for so long is broken: bookmarks come about once a minute."""


class Operator:
    """Everything that runs, and the tasks it runs in. Ends the process when one of them ends."""

    def __init__(self, api: Api, settings: Settings, metrics: Metrics, stop: asyncio.Event) -> None:
        self.view = View(api, settings)
        self.live = live = LiveLists(
            api, lambda: self.view.sources, settings.pod_selector, lambda: self.view.custom
        )
        self.rules = RuleBook(api, self.view, observe=settings.observe)
        self.protection = ProtectionController(api, self.view, live, settings, metrics)
        self.rollouts = RolloutController(api, self.view, metrics)
        self.maps = VersionMaps(api, self.view)
        self.versions = VersionsController(api, self.view, live, self.rollouts, self.maps, settings, metrics)
        self.staleness = StalenessController(api, self.view, settings, metrics)
        self.failed: BaseException | None = None
        live.unreadable = self.rules.unreadable
        self.rules.failed = self._broke
        self._api = api
        self._metrics = metrics
        self._observe = settings.observe
        self._stop = stop
        self._tasks: list[asyncio.Task[None]] = []

        self.view.config_changed = self._on_config
        self.view.pods_counted = self._on_pods_counted
        self.view.pod_left = self.staleness.pod_left
        self.view.life_changed = self.staleness.life_changed
        self.view.node_changed = self.staleness.node_changed
        self.view.usage_changed = self.versions.touched_by
        self.view.version_changed = self.versions.touched
        self.view.workload_changed = self._on_workload
        self.view.namespace_changed = self._on_namespace
        self.view.pod_taken = self.protection.pod_taken
        self.rollouts.refused = self.versions.touched

    async def start(self) -> None:
        """Start the mirrors; the controllers follow when all of them are synced."""
        self._metrics.follow(self._census(), asyncio.get_running_loop())
        for mirror in self.view.mirrors:
            self._spawn(mirror.run())
        self._spawn(self._work())

    async def stop(self) -> None:
        """End every task."""
        self._metrics.follow(tuple)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.live.close()
        await self._api.close()

    async def _work(self) -> None:
        for mirror in self.view.needed:
            await mirror.wait_synced()
        logger.info("synced", extra={"pods": len(self.view.pods.objects)})
        async with asyncio.TaskGroup() as group:
            group.create_task(self.rules.run())
            # Which kinds hold must be known before anything is released.
            await self.rules.listed()
            group.create_task(self.protection.run())
            group.create_task(self.staleness.mirror.run())
            group.create_task(self.staleness.run())
            if self._observe:
                # What would be done about VersionedConfigs depends on what was done before: only protection is reported.
                logger.info("observe mode: nothing is written, and VersionedConfigs are not looked at")
            else:
                group.create_task(self.maps.mirror.run())
                group.create_task(self.maps.run())
                group.create_task(self.versions.run())
                group.create_task(self.rollouts.run())

    def _census(self) -> Census:
        controllers = (self.protection, self.versions, self.rollouts, self.maps, self.staleness)
        for one in controllers:
            one.queue.worked = self._metrics.reconciled

        def mirrors() -> list[Mirror[Any]]:
            own = [self.rules.mirror, self.staleness.mirror]
            return [*self.view.mirrors, *own, *(() if self._observe else (self.maps.mirror,))]

        queues = [one.queue for one in controllers]
        return Census(self.view, self.versions, self.maps, self.staleness, mirrors, queues)

    def _on_config(self, key: ConfigKey) -> None:
        self.protection.enqueue(key)
        self.versions.source_changed(key)

    def _on_pods_counted(self, key: ConfigKey) -> None:
        self.versions.counted(key)
        self.staleness.pods_counted(key)

    def _on_workload(self, key: WorkloadKey, refers_to: frozenset[ConfigKey]) -> None:
        self.rollouts.queue.add(key)
        for config in refers_to:
            self.versions.touched_by(config)

    def _on_namespace(self, namespace: str) -> None:
        for incarnation in self.view.incarnations():
            if incarnation.namespace == namespace:
                self.protection.enqueue(incarnation.key)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # kopf does not notice when a task that is not its own dies: a deaf operator must end and be restarted.
        if not task.cancelled():
            self._broke(task.exception() or RuntimeError("a task ended that never should"))

    def _broke(self, error: BaseException) -> None:
        # A group tells that something failed in it, and not what.
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.failed = error
        self._stop.set()


def run(settings: Settings) -> None:
    """Run until a signal comes or something breaks for good.

    Raises:
        BaseException: what broke.
    """
    registry = kopf.OperatorRegistry()
    stop = asyncio.Event()
    metrics = Metrics()
    running: list[Operator] = []

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        if options.kubeconfig:
            os.environ["KUBECONFIG"] = options.kubeconfig  # kopf takes the path from nowhere else
            return kopf.login_with_kubeconfig(**kwargs)
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        api = await Api.connect(options.kubeconfig)
        api.on_request = metrics.request
        operator = Operator(api, options, metrics, stop)
        running.append(operator)
        await operator.start()

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        stop.set()  # after a signal kopf would wait five seconds for its own task that waits for this
        for operator in running:
            await operator.stop()

    # on.event alone: change-detecting handlers write the spec into an annotation, and the spec holds content.
    @kopf.on.event(GROUP, API_VERSION, PLURAL, registry=registry)
    async def versioned_config(
        event: kopf.RawEvent,
        namespace: str | None,
        name: str | None,
        uid: str | None,
        meta: kopf.Meta,
        **_: Any,
    ) -> None:
        owner = ObjectKey(namespace or "", name or "")
        generation = 0 if event["type"] == "DELETED" else meta.get("generation", 0)
        for operator in running:
            operator.versions.changed(owner, uid=uid or "", generation=generation)

    @kopf.on.probe(registry=registry, id="synced")
    async def synced(**_: Any) -> bool:
        """Whether every kind was listed; an error, and so a 500, where a mirror is deaf."""
        for operator in running:
            if deaf := operator.view.deaf(DEAF_SECONDS):
                # kopf would retry any other error within the request.
                raise kopf.PermanentError(f"nothing heard for {DEAF_SECONDS} s of: {', '.join(deaf)}")
        return all(operator.view.synced for operator in running)

    options = settings
    asyncio.run(_check_credentials(settings.kubeconfig))
    tune_gc()
    if settings.metrics_port:
        metrics.serve(settings.metrics_port)
    kopf.run(
        registry=registry,
        clusterwide=True,
        standalone=True,
        stop_flag=stop,
        liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz" if settings.health_port else None,
    )
    for operator in running:
        if operator.failed is not None:
            raise operator.failed


async def _check_credentials(kubeconfig: str | None) -> None:
    """Before kopf starts, which would try a failed start again every minute and never end.

    Raises:
        ValueError: they cannot be read; whether the API server takes them shows later.
    """
    try:
        api = await Api.connect(kubeconfig)
    except Exception as error:
        words = " ".join(str(error).split())
        raise ValueError(f"cannot use the kubeconfig or ServiceAccount: {words}") from None
    await api.close()


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf's settings, each with its reason."""
    settings.peering.standalone = True  # any ClusterKopfPeering of another team could pause us
    settings.scanning.disabled = True  # one group, one version: no need to watch for new kinds
    settings.posting.enabled = False  # Events are written by the controllers, never from log lines
    settings.watching.server_timeout = 300  # end streams regularly: some proxies go silent instead
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 75  # bookmarks come about once a minute
    settings.networking.request_timeout = 30
    settings.queueing.idle_timeout = 0.5  # idle workers keep the whole object, and with it its content
    settings.persistence.finalizer = f"{GROUP}/kopf"  # never used; must not be ours by mistake
    # One line per event and per probe otherwise.
    for name in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
