"""Force-deleted pods whose node may still run them. Pure.

`kubectl delete pod --force` takes a pod out of the API without asking its kubelet (k/k pkg/registry/core/pod/strategy.go,
grace period 0). On a node that is cut off its containers go on, and when the kubelet comes back it still serves what it had.
So such a pod goes on holding what it referred to, in an annotation of the object, since the memory of one process is not
enough.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from versionedconfig.model import Node

ALIVE_AFTER: Final = timedelta(seconds=90)
"""A node that is Ready so long after the deletion has heard of it: the node controller calls it NotReady when its kubelet
was silent for 50 s (kube-controller-manager --node-monitor-grace-period)."""

CLOCK_SKEW: Final = timedelta(seconds=60)

MOST: Final = 50
"""Entries kept: the annotation is for nodes that are lost, and an annotation has its limits."""


class Quarantine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One force-deleted pod, or several of the same node."""

    node: str
    boot_id: str
    since: datetime


def read(text: str) -> tuple[Quarantine, ...]:
    """The annotation; what is none (anybody can write it) quarantines nothing."""
    try:
        found = msgspec.json.decode(text, type=list[Quarantine]) if text else []
    except msgspec.MsgspecError:
        return ()
    return tuple(entry for entry in found if entry.since.tzinfo is not None)


def write(entries: Iterable[Quarantine]) -> str:
    """The annotation, the latest entry of each node alone."""
    latest: dict[str, Quarantine] = {}
    for entry in sorted(entries, key=lambda entry: entry.since):
        latest[entry.node] = entry
    kept = sorted(latest.values(), key=lambda entry: entry.since)[-MOST:]
    return msgspec.json.encode(kept).decode()


def active(
    entries: Iterable[Quarantine], node_of: Callable[[str], Node | None], limit_seconds: float, now: datetime
) -> list[Quarantine]:
    """Those that still hold: the node is there, has not booted since, was not seen alive long enough after, and the limit
    has not passed."""
    return [
        entry
        for entry in entries
        if (node := node_of(entry.node)) is not None
        and node.boot_id == entry.boot_id
        # Somebody else may have written the annotation, and a moment to come would hold until then.
        and timedelta(0) - CLOCK_SKEW <= now - entry.since < timedelta(seconds=limit_seconds)
        and not (node.ready and now - entry.since > ALIVE_AFTER)
    ]


def utc(moment: datetime) -> datetime:
    """To the second, as it is written."""
    return moment.astimezone(UTC).replace(microsecond=0)
