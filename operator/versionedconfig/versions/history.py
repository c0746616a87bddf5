"""Which versions of a VersionedConfig are kept. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from versionedconfig.model import Incarnation
from versionedconfig.resource import VersionStatus
from versionedconfig.versions.content import HASH_LENGTH


@dataclass(frozen=True, slots=True)
class History:
    """The kept versions as they go into the status, newest first, and those that may be collected."""

    kept: tuple[VersionStatus, ...]
    collectable: tuple[Incarnation, ...]


def history(versions: Iterable[Incarnation], *, current: str, in_use: Collection[str], limit: int) -> History:
    """Keep the current version, those in use, and `limit` unused ones, the newest first.

    `in_use` are the names that a pod, a workload's template or a ReplicaSet refers to. A version that still carries
    the finalizer is not collected: protection lingers after the last holder, and so does its history.
    """
    kept: list[VersionStatus] = []
    collectable: list[Incarnation] = []
    unused = 0
    newest_first = sorted(versions, key=lambda version: (version.created, version.key.name), reverse=True)
    for version in newest_first:
        name = version.key.name
        if version.deleting and name != current:
            continue
        if name == current:
            state = "Current"
        elif name in in_use:
            state = "InUse"
        else:
            state = "Unused"
            unused += 1
            if unused > limit and not (version.in_use or version.ignored):
                collectable.append(version)
                continue
        kept.append(VersionStatus(name, name[-HASH_LENGTH:], version.created, state))
    return History(tuple(kept), tuple(collectable))
