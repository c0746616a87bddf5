"""`versionedconfig status`: where a rollout stands, what needs attention on top; and following it to its end.

Each state of the resource becomes an answer by a pure function. The rest is how answers are drawn.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from versionedconfig.commands.configs import (
    Config,
    Refused,
    condition,
    forbidden,
    is_true,
    not_installed,
    read,
)
from versionedconfig.commands.output import age, table
from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.kube.backoff import delay
from versionedconfig.model import ObjectKey
from versionedconfig.resource import PATH, Condition, TargetStatus

ATTENTION: Final = (
    "Failed",
    "Conflict",
    "Overridden",
    "Updating",
    "Waiting",
    "Paused",
    "Manual",
    "Updated",
)
"""States of targets, the one to look at first first. One that is not here comes before all."""

STYLES: Final = {
    "Failed": "red",
    "Conflict": "red",
    "Overridden": "yellow",
    "Updating": "cyan",
    "Waiting": "dim",
    "Updated": "green",
}

CONDITIONS: Final = ("Ready", "Reconciling", "Stalled", "Degraded")

RETRIES: Final = 6
"""How often in a row a lost API server is asked again while a rollout is followed: half a minute and more."""


class Outcome(StrEnum):
    """Whether there is something to wait for."""

    GOING = "Going"
    THROUGH = "Through"
    FAILED = "Failed"
    """It is Degraded or Stalled, or the version of the content failed."""


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What `status` tells of one."""

    kind: str
    namespace: str
    name: str
    outcome: Outcome
    version: str
    """The current one."""
    since: str
    latest: str
    """The version that holds the content as it is."""
    pin: str
    paused: bool
    updated: int
    total: int
    conditions: list[Condition]
    targets: list[TargetStatus]
    """What needs attention first."""
    notes: list[str]
    """What else to know, a sentence each."""


def assess(config: Config) -> Answer:
    """From the resource as it is now."""
    status = config.status
    return Answer(
        kind=config.spec.kind,
        namespace=config.metadata.namespace,
        name=config.metadata.name,
        outcome=outcome(config),
        version=status.current_version,
        since=status.current_since or "",
        latest=status.latest_version,
        pin=config.spec.pin,
        paused=config.spec.rollout.paused,
        updated=sum(target.state == "Updated" for target in status.targets),
        total=len(status.targets),
        conditions=[found for kind in CONDITIONS if (found := condition(config, kind))],
        targets=sorted(status.targets, key=lambda target: (_attention(target), target.kind, target.name)),
        notes=_notes(config),
    )


def outcome(config: Config) -> Outcome:
    """What is said of an older generation says nothing of this one."""
    ready = condition(config, "Ready")
    if not config.observed or ready is None:
        return Outcome.GOING
    if ready.observed_generation not in (0, config.metadata.generation):
        return Outcome.GOING
    if is_true(config, "Stalled") or is_true(config, "Degraded") or _gave_up(config):
        return Outcome.FAILED
    return Outcome.THROUGH if ready.status == "True" else Outcome.GOING


def _gave_up(config: Config) -> bool:
    """The version of the content failed, and targets are back at another one."""
    status = config.status
    if config.spec.pin or status.latest_version in ("", status.current_version):
        return False
    return any(v.name == status.latest_version and v.result == "Failed" for v in status.versions)


def _attention(target: TargetStatus) -> int:
    return ATTENTION.index(target.state) if target.state in ATTENTION else -1


def _notes(config: Config) -> list[str]:
    status, spec = config.status, config.spec
    notes = []
    if config.metadata.deletion_timestamp:
        notes.append("it is being deleted")
    if not status.observed_generation:
        notes.append("no operator has looked at it yet")
    elif not config.observed:
        notes.append("the operator has not looked at the last change yet")
    if spec.pin:
        notes.append(f"pinned to {spec.pin}: the content is not followed")
    if spec.rollout.paused:
        notes.append("its rollout is paused: no further target moves")
    if status.latest_version not in ("", status.current_version):
        failed = next(
            (v for v in status.versions if v.name == status.latest_version and v.result == "Failed"), None
        )
        why = f", which failed: {failed.message}" if failed else ""
        notes.append(f"the content is {status.latest_version}{why}")
    return notes


# -- one -------------------------------------------------------------------------------------------------------------


async def find(api: Api, key: ObjectKey) -> Answer:
    """As it is now."""
    return assess(await read(api, key))


