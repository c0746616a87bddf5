"""How answers look in a terminal."""

from collections.abc import Iterable

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
