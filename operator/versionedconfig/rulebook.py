"""People's own rules: each ReferenceRule becomes a source of holders while it can be read.

A rule counts from when its kind was listed once. So a mistake in it, or a right that is missing, never keeps anything from
being released, and the rule itself says what is wrong; but what was in force and then fails, fails closed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from versionedconfig.kube.api import Api, ApiError
from versionedconfig.kube.mirror import Mirror, Resource
from versionedconfig.model import API_VERSION, GROUP, ObjectKey
from versionedconfig.references import CATALOGUE, Source
from versionedconfig.references.rules import FieldRule, Include, KindRules
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


class _Spec(_Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    plural: str
    version: str
    group: str = ""
    scope: Literal["Namespaced", "Cluster"] = "Namespaced"
    holds: bool | None = None
    include: list[Include] = []
    references: list[FieldRule] = []


class _Condition(_Struct, frozen=True):
    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class _Status(_Struct, frozen=True):
    conditions: list[_Condition] = []


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
    rules: KindRules | None
    problem: str
    """Why there are no rules."""
    ready: tuple[str, str, str, int, str]
    """The Ready condition as it is: status, reason, message, generation, since when."""
    namespace: str = ""


def rule(item: RuleItem) -> Rule:
    """The projection of a ReferenceRule. Total: the CRD refuses most mistakes, not all."""
    meta = item.metadata
    rules, problem = None, ""
    try:
        spec = msgspec.json.decode(item.spec, type=_Spec)
        rules = KindRules(**{name: getattr(spec, name) for name in spec.__struct_fields__})
        Source(rules, CATALOGUE.fragments)
    except (msgspec.MsgspecError, ValueError) as error:
        rules, problem = None, str(error)
    ready = next((c for c in item.status.conditions if c.type == "Ready"), None)
    told = ("", "", "", 0, "")
    if ready is not None:
        told = (
            ready.status,
            ready.reason,
            ready.message,
            ready.observed_generation,
            ready.last_transition_time,
        )
    return Rule(meta.name, meta.uid, meta.resource_version, meta.generation, rules, problem, told)


def source_of(kept: Rule) -> Source | None:
    """The source that a rule makes; None for one with a problem."""
    if kept.rules is None:
        return None
    return Source(kept.rules, CATALOGUE.fragments, id=f"referencerules/{kept.name}")


REFERENCE_RULES: Final = Resource(
    name="referencerules", path=PATH, item=RuleItem, project=rule, may_be_absent=True
)


class RuleBook:
    """One for the process."""

    def __init__(
        self, api: Api, view: View, *, observe: bool, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api = api
        self._view = view
        self._observe = observe
        self._now = now
        self._running: dict[str, asyncio.Task[None]] = {}
        self._mirror: Mirror[Rule] = Mirror(api, REFERENCE_RULES, self._changed)

    async def run(self) -> None:
        """Work for ever."""
        try:
            await self._mirror.run()
        finally:
            for task in self._running.values():
                task.cancel()

    def _changed(self, old: Rule | None, new: Rule | None) -> None:
        if old is not None and new is not None and (old.uid, old.generation) == (new.uid, new.generation):
            return  # our own status
        if old is not None and (task := self._running.pop(old.name, None)) is not None:
            task.cancel()
        if new is not None:
            self._running[new.name] = asyncio.create_task(self._follow(new))

    async def _follow(self, kept: Rule) -> None:
        """While this generation of the rule is there."""
        source = source_of(kept)
        if source is None:
            await self._tell(kept, "False", "Invalid", kept.problem)
            return
        if not source.rules.holder:
            await self._tell(kept, "True", "Follows", "shown to people; it holds nothing")
            return
        mirror = self._view.add_source(source)
        listed = asyncio.Event()
        mirror.on_listed = listed.set
        try:
            while True:
                listed.clear()
                trusting = asyncio.create_task(self._trust(kept, source, listed))
                try:
                    await mirror.run()
                except ApiError as error:
                    missing = f"the operator's ServiceAccount needs list and watch on {source.rules.resource}"
                    await self._tell(kept, "False", "Forbidden", f"{missing}: {error.message}")
                finally:
                    trusting.cancel()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._view.drop_source(source)

    async def _trust(self, kept: Rule, source: Source, listed: asyncio.Event) -> None:
        await listed.wait()
        self._view.trust(source)
        await self._tell(kept, "True", "InForce", f"every {source.rules.kind} holds what it refers to")

    async def _tell(self, kept: Rule, status: str, reason: str, message: str) -> None:
        """In its condition, where that says something else; refused or lost, it is told in the log alone."""
        logger.info("rule", extra={"rule": kept.name, "ready": status, "reason": reason})
        current = self._mirror.objects.get(ObjectKey("", kept.name), kept)
        before, its_reason, its_message, generation, since = current.ready
        if (before, its_reason, its_message, generation) == (status, reason, message, kept.generation):
            return
        if self._observe:
            return
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = _Condition(
            "Ready", status, reason, message, since if before == status else now, kept.generation
        )
        body = {"metadata": {"uid": kept.uid}, "status": {"conditions": [msgspec.to_builtins(condition)]}}
        with contextlib.suppress(ApiError):
            await self._api.patch(
                f"{PATH}/{kept.name}", body, kind="merge", type=msgspec.Raw, subresource="status"
            )
