"""People's own rules: each ReferenceRule becomes a source of holders, or a kind of workloads, while it can be read.

A rule counts from when its kind was listed once. So a mistake in it, or a right that is missing, never keeps anything from
being released, and the rule itself says what is wrong. What was in force and then fails, fails closed: also over a restart,
since the condition remembers, and when the rule is edited, since the rule before stays until the new one counts. The same
goes for workloads and the versions that their templates use.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from versionedconfig.custom import CustomKind
from versionedconfig.kube.api import Api, ApiError
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import API_VERSION, GROUP, ObjectKey, timestamp
from versionedconfig.references import CATALOGUE, Source
from versionedconfig.references.rules import KindRules
from versionedconfig.resource import Condition
from versionedconfig.view import View
from versionedconfig.workload import Workload

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/{GROUP}/{API_VERSION}/referencerules"
RETRY_SECONDS: Final = 30.0
"""How soon a right that was given is noticed."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Metadata(_Struct, frozen=True):
    name: str
    uid: str
    resource_version: str
    generation: int = 0


class _Status(_Struct, frozen=True):
    conditions: list[Condition] = []


class RuleItem(_Struct, frozen=True):
    """What is decoded of a ReferenceRule; its spec later, since a mistake in one must not keep the others from being
    read."""

    metadata: _Metadata
    spec: msgspec.Raw
    status: _Status = _Status()


class Rule(msgspec.Struct, frozen=True):
    """What is kept of a ReferenceRule."""

    name: str
    uid: str
    resource_version: str
    generation: int
    source: Source | None
    """What it makes, of this generation alone: that of the one before may still be on its way out."""
    custom: CustomKind | None
    """The workloads that it makes of its objects, where it says so."""
    problem: str
    """Why it makes none."""
    ready: Condition
    """As it is; empty where it was never told."""
    namespace: str = ""


def rule(item: RuleItem) -> Rule:
    """The projection of a ReferenceRule. Total: the CRD refuses most mistakes, not all."""
    meta = item.metadata
    source, custom, problem = None, None, ""
    try:
        rules = msgspec.json.decode(item.spec, type=KindRules)
        if rules.linked:
            raise ValueError("chooses and binds are for the operator's own catalogue")
        custom = CustomKind(rules) if rules.workload is not None else None
        source = Source(rules, CATALOGUE.fragments, id=f"referencerules/{meta.uid}/{meta.generation}")
    except Exception as error:
        custom, problem = None, str(error) or type(error).__name__
    ready = next((c for c in item.status.conditions if c.type == "Ready"), Condition())
    return Rule(meta.name, meta.uid, meta.resource_version, meta.generation, source, custom, problem, ready)


REFERENCE_RULES: Final = Resource(
    name="referencerules", path=PATH, item=RuleItem, project=rule, may_be_absent=True
)


IN_FORCE: Final = "InForce"
MOVES: Final = "Moves"
"""Reason of a rule whose objects are workloads: VersionedConfigs move them."""
FAILING: Final = "Failing"
"""Reason of a rule that was in force, and whose kind cannot be read now."""


FIRST_LIST_SECONDS: Final = 30.0
"""How long everything waits for workloads that were moved before."""


@dataclass(frozen=True, slots=True)
class _Use:
    """What a rule's kind is followed for."""

    mirror: Mirror[Any]
    trust: Callable[[], None]
    """It was listed: it counts."""
    reason: str
    message: str
    verbs: str


