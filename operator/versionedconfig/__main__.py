"""The command line."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import msgspec
import typer
from rich.console import Console

from versionedconfig.kube.api import Api, ApiError, default_namespace
from versionedconfig.observability.logs import configure_logging
from versionedconfig.settings import Settings

if TYPE_CHECKING:
    from versionedconfig.commands.configs import Config
    from versionedconfig.commands.steer import Step
    from versionedconfig.model import ObjectKey

WIDE = 10_000

LOOK, STEER, OPERATE = "Look", "Steer", "Operate"
"""How commands are grouped in --help."""

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
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="Its namespace; default: the kubeconfig's.")
]
Name = Annotated[str, typer.Argument(help="Name of the VersionedConfig.")]
VERSION_HELP = "a hash, the beginning of one, a version's name, current, latest or previous"


@cli.command(rich_help_panel=OPERATE)
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
    replace_stuck_pods: Annotated[
        bool,
        typer.Option(
            "--replace-stuck-pods",
            envvar="VERSIONEDCONFIG_REPLACE_STUCK_PODS",
            help="Delete a StatefulSet's pod that does not start when its template is better by now: its controller waits "
            "for it otherwise. Needs the right to delete pods; see manifests/components/replace-stuck-pods.",
        ),
    ] = False,
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
    kubelet_sync_seconds: Annotated[
        float,
        typer.Option(
            envvar="VERSIONEDCONFIG_KUBELET_SYNC_SECONDS",
            min=1,
            help="How often the kubelets bring volumes up to date: their syncFrequency.",
        ),
    ] = _defaults.kubelet_sync_seconds,
    kubelet_metrics: Annotated[
        bool,
        typer.Option(
            "--kubelet-metrics",
            envvar="VERSIONEDCONFIG_KUBELET_METRICS",
            help="Ask the kubelets of nodes where a name was reused when they were started: a restart that is not a "
            "node's is known from nowhere else. Needs the right to get nodes/metrics; see "
            "manifests/components/kubelet-metrics.",
        ),
    ] = False,
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
        replace_stuck_pods=replace_stuck_pods,
        unused_seconds=unused_seconds,
        resync_seconds=resync_seconds,
        kubelet_sync_seconds=kubelet_sync_seconds,
        kubelet_metrics=kubelet_metrics,
        metrics_port=metrics_port,
        health_port=health_port,
    )
    try:
        app.run(settings)
    except Exception as error:
        logging.getLogger("versionedconfig").critical("stopped: %s", error)
        sys.exit(1)


@cli.command(rich_help_panel=LOOK)
def status(
    name: Annotated[str, typer.Argument(help="Name of the VersionedConfig; all of them if left out.")] = "",
    namespace: Namespace = "",
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="All of the cluster; without a name only.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow one until its rollout is through or has failed.")
    ] = False,
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Where a rollout stands, what needs attention first.

    With --watch it is drawn live in a terminal, and a line for each change elsewhere (with -o json a line of JSON).

    Exit codes: 0; 1 after an error; with --watch 0 once it is Ready, 1 once it is Degraded or Stalled or its content's version failed.
    """
    from versionedconfig.commands import status as command

    if not name:
        if follow:
            raise typer.BadParameter("--watch needs a NAME")
        place = "" if all_namespaces else _namespace(namespace, kubeconfig)
        every = _ask(kubeconfig, lambda api: command.find_all(api, place))
        _write(every, output, partial(command.show_all, now=_now()))
        return
    if all_namespaces:
        raise typer.BadParameter("--all-namespaces goes without a NAME")
    key = _key(namespace, name, kubeconfig)
    if not follow:
        answer = _ask(kubeconfig, lambda api: command.find(api, key))
        _write(answer, output, partial(command.show, now=_now()))
        return

    async def watch(api: Api) -> command.Outcome:
        if output is Format.JSON:
            return await command.watch(api, key, _json_line)
        with command.drawing(_console()) as tell:
            return await command.watch(api, key, tell)

    sys.exit(0 if _ask(kubeconfig, watch) is command.Outcome.THROUGH else 1)


@cli.command(rich_help_panel=LOOK)
def history(
    name: Name, namespace: Namespace = "", output: Output = Format.TEXT, kubeconfig: Kubeconfig = None
) -> None:
    """The kept versions: since when each was current and why, how its rollout ended, and who uses it.

    The one that became current last comes first. SINCE is how long ago that was, or how long ago it was made where it never was.

    Exit codes: 0; 1 after an error.
    """
    from versionedconfig.commands import configs
    from versionedconfig.commands import history as command

    key = _key(namespace, name, kubeconfig)
    config = _ask(kubeconfig, lambda api: configs.read(api, key))
    try:
        answer = command.told(config)
    except configs.Refused as error:
        _fail(error)
    _write(answer, output, partial(command.show, now=_now()))


