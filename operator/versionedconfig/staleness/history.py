"""What is known of one ConfigKey whose content may be an older one somewhere: its lives, and who used it where and when.

Pure data, no clock. A moment is seldom known exactly: events come late, and timestamps have whole seconds of other people's
clocks. So everything that happened has a span in which it did, and the judge (judge.py) asks what may have been the
case and what must have been.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

NEVER: Final = 1e11
"""Later than everything; seconds since the epoch. Infinity would be no JSON."""

EVER: Final = -NEVER
"""Before everything."""

NOTHING: Final = ""
"""An answer instead of an incarnation's uid: the object was not there. As a pin: none."""

ABSENCE: Final = "absence"
"""A pin on nothing: a read that meets the deletion of an immutable object can leave the cache empty for good."""


class Why(IntEnum):
    """Why an answer is possible, the weakest reason last."""

    CERTAIN = 0
    FOLLOWING = 1
    """The pod's volume is about to be brought up to date."""
    RACE = 2
    """Two things happened too close to each other to say which came first."""
    FLIP = 3
    """The object became immutable shortly before its end, or nobody is known to have read it while it was."""
    RESTARTED = 4
    """The kubelet restarted about then."""
    GONE = 5
    """A pod that is gone may have kept the old content in the node's cache."""
    TAKEN = 6
    """A pod was force-deleted, and the node may still run it."""
    CUT_OFF = 7
    """The node is not ready: what its kubelet does, and hears, is not known."""
    UNSEEN = 8
    """It happened before the operator looked, or while it did not."""


Answers = Mapping[str, Why]
"""uid of an incarnation, or NOTHING, to why it is possible."""


class Span(NamedTuple):
    """From when to when something may have happened, in seconds since the epoch: not before, not after."""

    earliest: float
    latest: float


NOT_YET: Final = Span(NEVER, NEVER)


def source_of(digest: str) -> str:
    """Only digests of one source can be compared."""
    return digest.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Life:
    """One incarnation of the key."""

    uid: str
    created: Span
    ended: Span = NOT_YET
    immutable: Span = NOT_YET
    """When it became so; some objects are created so."""
    digests: tuple[str, ...] = ()
    """Of every content that it had, as far as known, the last one last; empty where none is. `<source>:<digest>` where it
    means nothing beside those of another source."""
    also: str = ""
    """Another digest of the last content, of an earlier source."""

    @property
    def digest(self) -> str:
        """Of the content that it has now, or had last; empty where that is not known."""
        return self.digests[-1] if self.digests else ""

    def equals(self, other: "Life") -> set[bool]:
        """Whether contents that it had are the last one of the other: one of the two, or both where that is not known."""
        theirs = {one for one in (other.digest, other.also) if one}
        found: set[bool] = set()
        for digest in self.digests:
            ours = {digest, self.also} - {""} if digest == self.digest else {digest}
            if ours & theirs:
                found.add(True)
            elif {source_of(one) for one in ours} & {source_of(one) for one in theirs}:
                found.add(False)
            else:
                found |= {True, False}
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """A container ran from then to then."""

    started: Span
    ended: Span = NOT_YET
    took: Answers | None = None
    """What it took for its environment, where that was settled (judge.settle)."""
    mounted: Answers | None = None
    """The same of its subPath mounts."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod that takes the object's content when it starts, and keeps what it took."""

    name: str
    env: bool
    """An environment variable comes from the object."""
    sub_path: bool
    """A file or directory of the object's volume is mounted by itself (`subPath`)."""
    required: bool
    """It does not start without the object."""
    runs: tuple[Run, ...] = ()
    """In order; the last one may go on. Earlier ones may be missing."""
    over: bool = False
    """It ran to its end and is not started again, as an init container."""

    @property
    def run(self) -> Run | None:
        """The one whose content it has now."""
        return self.runs[-1] if self.runs else None


@dataclass(frozen=True, slots=True)
class Use:
    """A pod on a node that names the object, so that the node's kubelet counts it (watch_based_manager.go, AddReference)."""

    pod: str
    """uid"""
    name: str
    bound: Span
    """To the node."""
    set_up: float = NEVER
    """By when the kubelet had certainly registered the pod, and had certainly read what it reads at the start."""
    reads: bool = False
    """At every sync of the pod: a mounted volume or a pull secret."""
    follows: bool = False
    """A container sees the volume's files change."""
    pulls: bool = False
    """As a pull secret."""
    required: bool = True
    """The volume cannot be set up without the object."""
    fragile: bool = False
    """The volume has more sources, or asks for keys: it may stay as it is though this object was read."""
    containers: tuple[Container, ...] = ()
    ending: Span = NOT_YET
    """Its end was asked for: it is not synced any more (pod_workers.go, SyncTerminatingPod)."""
    outlived: float = EVER
    """Pods that were set up by then were so before the end of this one was asked for: both were counted for a while."""
    released: Span = NOT_YET
    """The kubelet ceased to count it."""
    left: bool = False
    """Out of the API, after its kubelet had let it go."""
    taken: bool = False
    """Out of the API without its kubelet being asked."""
    held: Answers | None = None
    """What the volume's files held at the node's base."""


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """One node's part of it."""

    name: str
    uses: tuple[Use, ...] = ()
    restarts: tuple[Span, ...] = ()
    """Of its kubelet: it forgets everything."""
    cuts: tuple[Span, ...] = ()
    """From when to when it may have been without the API server."""
    since: float = EVER
    """What was before is settled (judge.settle)."""
    pins: Answers = field(default_factory=lambda: {NOTHING: Why.CERTAIN})
    """What the kubelet's cache may have been pinned to at that time; NOTHING for nothing."""


@dataclass(frozen=True, slots=True)
class History:
    """Of one key."""

    lives: tuple[Life, ...]
    """In order; the last one may be the live one."""
    nodes: tuple[NodeHistory, ...] = ()
    unseen: tuple[Span, ...] = ()
    """Nobody looked: any pod may have come and gone on any node that has uses."""

    @property
    def live(self) -> Life | None:
        """The incarnation that is there now."""
        last = self.lives[-1] if self.lives else None
        return last if last is not None and last.ended == NOT_YET else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How far apart things can be that belong together; seconds."""

    watch_lag: float = 2
    """From an event in the API server to its arrival here."""
    clock_skew: float = 1
    """Of a timestamp that another machine wrote, beyond its whole seconds."""
    start: float = 5
    """From the moment in which the kubelet reads for a container's environment to that which it reports as its start."""
    sync: float = 90
    """The longest time between two syncs of a running pod (kubelet syncFrequency, 60 s, and half of it as jitter)."""
    resync: float = 120
    """After a restart of the kubelet, until all its pods were synced once."""
    report: float = 5
    """From what happens to a container to the status that tells of it."""
    release: float = 60
    """After a pod has finished, until the kubelet does not count it any more: its volumes are unmounted first."""
    cache_lag: float = 2
    """From an event in the API server to the kubelet's cache."""
    silence: float = 60
    """Until a node whose kubelet is not heard of is called not ready (kube-controller-manager, 50 s)."""
