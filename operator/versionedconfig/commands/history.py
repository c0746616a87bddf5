"""`versionedconfig history`: the kept versions, why each became current, how that ended, and who uses it."""

from datetime import datetime

import msgspec
from rich.console import Console
from rich.markup import escape

from versionedconfig.commands.configs import Config, Refused, hash_of, kept, marks, no_versions
from versionedconfig.commands.output import age, some, table


class Used(msgspec.Struct, frozen=True):
    """By whom; always whole, so that programs need no defaults."""

    pods: int
    revisions: int
    workloads: list[str]


class Version(msgspec.Struct, frozen=True, rename="camel"):
    """One kept version."""

    hash: str
    name: str
    marks: list[str]
    """current, latest, pinned"""
    state: str
    since: str
    """When it last became current; empty where it never did."""
    created: str
    cause: str
    result: str
    message: str
    users: Used


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What `history` tells."""

    kind: str
    namespace: str
    name: str
    pin: str
    versions: list[Version]
    """The one that became current last first."""


def told(config: Config) -> Answer:
    """From the status.

    Raises:
        Refused: there are no versions yet.
    """
    if not config.status.versions:
        raise Refused(no_versions(config))
    return Answer(
        kind=config.spec.kind,
        namespace=config.metadata.namespace,
        name=config.metadata.name,
        pin=config.spec.pin,
        versions=[
            Version(
                hash=hash_of(version),
                name=version.name,
                marks=marks(config, version),
                state=version.state,
                since=version.since,
                created=version.created,
                cause=version.cause,
                result=version.result,
                message=version.message,
                users=Used(version.users.pods, version.users.revisions, version.users.workloads),
            )
            for version in kept(config)
        ],
    )


def users_text(users: Used) -> str:
    """In a few words."""
    parts = [some(users.workloads)] if users.workloads else []
    parts += [
        f"{count} {word}" + ("" if count == 1 else "s")
        for count, word in ((users.pods, "pod"), (users.revisions, "old revision"))
        if count
    ]
    return ", ".join(parts) or "-"


def show(answer: Answer, console: Console, now: datetime) -> None:
    """As a table."""
    rows = table("HASH", "", "STATE", "SINCE", "CAUSE", "RESULT", "USERS")
    for version in answer.versions:
        rows.add_row(
            version.hash,
            ", ".join(version.marks),
            version.state,
            age(version.since, now) if version.since else f"(made {age(version.created, now)})",
            version.cause or "-",
            f"[red]{version.result}[/]" if version.result == "Failed" else version.result or "-",
            escape(users_text(version.users)),
        )
    console.print(rows)
    for version in answer.versions:
        if version.message:
            console.print(f"{version.hash}: {version.message}", highlight=False, markup=False)
    if answer.pin and not any("pinned" in version.marks for version in answer.versions):
        console.print(f"pinned to {answer.pin}, which is no kept version", highlight=False, style="yellow")