class RuleBook:
    """One for the process."""

    def __init__(
        self, api: Api, view: View, *, observe: bool, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api = api
        self._view = view
        self._observe = observe
        self._now = now
        self._running: dict[str, list[asyncio.Task[None]]] = {}
        """By name of the rule: the one in force, and the one that is going to be."""
        self._rules: dict[str, Rule] = {}
        """By id of their source."""
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Told when following a rule ends by itself, which never should."""
        self._mirror: Mirror[Rule] = Mirror(api, REFERENCE_RULES, self._changed)
        self._kinds: dict[str, dict[str, str]] = {}
        """Kinds of workloads: the rule that tells of each, by the id of its source. An edited rule has two."""
        self._freed = asyncio.Event()
        """Set, and then another one, when no rule tells of a kind any more."""
        self._workloads: dict[str, tuple[str, Mirror[Workload]]] = {}
        """Kind and mirror, by the id of the source."""
        self._awaited: dict[str, asyncio.Event] = {}
        """By the id of the source: set when workloads that were moved before are there again, or cannot be read."""
        self._telling = asyncio.Lock()
        """Generations of a rule tell side by side: the newest one has the last word."""

    @property
    def mirror(self) -> Mirror[Rule]:
        """Of the rules themselves. What becomes of their kinds stands in the condition of each."""
        return self._mirror

    async def listed(self) -> None:
        """Wait until every rule that was in force before is known, and its workloads are, as far as they can be read:
        a target that seems to be gone loses what its status remembers."""
        await self._mirror.wait_synced()
        awaited = [event.wait() for event in self._awaited.values()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*awaited), FIRST_LIST_SECONDS)

    async def run(self) -> None:
        """Work for ever."""
        try:
            await self._mirror.run()
        finally:
            for tasks in self._running.values():
                for task in tasks:
                    task.cancel()

    async def unreadable(self, source_id: str, error: ApiError) -> None:
        """A live list of that source failed, and releases wait for it."""
        kept = self._rules.get(source_id)
        if kept is not None:
            waits = "no version is collected" if kept.custom is not None else "releases wait"
            await self._tell(kept, "False", FAILING, f"{waits}, since its kind cannot be read: {error}")

    def _changed(self, old: Rule | None, new: Rule | None) -> None:
        if old is not None and new is not None and (old.uid, old.generation) == (new.uid, new.generation):
            return  # our own status
        if new is None:
            for task in self._running.pop(old.name, []) if old is not None else ():
                task.cancel()
            return
        before = self._running.get(new.name, [])
        source = new.source
        if source is not None and old is None and new.ready.reason in (IN_FORCE, MOVES, FAILING):
            # Before anything is released: it counted when the last process ended.
            if new.custom is None:
                self._view.trust(source)
            elif not self._claim(new, new.custom.kind, source.id):
                self._view.custom[source.id] = new.custom.resource
                self._awaited[source.id] = asyncio.Event()
        task = asyncio.create_task(self._follow(new, list(before)))
        task.add_done_callback(functools.partial(self._ended, source))
        self._running[new.name] = [*before, task]

    def _ended(self, source: Source | None, task: asyncio.Task[None]) -> None:
        # Here and not in the task: one that is cancelled before it began does nothing of its own.
        if source is not None:
            self._rules.pop(source.id, None)
            self._view.drop_source(source)
            self._view.custom.pop(source.id, None)
            for kind, owners in list(self._kinds.items()):
                owners.pop(source.id, None)
                if not owners:
                    del self._kinds[kind]
                    self._freed.set()
                    self._freed = asyncio.Event()
            if (workloads := self._workloads.pop(source.id, None)) is not None:
                self._view.drop_workloads(*workloads)
            self._answered(source)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    async def _follow(self, kept: Rule, before: list[asyncio.Task[None]]) -> None:
        """Until it is cancelled: the rule is gone, or another generation of it counts.

        Args:
            before: earlier generations, which go when this one counts.
        """
        source = kept.source
        stays = "; the rule before stays in force" if before else ""
        if source is None:
            await self._tell(kept, "False", "Invalid", kept.problem + stays)
            return
        if kept.custom is not None:
            while other := self._claim(kept, kept.custom.kind, source.id):
                taken = f"rule {other} tells of kind {kept.custom.kind} already: targets are known by kind and name"
                freed = self._freed
                await self._tell(kept, "False", "Invalid", taken + stays)
                await freed.wait()
        elif not source.rules.holder:
            self._succeed(kept, before)
            await self._tell(kept, "True", "Follows", "shown to people; it holds nothing")
            return
        self._rules[source.id] = kept
        use = self._use(source, kept.custom)
        listed = asyncio.Event()
        use.mirror.on_listed = listed.set
        while True:
            listed.clear()
            trusting = asyncio.create_task(self._trust(kept, source, use, listed, before))
            try:
                await use.mirror.run()
            except ApiError as error:
                missing = f"the operator's ServiceAccount needs {use.verbs} on {source.rules.resource}"
                reason = self._failing(source, "Forbidden")
                await self._tell(kept, "False", reason, f"{missing}: {error.message}")
            except Exception as error:
                logger.error("rule failed", extra={"rule": kept.name, "error": type(error).__name__})
                message = f"its kind cannot be read ({type(error).__name__}): look at path and group"
                await self._tell(kept, "False", self._failing(source, "Unreadable"), message)
            finally:
                trusting.cancel()
            self._answered(source)
            await asyncio.sleep(RETRY_SECONDS)

    def _use(self, source: Source, custom: CustomKind | None) -> _Use:
        kind = source.rules.kind
        if custom is None:
            holding = self._view.add_source(source)
            message = f"every {kind} holds what it refers to"
            return _Use(holding, lambda: self._view.trust(source), IN_FORCE, message, "list and watch")
        mirror = self._view.add_workloads(kind, custom.resource)
        self._workloads[source.id] = kind, mirror

        def trust() -> None:
            self._view.custom[source.id] = custom.resource
            self._view.use_workloads(kind, mirror)

        message = f"every {kind} is a target of the VersionedConfigs that its template refers to"
        return _Use(mirror, trust, MOVES, message, "list, watch and patch")

    def _claim(self, kept: Rule, kind: str, source_id: str) -> str:
        """The other rule that tells of these workloads already; empty where there is none, and then it is this one."""
        owners = self._kinds.setdefault(kind, {})
        other = next((name for name in owners.values() if name != kept.name), "")
        if not other:
            owners[source_id] = kept.name
        return other

    def _answered(self, source: Source) -> None:
        if (awaited := self._awaited.pop(source.id, None)) is not None:
            awaited.set()

    def _failing(self, source: Source, reason: str) -> str:
        return FAILING if source in self._view.sources or source.id in self._view.custom else reason

    async def _trust(
        self,
        kept: Rule,
        source: Source,
        use: _Use,
        listed: asyncio.Event,
        before: list[asyncio.Task[None]],
    ) -> None:
        await listed.wait()
        if not use.mirror.counters.lists:
            missing = f"no kind {source.rules.resource} {source.rules.version} is served here; looked for again now and then"
            self._answered(source)
            await self._tell(kept, "False", "KindNotFound", missing)
            listed.clear()
            while not use.mirror.counters.lists:
                await listed.wait()
                listed.clear()
        use.trust()
        self._answered(source)
        self._succeed(kept, before)
        await self._tell(kept, "True", use.reason, use.message)

    def _succeed(self, kept: Rule, before: list[asyncio.Task[None]]) -> None:
        """It counts now, and those before it no longer."""
        for task in before:
            task.cancel()
        before.clear()
        running = self._running.get(kept.name, [])
        self._running[kept.name] = [task for task in running if not task.cancelling() and not task.done()]

    async def _tell(self, kept: Rule, status: str, reason: str, message: str) -> None:
        """In its condition, where that says something else and this is the newest generation; else, or refused or lost, in
        the log alone."""
        logger.info("rule", extra={"rule": kept.name, "ready": status, "reason": reason})
        async with self._telling:
            latest = self._mirror.objects.get(ObjectKey("", kept.name), kept)
            if self._observe or (latest.uid, latest.generation) != (kept.uid, kept.generation):
                return  # what becomes of the rule as it was must not hide what is wrong with it now
            before = latest.ready
            since = before.last_transition_time if before.status == status else timestamp(self._now())
            told = Condition("Ready", status, reason, message, since, kept.generation)
            if told == before:
                return
            body = {"metadata": {"uid": kept.uid}, "status": {"conditions": [msgspec.to_builtins(told)]}}
            with contextlib.suppress(ApiError):
                await self._api.patch(
                    f"{PATH}/{kept.name}", body, kind="merge", type=msgspec.Raw, subresource="status"
                )
