"""How answers look in a terminal."""

from collections.abc import Iterable
from datetime import datetime

from rich.console import Console
from rich.table import Table


def table(*columns: str) -> Table:
    """Without lines; what is too long goes on below, so that nothing is cut."""
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def some(names: list[str], shown: int = 3) -> str:
    """The first names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def show_unseen(console: Console, reasons: Iterable[str]) -> None:
    """What could not be looked at."""
    for reason in reasons:
        console.print(f"[yellow]not looked at:[/] {reason}", highlight=False)


def age(moment: str, now: datetime) -> str:
    """How long ago, as short as kubectl has it: `45s`, `12m`, `3h`, `5d`; `-` where there is no such moment."""
    if not moment:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
    # Two units' worth of the smaller one: 90s is better to read than 1m.
    for size, unit, least in ((86400, "d", 2), (3600, "h", 2), (60, "m", 2)):
        if seconds >= least * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