def verdict(answer: Answer) -> str:
    """Reasons and messages of the conditions that hold, and of Ready; each once."""
    told = dict.fromkeys(
        f"{found.reason}: {found.message}" if found.message else found.reason
        for found in answer.conditions
        if found.status == "True" or found.type == "Ready"
    )
    return "; ".join(told)


def show(answer: Answer, console: Console, now: datetime) -> None:
    """Conditions, version, and a table of the targets."""
    console.print(_heading(answer, now), soft_wrap=True)
    console.print(_targets(answer, now))


def _heading(answer: Answer, now: datetime) -> Text:
    conditions = Text("  ").join(_condition(found) for found in answer.conditions)
    version = f"{answer.version}, current for {age(answer.since, now)}" if answer.version else "none yet"
    lines = [Text(f"{answer.kind} {answer.namespace}/{answer.name}  ") + conditions]
    if text := verdict(answer):
        lines.append(Text(text))
    lines.append(Text(f"version: {version}; {answer.updated}/{answer.total} targets updated"))
    lines += [Text(note, "yellow") for note in answer.notes]
    return Text("\n").join(lines)


def _condition(found: Condition) -> Text:
    good = (found.status == "True") == (found.type == "Ready")
    bad = found.status == "True" and found.type in ("Stalled", "Degraded")
    style = "red" if bad else "green" if good and found.type == "Ready" else ""
    return Text(f"{found.type}={found.status}", style)


def _targets(answer: Answer, now: datetime) -> RenderableType:
    if not answer.targets:
        return Text("no workload refers to it")
    rows = table("KIND", "NAME", "VERSION", "STATE", "SINCE", "MESSAGE")
    for target in answer.targets:
        wanted = f"goes to {target.wanted}" if target.wanted else ""
        rows.add_row(
            target.kind,
            escape(target.name),
            escape(target.version or "-"),
            Text(target.state, STYLES.get(target.state, "")),
            age(target.since, now),
            escape("; ".join(filter(None, (wanted, target.message)))),
        )
    return rows


def changes(before: Answer | None, now: Answer) -> list[str]:
    """A line for each thing that is new since: first the targets, then the whole."""
    was = {(t.kind, t.name): t for t in before.targets} if before else {}
    lines = []
    for target in sorted(now.targets, key=lambda t: (t.kind, t.name)):
        old = was.pop((target.kind, target.name), None)
        new = (target.state, target.message)
        if old is not None and (old.state, old.message) == new:
            continue
        at = f" at {target.version}" if target.version else ""
        lines.append(f"{target.kind}/{target.name}: {target.state}{at}" + _tail(target.message))
    lines += [f"{kind}/{name}: is no target any more" for kind, name in was]
    if before is None or _summary(before) != _summary(now):
        lines.append(f"{now.name}: {_summary(now)}")
    lines += [f"{now.name}: {note}" for note in now.notes if before is None or note not in before.notes]
    return lines


def _summary(answer: Answer) -> str:
    return f"{answer.updated}/{answer.total} targets updated" + _tail(verdict(answer))


def _tail(message: str) -> str:
    return f": {message}" if message else ""


# -- following one ---------------------------------------------------------------------------------------------------

Tell = Callable[[Answer], None]


async def watch(api: Api, key: ObjectKey, tell: Tell) -> Outcome:
    """Tell of each change until it is through or has failed.

    Raises:
        Refused: it is not there, or was deleted meanwhile.
    """
    last: Answer | None = None
    async with aclosing(states(api, key, path_of(PATH, key.namespace))) as found:
        async for config in found:
            answer = assess(config)
            if answer != last:
                tell(answer)
            last = answer
            if answer.outcome is not Outcome.GOING:
                return answer.outcome
    raise Refused(f"{key.name} was deleted")


async def states(api: Api, key: ObjectKey, collection: str) -> AsyncGenerator[Config, None]:
    """It as it is, and at each change; ends when it is deleted. A watch that breaks is made anew.

    Args:
        collection: the path of VersionedConfigs in its namespace.
    """
    selector = f"metadata.name={key.name}"
    uid, failures = "", 0
    while True:
        try:
            page = await api.list_page(collection, item=Config, field_selector=selector)
            if not page.items and not uid:
                await read(api, key)  # says what there is instead
                continue
            if not page.items or uid not in ("", page.items[0].metadata.uid):
                return
            uid, failures = page.items[0].metadata.uid, 0
            yield page.items[0]
            events = api.watch(
                collection, item=Config, resource_version=page.resource_version, field_selector=selector
            )
            async with aclosing(events):
                async for batch in events:
                    for event in batch:
                        if event.type == "DELETED":
                            return
                        if event.object is not None:
                            yield event.object
        except ApiError as error:
            if error.status == 403:
                raise forbidden("list and watch", key.namespace) from None
            if error.status == 404:
                raise not_installed() from None
            failures += 1
            # At the first question there is nothing to come back to.
            if not uid or failures > RETRIES:
                raise
            if error.status != 410:
                await asyncio.sleep(delay(failures - 1, base=1, cap=30, rng=random.Random()))


