"""The command line."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console

from versionedconfig.kube.api import Api, ApiError, default_namespace
from versionedconfig.observability.logs import configure_logging
from versionedconfig.settings import Settings

cli = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Protects and versions immutable ConfigMaps and Secrets.",
)

T = TypeVar("T")

_defaults = Settings()


class Format(StrEnum):
    """How an answer is written."""

    TEXT = "text"
    JSON = "json"


class PodsDo(StrEnum):
    """What pods of a sort do."""

    HOLD = "hold"
    FOLLOW = "follow"


class Mode(StrEnum):
    """What the operator does."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        readable=True,
        help="Path; default: the pod's ServiceAccount, else $KUBECONFIG or ~/.kube/config.",
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="How the answer is written.")]


@cli.command()
def run(
    kubeconfig: Kubeconfig = None,
    own_namespace: Annotated[
        str,
        typer.Option(
            envvar="POD_NAMESPACE",
            help="The operator's own namespace: no object in it is protected, versioned or moved.",
        ),
    ] = _defaults.own_namespace,
    mode: Annotated[
        Mode,
        typer.Option(
            envvar="VERSIONEDCONFIG_MODE",
            help="observe: write nothing at all; log and count what would be protected and released.",
        ),
    ] = Mode.ENFORCE,
    protect_selector: Annotated[
        str,
        typer.Option(
            envvar="VERSIONEDCONFIG_PROTECT_SELECTOR",
            help="Protect only objects with these labels, as in kubectl get -l. Versions of VersionedConfigs always are.",
        ),
    ] = "",
    protect_namespace: Annotated[
        list[str] | None,
        typer.Option(
            envvar="VERSIONEDCONFIG_PROTECT_NAMESPACES",
            help="Protect only in this namespace; may be repeated.",
        ),
    ] = None,
    hold: Annotated[
        list[str] | None,
        typer.Option(
            envvar="VERSIONEDCONFIG_HOLD",
            help="A further kind that keeps protection on, like ingresses.networking.k8s.io; may be repeated. The "
            "operator needs the right to list and watch it.",
        ),
    ] = None,
    finished_pods: Annotated[
        PodsDo,
        typer.Option(
            envvar="VERSIONEDCONFIG_FINISHED_PODS", help="Whether pods that have ended keep protection on."
        ),
    ] = PodsDo.FOLLOW,
    pending_pods: Annotated[
        PodsDo,
        typer.Option(
            envvar="VERSIONEDCONFIG_PENDING_PODS", help="Whether pods without a node keep protection on."
        ),
    ] = PodsDo.HOLD,
    quarantine_seconds: Annotated[
        float,
        typer.Option(
            envvar="VERSIONEDCONFIG_QUARANTINE_SECONDS",
            min=0,
            help="How long at most a force-deleted pod keeps protection on while its node is not heard of.",
        ),
    ] = _defaults.quarantine_seconds,
    linger_seconds: Annotated[
        float,
        typer.Option(
            envvar="VERSIONEDCONFIG_LINGER_SECONDS", min=0, help="How long protection outlives the last user."
        ),
    ] = _defaults.linger_seconds,
    unused_seconds: Annotated[
        float,
        typer.Option(
            envvar="VERSIONEDCONFIG_UNUSED_SECONDS",
            min=0,
            help="How long a version stays that nothing needs any more and that is beyond its historyLimit.",
        ),
    ] = _defaults.unused_seconds,
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
    from versionedconfig.projection import holder_sources
    from versionedconfig.references.selector import parse_selector

    configure_logging()
    try:
        selector = parse_selector(protect_selector)
        holder_sources(hold or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    settings = Settings(
        kubeconfig=_text(kubeconfig),
        own_namespace=own_namespace,
        observe=mode is Mode.OBSERVE,
        selector=selector,
        namespaces=frozenset(protect_namespace or ()),
        hold=tuple(hold or ()),
        finished_pods_hold=finished_pods is PodsDo.HOLD,
        pending_pods_hold=pending_pods is PodsDo.HOLD,
        quarantine_seconds=quarantine_seconds,
        linger_seconds=linger_seconds,
        unused_seconds=unused_seconds,
        resync_seconds=resync_seconds,
        metrics_port=metrics_port,
        health_port=health_port,
    )
    try:
        app.run(settings)
    except Exception as error:
        logging.getLogger("versionedconfig").critical("stopped: %s", error)
        sys.exit(1)


@cli.command()
def refs(
    kind: Annotated[str, typer.Argument(help="configmap or secret")],
    name: Annotated[str, typer.Argument(help="Its name.")],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Its namespace; default: the kubeconfig's.")
    ] = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Who refers to a ConfigMap or Secret, from which field, holding or following."""
    from versionedconfig.commands import refs as command
    from versionedconfig.model import ConfigKey

    kinds = {"cm": "ConfigMap", "configmap": "ConfigMap", "configmaps": "ConfigMap"}
    kinds |= {"secret": "Secret", "secrets": "Secret"}
    if kind.lower() not in kinds:
        raise typer.BadParameter(f"{kind!r} is neither configmap nor secret")
    key = ConfigKey(kinds[kind.lower()], namespace or default_namespace(_text(kubeconfig)), name)
    answer = _ask(kubeconfig, lambda api: command.find(api, key))
    _write(answer, output, command.show)


@cli.command()
def scan(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Look at this one only; default: all.")
    ] = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Audit a cluster, reading only: names reused under running pods, objects without protection, and what invites it."""
    from versionedconfig.commands import scan as command

    report = _ask(kubeconfig, lambda api: command.scan(api, namespace))
    _write(report, output, command.show)


@cli.command()
def uninstall(
    policies: Annotated[bool, typer.Option("--policies", help="Delete the admission policies too.")] = False,
    crds: Annotated[
        bool,
        typer.Option(
            "--crds", help="Delete the CRDs too, and with them every VersionedConfig; versions stay."
        ),
    ] = False,
    own_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Where the operator's Deployment is.")
    ] = _defaults.own_namespace,
    deployment: Annotated[str, typer.Option(help="The operator's Deployment.")] = "versionedconfig",
    wait_seconds: Annotated[float, typer.Option(min=0, help="How long the operator may take to end.")] = 120,
    kubeconfig: Kubeconfig = None,
) -> None:
    """End the operator and take its finalizer off every object. Can be interrupted and run again.

    The operator's Deployment is scaled to 0, and the policy that guards the finalizer is unbound: both would stand in the way.
    """
    from versionedconfig.commands import uninstall as command

    _ask(
        kubeconfig,
        lambda api: command.uninstall(
            api, own_namespace, deployment, policies=policies, crds=crds, wait_seconds=wait_seconds, say=_say
        ),
    )


def _ask(kubeconfig: Path | None, question: Callable[[Api], Awaitable[T]]) -> T:
    """One connection for one question; what goes wrong is told in one line."""

    async def connected() -> T:
        api = await Api.connect(_text(kubeconfig))
        try:
            return await question(api)
        finally:
            await api.close()

    try:
        return asyncio.run(connected())
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        hint = ""
        if isinstance(error, ApiError) and error.status == 403:
            hint = ": your rights do not suffice; see manifests/uninstall/rbac.yaml or the README"
        _say(f"error: {' '.join(str(error).split())}{hint}")
        sys.exit(1)


def _say(message: str) -> None:
    """One line to a person, as it is."""
    Console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)


def _write(answer: T, output: Format, show: Callable[[T, Console], None]) -> None:
    if output is Format.JSON:
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        show(answer, Console(soft_wrap=not sys.stdout.isatty()))


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def main() -> None:
    """Entry point of the `versionedconfig` command."""
    # kopf reads VersionedConfigs with Python's own decoder, which recurses; the API server stores up to 10,000 levels.
    sys.setrecursionlimit(60_000)
    cli()


if __name__ == "__main__":
    main()
