"""The command line."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from versionedconfig.observability.logs import configure_logging
from versionedconfig.settings import Settings

cli = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Protects, versions and reveals immutable ConfigMaps and Secrets.",
)

_defaults = Settings()


@cli.callback()
def _root() -> None:
    """A callback keeps `run` a subcommand while it is the only one."""


@cli.command()
def run(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Path; default: the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config.",
        ),
    ] = None,
    own_namespace: Annotated[
        str,
        typer.Option(
            envvar="POD_NAMESPACE",
            help="The operator's own namespace: no object in it is protected, versioned or moved.",
        ),
    ] = _defaults.own_namespace,
    linger_seconds: Annotated[
        float,
        typer.Option(
            envvar="VERSIONEDCONFIG_LINGER_SECONDS", min=0, help="How long protection outlives the last user."
        ),
    ] = _defaults.linger_seconds,
    resync_seconds: Annotated[
        float,
        typer.Option(
            envvar="VERSIONEDCONFIG_RESYNC_SECONDS",
            min=1,
            help="How often each VersionedConfig is looked at without an event.",
        ),
    ] = _defaults.resync_seconds,
    metrics_port: Annotated[
        int, typer.Option(envvar="VERSIONEDCONFIG_METRICS_PORT", help="Prometheus metrics; 0: none.")
    ] = _defaults.metrics_port,
    health_port: Annotated[
        int, typer.Option(envvar="VERSIONEDCONFIG_HEALTH_PORT", help="/healthz; 0: none.")
    ] = _defaults.health_port,
) -> None:
    """Run the operator until a signal comes."""
    from versionedconfig import app

    configure_logging()
    settings = Settings(
        kubeconfig=str(kubeconfig) if kubeconfig else None,
        own_namespace=own_namespace,
        linger_seconds=linger_seconds,
        resync_seconds=resync_seconds,
        metrics_port=metrics_port,
        health_port=health_port,
    )
    try:
        app.run(settings)
    except Exception as error:
        logging.getLogger("versionedconfig").critical("stopped: %s", error)
        sys.exit(1)


def main() -> None:
    """Entry point of the `versionedconfig` command."""
    cli()


if __name__ == "__main__":
    main()
