"""`versionedconfig refs`: who refers to a ConfigMap or Secret, from which field, holding or following."""

import msgspec
from rich.console import Console
from rich.markup import escape

from versionedconfig.commands.output import show_unseen, table
from versionedconfig.commands.reading import Unseen, all_sources, items
from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.model import ConfigKey, Incarnation, ObjectKey
from versionedconfig.projection import CONFIG_MAPS, SECRETS, ConfigItem, api_path
from versionedconfig.references import Holders
from versionedconfig.references.rules import path_text
from versionedconfig.resource import PATH
from versionedconfig.settings import Settings


class Use(msgspec.Struct, frozen=True, order=True):
    """One field of one object that refers to it."""

    kind: str
    namespace: str
    name: str
    field: str
    holds: bool
    """It keeps protection on, as the operator is set by default."""
    optional: bool


class Answer(msgspec.Struct, omit_defaults=False, rename="camel"):
    """What `refs` found."""

    kind: str
    namespace: str
    name: str
    exists: bool
    immutable: bool
    protected: bool
    uses: list[Use]
    not_looked_at: list[str]
    certain: bool
    """Every pod could be looked at."""
    version: str
    """The current version of a VersionedConfig of that name, where there is one."""


async def find(api: Api, key: ConfigKey) -> Answer:
    """Read every kind of the catalogue live. Raises ApiError where the API server does not answer."""
    unseen = Unseen()
    life = await _incarnation(api, key)
    sources = await all_sources(api, unseen)
    holders = Holders({source.id: source.rules for source in sources})
    uses: list[Use] = []
    for source in sources:
        rules = source.rules
        selector = Settings().pod_selector if rules.resource == "pods" else ""
        elsewhere = source.crosses or rules.chooses is not None
        async for item in items(
            api, source, unseen, namespace=key.namespace, elsewhere=elsewhere, field_selector=selector
        ):
            kept = source.kept(item)
            holders.put(source.id, ObjectKey(kept.namespace, kept.name), kept)
            uses += [
                Use(rules.kind, kept.namespace, kept.name, path_text(ref.path), rules.holder, ref.optional)
                for ref in source.references(item)
                if (ref.kind, ref.namespace or kept.namespace, ref.name) == key
            ]
    # What a second object is needed to see.
    asked = life or Incarnation(key, "", "", immutable=True)
    joined = [
        (referrer, ".spec.paramRef" if referrer.kind.endswith("Binding") else "(by its class)", True)
        for referrer in holders.referrers(asked)
    ]
    joined += [
        (referrer, ".spec.paramRef (of any namespace: possible)", False)
        for referrer in holders.possible(asked)
    ]
    named = {(use.kind, use.namespace, use.name) for use in uses}
    for referrer, field, holds in joined:
        if referrer not in named:
            named.add(referrer)
            uses.append(Use(*referrer, field, holds, False))
    return Answer(
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        exists=life is not None,
        immutable=life is not None and life.immutable,
        protected=life is not None and life.in_use,
        # A rule may be about a kind of the catalogue.
        uses=sorted(set(uses), key=lambda use: (not use.holds, use)),
        not_looked_at=unseen.reasons,
        certain=not unseen.essential,
        version=await _current_version(api, key) if key.kind == "ConfigMap" else "",
    )


async def _incarnation(api: Api, key: ConfigKey) -> Incarnation | None:
    try:
        item = await api.get(api_path(key), type=ConfigItem)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return None
    return (CONFIG_MAPS if key.kind == "ConfigMap" else SECRETS).project(item)


class _Status(msgspec.Struct, rename="camel"):
    current_version: str = ""


class _VersionedConfig(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


async def _current_version(api: Api, key: ConfigKey) -> str:
    try:
        return (
            await api.get(path_of(PATH, key.namespace, key.name), type=_VersionedConfig)
        ).status.current_version
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return ""


def show(answer: Answer, console: Console) -> None:
    """As a table."""
    what = [] if answer.exists else ["[red]does not exist (or may not be read)[/]"]
    if answer.exists:
        what.append("immutable" if answer.immutable else "mutable")
        what.append("protected" if answer.protected else "not protected")
    console.print(f"{answer.kind} {answer.namespace}/{answer.name}: {', '.join(what)}", highlight=False)
    if answer.version:
        asked = f"refs {answer.kind.lower()} {answer.version} -n {answer.namespace}"
        console.print(
            f"A VersionedConfig has that name; ask for its current version: {asked}", highlight=False
        )
    if answer.uses:
        rows = table("KIND", "NAMESPACE", "NAME", "FIELD", "", "")
        for use in answer.uses:
            holds = "holds" if use.holds else "follows"
            optional = "optional" if use.optional else ""
            rows.add_row(use.kind, use.namespace, use.name, escape(use.field), holds, optional)
        console.print(rows)
    elif answer.certain:
        console.print("Nothing refers to it.")
    else:
        console.print("[yellow]Whether something refers to it cannot be told.[/]")
    show_unseen(console, answer.not_looked_at)
