"""Which versions of a VersionedConfig are kept, and what is told of each. Pure."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

import msgspec

from versionedconfig.model import Incarnation
from versionedconfig.resource import Status, Users, VersionStatus
from versionedconfig.versions.content import HASH_LENGTH


@dataclass(frozen=True, slots=True)
class History:
    """The kept versions as they go into the status, newest first, and what is to be done about the others."""

    kept: tuple[VersionStatus, ...]
    collectable: tuple[Incarnation, ...]
    """Unused for long enough."""
    mark: tuple[Incarnation, ...]
    """Not needed any more: the wait begins."""
    unmark: tuple[Incarnation, ...]
    """Needed again."""
    wait_seconds: float | None = None
    """Until the next one has been unused for long enough."""


def history(
    versions: Iterable[Incarnation],
    *,
    status: Status,
    needed: Collection[str],
    users: Callable[[Incarnation], Users],
    limit: int,
    unused_seconds: float,
    now: datetime,
) -> History:
    """Keep what is needed, and `limit` others, the newest first.

    A version that still carries the finalizer is not collected: protection lingers after the last holder, and so does its
    history.

    Args:
        status: as it is, with the present version; what it tells of each version is kept.
        needed: names that something refers to or is going to refer to: a pod, a workload's template, an old revision, a
            target that may go back to it, the pin. So is what people marked as needed.
        unused_seconds: how long a version stays after it is beyond the limit.
    """
    told = {version.name: version for version in status.versions}
    kept: list[VersionStatus] = []
    collectable: list[Incarnation] = []
    mark: list[Incarnation] = []
    unmark: list[Incarnation] = []
    waits: list[float] = []
    unused = 0
    newest_first = sorted(versions, key=lambda version: (version.created, version.key.name), reverse=True)
    for version in newest_first:
        name = version.key.name
        if version.deleting and name != status.current_version:
            continue
        spare = False
        if name == status.current_version:
            state = "Current"
        elif name in needed or version.kept:
            state = "InUse"
        else:
            state = "Unused"
            unused += 1
            spare = unused > limit and not (version.in_use or version.ignored)
        if spare:
            age = _age(version.unused_since, now)
            if (age or 0.0) >= unused_seconds:
                collectable.append(version)
                continue
            if age is None:
                mark.append(version)
            waits.append(unused_seconds - (age or 0.0))
        elif version.unused_since and not (version.ignored or version.deleting):
            unmark.append(version)
        entry = told.get(name, VersionStatus())
        kept.append(
            msgspec.structs.replace(
                entry,
                name=name,
                hash=name[-HASH_LENGTH:],
                created=version.created,
                state=state,
                users=users(version),
            )
        )
    # Made a moment ago, and not seen yet; or somebody deleted a version that has failed, and it is not to be tried again.
    for name, state in ((status.latest_version, "Unused"), (status.current_version, "Current")):
        entry = told.get(name, VersionStatus())
        if entry.name and all(version.name != name for version in kept):
            kept.insert(0, msgspec.structs.replace(entry, hash=name[-HASH_LENGTH:], state=state))
    return History(tuple(kept), tuple(collectable), tuple(mark), tuple(unmark), min(waits) if waits else None)


def _age(since: str, now: datetime) -> float | None:
    """Seconds; None where it is not told, or told in the future: then it counts from now."""
    try:
        age = (now - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError):
        return None
    return age if age >= 0 else None