@contextmanager
def drawing(console: Console) -> Iterator[Tell]:
    """How a person follows it: drawn in place in a terminal, else a line for each change."""
    last: list[Answer] = []

    def tell_lines(answer: Answer) -> None:
        for line in changes(last[-1] if last else None, answer):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        last[:] = [answer]

    if not console.is_terminal:
        yield tell_lines
        return

    def drawn() -> RenderableType:
        return _drawn(last[-1], datetime.now(UTC)) if last else Text("")

    # Drawn anew even without a change: ages go on.
    with Live(console=console, get_renderable=drawn, refresh_per_second=4) as live:

        def tell_live(answer: Answer) -> None:
            last[:] = [answer]
            live.refresh()

        yield tell_live


def _drawn(answer: Answer, now: datetime) -> RenderableType:
    bar = ProgressBar(total=max(answer.total, 1), completed=answer.updated if answer.total else 1, width=40)
    progress = Table.grid(padding=(0, 1))
    progress.add_row(bar, f"{answer.updated}/{answer.total}")
    return Group(_heading(answer, now), progress, _targets(answer, now))


# -- all -------------------------------------------------------------------------------------------------------------


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """One of many."""

    namespace: str
    name: str
    kind: str
    version: str
    since: str
    targets: str
    ready: str
    outcome: Outcome
    reason: str
    pin: str
    paused: bool


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """What `status` without a name tells."""

    namespace: str
    """Empty: all."""
    configs: list[Row]
    """What needs attention first."""


async def find_all(api: Api, namespace: str) -> Overview:
    """All of a namespace; empty: of the cluster.

    Raises:
        Refused: they are not known, or may not be listed.
    """
    found: list[Config] = []
    try:
        async for page in api.list_pages(path_of(PATH, namespace), item=Config):
            found += page.items
    except ApiError as error:
        if error.status == 403:
            raise forbidden("list", namespace) from None
        if error.status == 404:
            raise not_installed() from None
        raise
    return Overview(namespace, overview(found))


def overview(configs: list[Config]) -> list[Row]:
    """Those that failed first, then those on their way."""
    order = (Outcome.FAILED, Outcome.GOING, Outcome.THROUGH)
    rows = []
    for config in configs:
        ready = condition(config, "Ready")
        rows.append(
            Row(
                namespace=config.metadata.namespace,
                name=config.metadata.name,
                kind=config.spec.kind,
                version=config.status.current_version,
                since=config.status.current_since or "",
                targets=config.status.targets_summary,
                ready=ready.status if ready else "",
                outcome=outcome(config),
                reason=ready.reason if ready else "",
                pin=config.spec.pin,
                paused=config.spec.rollout.paused,
            )
        )
    return sorted(rows, key=lambda row: (order.index(row.outcome), row.namespace, row.name))


def show_all(answer: Overview, console: Console, now: datetime) -> None:
    """As a table."""
    if not answer.configs:
        where = (
            f"in namespace {answer.namespace}: -A shows all namespaces" if answer.namespace else "anywhere"
        )
        console.print(f"no VersionedConfigs {where}", highlight=False)
        return
    columns = ["NAME", "KIND", "VERSION", "SINCE", "TARGETS", "READY", "REASON", ""]
    rows = table(*columns if answer.namespace else ["NAMESPACE", *columns])
    for row in answer.configs:
        style = {Outcome.FAILED: "red", Outcome.THROUGH: "green"}.get(row.outcome, "")
        steered = [word for word, true in (("pinned", row.pin), ("paused", row.paused)) if true]
        cells: list[str | Text] = [
            row.name,
            row.kind,
            row.version or "-",
            age(row.since, now),
            row.targets or "-",
            Text(row.ready or "-", style),
            row.reason or "-",
            ", ".join(steered),
        ]
        rows.add_row(*cells if answer.namespace else [row.namespace, *cells])
    console.print(rows)
