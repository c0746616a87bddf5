"""What to do about one incarnation's protection. Pure: state in, one decision out; the controller carries it out."""

from dataclasses import dataclass
from enum import Enum, auto

from versionedconfig.model import Incarnation
from versionedconfig.references import Referrer


class Do(Enum):
    """The controller's next step for one ConfigKey."""

    NOTHING = auto()
    ADD = auto()
    """Put the finalizer on."""
    LINGER = auto()
    """Unused: look again when the lingering time has passed."""
    VERIFY = auto()
    """Unused for long enough: ask a live list, then release."""
    WAIT = auto()
    """A force-deleted pod may still run: look again after a while."""
    BREAK = auto()
    """Somebody broke the glass: release at once, and tell."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the mirror knows about one incarnation at one moment."""

    incarnation: Incarnation
    held: bool
    """A holder refers to the key."""
    namespace_excluded: bool = False
    """A system namespace or the operator's own: never written to."""
    namespace_terminating: bool = False
    looked_after: bool = True
    """Neither its namespace nor a setting leaves it out."""
    quarantined: bool = False
    """A force-deleted pod that used it may still run on its node."""
    unused_seconds: float = 0.0
    """Since when, in seconds, no holder is known; counts from the start where a start found none."""


def decide(situation: Situation, linger_seconds: float) -> Do:
    """The next step. Releasing is never decided here: VERIFY leaves that to a live list (KEP-2639 and the in-tree
    pvc-protection controller do the same, since an index may lag behind the API server)."""
    incarnation = situation.incarnation
    if situation.namespace_excluded:
        return Do.NOTHING
    if not incarnation.in_use:
        # The API server refuses new finalizers on a terminating object
        # (apimachinery validation/objectmeta.go, ValidateObjectMetaAccessorUpdate), and a terminating namespace
        # must be able to end.
        protect = (
            situation.held
            and incarnation.immutable
            and not incarnation.deleting
            and not incarnation.ignored
            and not incarnation.release
            and situation.looked_after
            and not situation.namespace_terminating
        )
        return Do.ADD if protect else Do.NOTHING
    if incarnation.release:
        return Do.BREAK
    # An ignored object that we protected before is let go like any other: nobody else would.
    if situation.held:
        return Do.NOTHING
    if situation.quarantined and not situation.namespace_terminating:
        return Do.WAIT
    if situation.namespace_terminating or situation.unused_seconds >= linger_seconds:
        return Do.VERIFY
    return Do.LINGER


def blocked_message(holders: list[Referrer], shown: int = 5) -> str:
    """What the Event on an in-use object that somebody deleted says: pods first, by their name alone."""
    names = sorted(
        (holder.kind != "Pod", holder.name if holder.kind == "Pod" else str(holder)) for holder in holders
    )
    first = ", ".join(name for _, name in names[:shown])
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    pods = sum(holder.kind == "Pod" for holder in holders)
    waits = [f"{pods} pod{'s' if pods > 1 else ''}"] if pods else []
    if others := len(holders) - pods:
        waits.append(f"{others} {'other ' if pods else ''}object{'s' if others > 1 else ''}")
    return (
        f"Deletion waits for {' and '.join(waits)} that use{'s' if len(names) == 1 else ''} it: {first}{more}. The name "
        "stays taken until then; give changed content a new name."
    )
