"""People's own rules: each ReferenceRule becomes a source of holders while it can be read.

A rule counts from when its kind was listed once. So a mistake in it, or a right that is missing, never keeps anything from
being released, and the rule itself says what is wrong. What was in force and then fails, fails closed: also over a restart,
since the condition remembers, and when the rule is edited, since the rule before stays until the new one counts.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from versionedconfig.kube.api import Api, ApiError
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import API_VERSION, GROUP, ObjectKey, timestamp
from versionedconfig.references import CATALOGUE, Kept, Source
from versionedconfig.references.rules import KindRules
from versionedconfig.resource import Condition
from versionedconfig.view import View

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
    problem: str
    """Why it makes none."""
    ready: Condition
    """As it is; empty where it was never told."""
    namespace: str = ""


def rule(item: RuleItem) -> Rule:
    """The projection of a ReferenceRule. Total: the CRD refuses most mistakes, not all."""
    meta = item.metadata
    source, problem = None, ""
    try:
        rules = msgspec.json.decode(item.spec, type=KindRules)
        if rules.linked:
            raise ValueError("chooses and binds are for the operator's own catalogue")
        source = Source(rules, CATALOGUE.fragments, id=f"referencerules/{meta.uid}/{meta.generation}")
    except Exception as error:
        problem = str(error) or type(error).__name__
    ready = next((c for c in item.status.conditions if c.type == "Ready"), Condition())
    return Rule(meta.name, meta.uid, meta.resource_version, meta.generation, source, problem, ready)


REFERENCE_RULES: Final = Resource(
    name="referencerules", path=PATH, item=RuleItem, project=rule, may_be_absent=True
)


IN_FORCE: Final = "InForce"
FAILING: Final = "Failing"
"""Reason of a rule that was in force, and whose kind cannot be read now."""


class RuleBook:
    """One for the process. `listed` is set when every rule that was in force before is known."""

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
        self.listed = self._mirror.wait_synced

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
            await self._tell(kept, "False", FAILING, f"releases wait, since its kind cannot be read: {error}")

    def _changed(self, old: Rule | None, new: Rule | None) -> None:
        if old is not None and new is not None and (old.uid, old.generation) == (new.uid, new.generation):
            return  # our own status
        if new is None:
            for task in self._running.pop(old.name, []) if old is not None else ():
                task.cancel()
            return
        before = self._running.get(new.name, [])
        source = new.source
        if source is not None and old is None and new.ready.reason in (IN_FORCE, FAILING):
            # Before anything is released: it counted when the last process ended.
            self._view.trust(source)
        task = asyncio.create_task(self._follow(new, list(before)))
        task.add_done_callback(functools.partial(self._ended, source))
        self._running[new.name] = [*before, task]

    def _ended(self, source: Source | None, task: asyncio.Task[None]) -> None:
        # Here and not in the task: one that is cancelled before it began does nothing of its own.
        if source is not None:
            self._rules.pop(source.id, None)
            self._view.drop_source(source)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    async def _follow(self, kept: Rule, before: list[asyncio.Task[None]]) -> None:
        """Until it is cancelled: the rule is gone, or another generation of it counts.

        Args:
            before: earlier generations, which go when this one counts.
        """
        source = kept.source
        if source is None:
            stays = "; the rule before stays in force" if before else ""
            await self._tell(kept, "False", "Invalid", kept.problem + stays)
            return
        if not source.rules.holder:
            self._succeed(kept, before)
            await self._tell(kept, "True", "Follows", "shown to people; it holds nothing")
            return
        self._rules[source.id] = kept
        mirror = self._view.add_source(source)
        listed = asyncio.Event()
        mirror.on_listed = listed.set
        while True:
            listed.clear()
            trusting = asyncio.create_task(self._trust(kept, source, mirror, listed, before))
            try:
                await mirror.run()
            except ApiError as error:
                missing = f"the operator's ServiceAccount needs list and watch on {source.rules.resource}"
                reason = self._failing(source, "Forbidden")
                await self._tell(kept, "False", reason, f"{missing}: {error.message}")
            except Exception as error:
                logger.error("rule failed", extra={"rule": kept.name, "error": type(error).__name__})
                message = f"its kind cannot be read ({type(error).__name__}): look at path and group"
                await self._tell(kept, "False", self._failing(source, "Unreadable"), message)
            finally:
                trusting.cancel()
            await asyncio.sleep(RETRY_SECONDS)

    def _failing(self, source: Source, reason: str) -> str:
        return FAILING if source in self._view.sources else reason

    async def _trust(
        self,
        kept: Rule,
        source: Source,
        mirror: Mirror[Kept],
        listed: asyncio.Event,
        before: list[asyncio.Task[None]],
    ) -> None:
        await listed.wait()
        if not mirror.counters.lists:
            missing = f"no kind {source.rules.resource} {source.rules.version} is served here; looked for again now and then"
            await self._tell(kept, "False", "KindNotFound", missing)
            listed.clear()
            while not mirror.counters.lists:
                await listed.wait()
                listed.clear()
        self._view.trust(source)
        self._succeed(kept, before)
        await self._tell(kept, "True", IN_FORCE, f"every {source.rules.kind} holds what it refers to")

    def _succeed(self, kept: Rule, before: list[asyncio.Task[None]]) -> None:
        """It counts now, and those before it no longer."""
        for task in before:
            task.cancel()
        before.clear()
        running = self._running.get(kept.name, [])
        self._running[kept.name] = [task for task in running if not task.cancelling() and not task.done()]

    async def _tell(self, kept: Rule, status: str, reason: str, message: str) -> None:
        """In its condition, where that says something else; refused or lost, it is told in the log alone."""
        logger.info("rule", extra={"rule": kept.name, "ready": status, "reason": reason})
        before = self._mirror.objects.get(ObjectKey("", kept.name), kept).ready
        since = before.last_transition_time if before.status == status else timestamp(self._now())
        told = Condition("Ready", status, reason, message, since, kept.generation)
        if told == before or self._observe:
            return
        body = {"metadata": {"uid": kept.uid}, "status": {"conditions": [msgspec.to_builtins(told)]}}
        with contextlib.suppress(ApiError):
            await self._api.patch(
                f"{PATH}/{kept.name}", body, kind="merge", type=msgspec.Raw, subresource="status"
            )
