"""How long to wait for further changes before content becomes a version. Pure."""

from dataclasses import dataclass

PATIENCE = 10
"""A source that never rests gets a version every so many settling times all the same."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Content that waits; times in seconds of a monotonic clock."""

    digest: str
    first: float
    """When the first change since the last version was seen."""
    last: float
    """When the content last changed."""


def seconds_to_wait(state: Settling, now: float, settle_seconds: float) -> float:
    """Seconds until the content counts as settled; 0 or less: now."""
    return min(state.last + settle_seconds, state.first + PATIENCE * settle_seconds) - now
