"""`python -m e2e.cluster up|status|down|build`."""

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from e2e.cluster import local, provide
from e2e.cluster.build import Progress
from e2e.cluster.errors import ClusterError

cli = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=str(__doc__))
console = Console(stderr=True)
Name = Annotated[str, typer.Option(help="Several clusters can run side by side.")]


@cli.command()
def up(
    name: Name = "default",
    nodes: Annotated[
        int | None, typer.Option(min=0, help="How many nodes; 3 for a new one.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Begin anew if it runs already.")] = False,
    port: Annotated[int, typer.Option(help="Of the API server; 0: any free one.")] = 0,
) -> None:
    """Start a cluster, or find it running. The first time its programs are built, which takes minutes."""
    running = local.find(name)
    if running is not None and not fresh and nodes not in (None, len(running.nodes)):
        raise ClusterError(
            f"{name} runs with {len(running.nodes)} nodes: leave --nodes out to go on with it, or begin anew with --fresh"
        )
    if nodes is None:
        nodes = len(running.nodes) if running is not None and not fresh else 3
    with _progress() as progress:
        cluster = local.up(name, nodes, fresh=fresh, port=port, progress=progress)
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    print(f"export PATH={shlex.quote(str(cluster.programs))}:$PATH")


@cli.command()
def build() -> None:
    """Build the programs of the local cluster, unless KUBECONFIG names another one or a Docker engine runs kind."""
    with _progress() as progress:
        provide.prepare(progress)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Lines with the time they took; a spinner beside them on a terminal."""
    started = time.monotonic()
    with console.status("") as status:

        def tell(message: str) -> None:
            status.update(message)
            console.print(f"{time.monotonic() - started:5.0f} s  {message}")

        yield tell


@cli.command()
def status(name: Name = "default") -> None:
    """Its processes and where its logs are; exits 1 if it does not run."""
    cluster = local.find(name)
    if cluster is None:
        start = f"no cluster named {name} runs; start it with: python -m e2e.cluster up --name {name}"
        console.print(start, soft_wrap=True)
        sys.exit(1)
    table = Table("process", "pid", "starts", "log")
    for process, state in cluster.processes().items():
        table.add_row(process, str(state["pid"]), str(state["starts"]), f"{process}.log")
    Console().print(table)
    print(f"logs: {cluster.folder}")


@cli.command()
def down(
    name: Name = "default", every: Annotated[bool, typer.Option("--all", help="Every cluster.")] = False
) -> None:
    """End a cluster and all that belongs to it; the built programs stay in the cache."""
    for each in local.names() if every else [name]:
        console.print(f"{each} is down" if local.stop(each) else f"no cluster named {each}")


def main() -> None:
    """Entry point: errors a person can mend end with 2 and without a traceback."""
    # As Ctrl-C does: what `up` has started so far is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cli()
    except ClusterError as error:
        # Logs hold brackets, which are no markup, and one line stays one for whoever searches it.
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