@cli.command(rich_help_panel=LOOK)
def diff(
    name: Name,
    start: Annotated[
        str, typer.Argument(metavar="FROM", help=f"{VERSION_HELP}; default: previous.".capitalize())
    ] = "",
    end: Annotated[str, typer.Argument(metavar="TO", help="The same; default: current.")] = "",
    namespace: Namespace = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """What changed from one version's content to another's, key by key.

    Of a Secret no value is shown: keys and sizes alone. It needs your right to get the versions, which are ConfigMaps or Secrets.

    Exit codes, as of kubectl diff: 0 no difference, 1 a difference, 2 an error.
    """
    from versionedconfig.commands import configs
    from versionedconfig.commands import diff as command

    key = _key(namespace, name, kubeconfig, code=2)

    async def find(api: Api) -> command.Answer:
        return await command.find(api, await configs.read(api, key), start, end)

    answer = _ask(kubeconfig, find, code=2)
    _write(answer, output, command.show)
    sys.exit(1 if answer.changes else 0)


@cli.command(rich_help_panel=STEER)
def pin(
    name: Name,
    version: Annotated[str, typer.Argument(metavar="HASH", help=f"{VERSION_HELP}.".capitalize())],
    namespace: Namespace = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Move all targets to a kept version, and keep them there whatever the content. Sets spec.pin.

    Exit codes: 0 it is so now, or was already; 1 an error, and nothing was written.
    """
    from versionedconfig.commands import steer

    _steer(name, namespace, output, kubeconfig, lambda config: steer.pin(config, version, _program()))


@cli.command(rich_help_panel=STEER)
def unpin(
    name: Name, namespace: Namespace = "", output: Output = Format.TEXT, kubeconfig: Kubeconfig = None
) -> None:
    """Follow the content again. Empties spec.pin.

    Exit codes: 0 it is so now, or was already; 1 an error, and nothing was written.
    """
    from versionedconfig.commands import steer

    _steer(name, namespace, output, kubeconfig, lambda config: steer.unpin(config, _program()))


@cli.command(rich_help_panel=STEER)
def rollback(
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            metavar="HASH",
            help=f"{VERSION_HELP}; default: the one that was current before and did not fail.".capitalize(),
        ),
    ] = "",
    namespace: Namespace = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Move all targets back to the version before, and keep them there until `unpin`. Sets spec.pin.

    Exit codes: 0 it is so now, or was already; 1 an error, and nothing was written.
    """
    from versionedconfig.commands import steer

    _steer(name, namespace, output, kubeconfig, lambda config: steer.rollback(config, to, _program()))


@cli.command(rich_help_panel=STEER)
def pause(
    name: Name, namespace: Namespace = "", output: Output = Format.TEXT, kubeconfig: Kubeconfig = None
) -> None:
    """Let no further target move; those on the move finish. Sets spec.rollout.paused.

    Exit codes: 0 it is so now, or was already; 1 an error, and nothing was written.
    """
    from versionedconfig.commands import steer

    _steer(name, namespace, output, kubeconfig, lambda config: steer.pause(config, _program()))


@cli.command(rich_help_panel=STEER)
def resume(
    name: Name, namespace: Namespace = "", output: Output = Format.TEXT, kubeconfig: Kubeconfig = None
) -> None:
    """Let targets move again after `pause`.

    Exit codes: 0 it is so now, or was already; 1 an error, and nothing was written.
    """
    from versionedconfig.commands import steer

    _steer(name, namespace, output, kubeconfig, steer.resume)


@cli.command(rich_help_panel=STEER)
def adopt(
    objects: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND/NAME",
            help="Workloads and what they refer to: deployment/web configmap/app-config secret/db. Workloads are deployments, "
            "statefulsets, daemonsets, cronjobs and replicasets of nobody's, by their short names too.",
        ),
    ],
    namespace: Namespace = "",
    write: Annotated[
        bool, typer.Option("--apply", help="Create the VersionedConfigs, instead of printing them.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="With --apply: follow them, as `status --watch`, until all are Ready."),
    ] = False,
    everyone: Annotated[
        bool,
        typer.Option(
            "--all", help="Move every workload that refers to an object, not only those named here."
        ),
    ] = False,
    by_reference: Annotated[
        bool | None,
        typer.Option(
            "--from/--inline",
            help="Take content by reference (spec.from), so that what writes the object goes on doing so; or copy it into "
            "the VersionedConfig, which shows it to whoever may read that. Default: a reference for Secrets, a copy for "
            "ConfigMaps.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(hidden=True)] = "",
    kubeconfig: Kubeconfig = None,
) -> None:
    """A VersionedConfig for a ConfigMap or Secret that is there, under its name, since that is what templates name.

    Prints manifests on stdout, fit for `kubectl apply -f -` and for Git, and on stderr what will follow: the versions, who
    is moved, how many pods restart (once), and what to know. With --apply it creates them; what is there already and says
    the same is left alone. Values of a Secret are shown with --inline alone.

    Exit codes: 0 printed or created, or nothing to do; 1 an error, or with --wait a rollout that failed; 2 wrong arguments.
    """
    from versionedconfig.commands import adopt as command
    from versionedconfig.commands import status as following
    from versionedconfig.commands.adoption import Options, Plan, parse
    from versionedconfig.commands.configs import Refused, not_installed
    from versionedconfig.model import ObjectKey

    if name:
        raise typer.BadParameter(
            "--name: a VersionedConfig has the name that pod templates refer to, so it must be that of the object"
        )
    if wait and not write:
        raise typer.BadParameter("--wait goes with --apply")
    try:
        workloads, found = parse(objects)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    options = Options(
        _namespace(namespace, kubeconfig), workloads, found, everyone, by_reference, program=_program()
    )

    async def plan_and_apply(api: Api) -> tuple[Plan, list[ObjectKey]]:
        made = await command.find(api, options)
        for line in command.told(made):
            _say(line)
        if made.problems:
            raise Refused("; ".join(made.problems))
        if write and not made.installed:
            raise not_installed()
        return made, await command.apply(api, made) if write else []

    made, created = _ask(kubeconfig, plan_and_apply)
    if not write:
        print(command.to_yaml(made.manifests), end="")
    for key in created:
        print(f"versionedconfig/{key.name} created", flush=True)
    if not wait:
        return

    async def follow(api: Api) -> bool:
        through = True
        for one in made.adoptions:
            key = ObjectKey(made.namespace, one.key.name)
            with following.drawing(_console()) as tell:
                through &= await following.watch(api, key, tell) is following.Outcome.THROUGH
        return through

    sys.exit(0 if _ask(kubeconfig, follow) else 1)


@cli.command(rich_help_panel=LOOK)
def refs(
    kind: Annotated[str, typer.Argument(help="configmap or secret")],
    name: Annotated[str, typer.Argument(help="Its name.")],
    namespace: Namespace = "",
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


@cli.command(rich_help_panel=LOOK)
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


@cli.command(rich_help_panel=OPERATE)
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


def _steer(
    name: str, namespace: str, output: Format, kubeconfig: Path | None, decide: "Callable[[Config], Step]"
) -> None:
    """One change of one field, and what was done."""
    from versionedconfig.commands import steer

    key = _key(namespace, name, kubeconfig)
    answer = _ask(kubeconfig, lambda api: steer.steer(api, key, decide))
    _write(answer, output, steer.show)


def _namespace(given: str, kubeconfig: Path | None) -> str:
    return given or default_namespace(_text(kubeconfig))


def _key(namespace: str, name: str, kubeconfig: Path | None, code: int = 1) -> "ObjectKey":
    from versionedconfig.commands.configs import Refused, key_of

    try:
        return key_of(_namespace(namespace, kubeconfig), name)
    except Refused as error:
        _fail(error, code)


def _ask(kubeconfig: Path | None, question: Callable[[Api], Awaitable[T]], code: int = 1) -> T:
    """One connection for one question; what goes wrong is told in one line, and ends the process with that code."""

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
        _fail(error, code)


def _fail(error: Exception, code: int = 1) -> NoReturn:
    """Say it in one line, and end."""
    hint = ""
    if isinstance(error, ApiError) and error.status == 403:
        hint = ": your rights do not suffice; see manifests/uninstall/rbac.yaml or the README"
    _say(f"error: {' '.join(str(error).split())}{hint}")
    sys.exit(code)


def _say(message: str) -> None:
    """One line to a person, as it is."""
    Console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)


def _write(answer: T, output: Format, show: Callable[[T, Console], None]) -> None:
    if output is Format.JSON:
        print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        show(answer, _console())


def _json_line(answer: object) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


def _console() -> Console:
    """Of the terminal. A pipe has no width: there a row of a table is a line."""
    return Console() if sys.stdout.isatty() else Console(soft_wrap=True, width=WIDE)


def _now() -> datetime:
    return datetime.now(UTC)


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def _program() -> str:
    """As people call it: kubectl finds its plugins by such a name."""
    return "kubectl versionedconfig" if Path(sys.argv[0]).name.startswith("kubectl-") else "versionedconfig"


def main() -> None:
    """Entry point of the `versionedconfig` command, and of `kubectl versionedconfig`."""
    # kopf reads VersionedConfigs with Python's own decoder, which recurses; the API server stores up to 10,000 levels.
    sys.setrecursionlimit(60_000)
    cli(prog_name=_program())


if __name__ == "__main__":
    main()
