"""One VersionedConfig as people look at it and steer it: read without its content, and its versions by the names that people
give them. All but the reading is pure."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from versionedconfig.commands.output import some
from versionedconfig.kube.api import METADATA_ONLY_LIST, Api, ApiError, path_of
from versionedconfig.model import ObjectKey
from versionedconfig.resource import PATH, Condition, Metadata, Rollout, Status, VersionStatus

WORDS: Final = ("current", "latest", "previous")
"""What a version may be called instead of its hash. None can be the beginning of a hash: those have few letters."""

_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_PREFIXES: Final = frozenset(
    {"vcfg", "versionedconfig", "versionedconfigs", "versionedconfig.versionedconfig.io"}
)


class Refused(Exception):
    """It cannot be answered or done. The message is one line that says what to do instead."""


class Wish(msgspec.Struct, frozen=True, rename="camel"):
    """Of the spec what people steer with; never its content."""

    kind: str = "ConfigMap"
    pin: str = ""
    rollout: Rollout = Rollout()


class Config(msgspec.Struct, frozen=True):
    """A VersionedConfig without its content."""

    metadata: Metadata
    spec: Wish = Wish()
    status: Status = Status()

    @property
    def observed(self) -> bool:
        """The status is about the spec as it is now."""
        return self.status.observed_generation == self.metadata.generation


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Item(msgspec.Struct, frozen=True):
    metadata: _Named


def key_of(namespace: str, text: str) -> ObjectKey:
    """From what somebody typed; `vcfg/app`, as kubectl has it, will do as well.

    Raises:
        Refused: one of them cannot be a name, and would make a path to something else.
    """
    prefix, _, name = text.rpartition("/")
    if prefix and prefix not in _PREFIXES:
        raise Refused(f"{text!r} is no VersionedConfig: give its name alone")
    for part in (namespace, name):
        if not _NAME.fullmatch(part):
            raise Refused(f"{part!r} cannot be a name: use lower-case letters, digits, '-' and '.'")
    return ObjectKey(namespace, name)


async def read(api: Api, key: ObjectKey) -> Config:
    """It, live.

    Raises:
        Refused: it is not there, or may not be read.
    """
    try:
        return await api.get(path_of(PATH, *key), type=Config)
    except ApiError as error:
        if error.status == 403:
            raise forbidden("get", key.namespace) from None
        if error.status != 404:
            raise
    raise Refused(absent(key, await _names(api, key)))


async def _names(api: Api, key: ObjectKey) -> list[str]:
    """Of all VersionedConfigs in the namespace; none where they may not be listed."""
    try:
        return [
            item.metadata.name
            async for page in api.list_pages(
                path_of(PATH, key.namespace), item=_Item, accept=METADATA_ONLY_LIST
            )
            for item in page.items
        ]
    except ApiError as error:
        if error.status == 404:
            raise not_installed() from None
        if error.status != 403:
            raise
        return []


def absent(key: ObjectKey, names: Sequence[str]) -> str:
    """That it is not there, and which are."""
    there = f"there are: {some(sorted(names), 5)}" if names else "-n names another namespace"
    return f"there is no VersionedConfig {key.name} in namespace {key.namespace}; {there}"


def not_installed() -> Refused:
    """The cluster does not know the kind."""
    return Refused(
        "this cluster does not know VersionedConfigs: choose another one with --kubeconfig or `kubectl config "
        "use-context`, or install them with `kubectl apply -k manifests/base`"
    )


def forbidden(verb: str, namespace: str, what: str = "versionedconfigs") -> Refused:
    """The user's own rights do not suffice."""
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    role = "the ClusterRole edit (or versionedconfig-edit)" if what == "versionedconfigs" else "a role"
    return Refused(f"you may not {verb} {what} {where}: ask for {role} that lets you")


def condition(config: Config, kind: str) -> Condition | None:
    """That condition, if it was written."""
    return next((found for found in config.status.conditions if found.type == kind), None)


def is_true(config: Config, kind: str) -> bool:
    """That condition holds."""
    found = condition(config, kind)
    return found is not None and found.status == "True"


def kept(config: Config) -> list[VersionStatus]:
    """Every version that exists, the one that became current last first; one that never did by its creation."""
    return sorted(
        config.status.versions,
        key=lambda version: (version.since or version.created, version.created),
        reverse=True,
    )


def hash_of(version: VersionStatus) -> str:
    """The end of its name."""
    return version.hash or version.name.rpartition("-")[2]


def marks(config: Config, version: VersionStatus) -> list[str]:
    """What it is at present: current, latest (it holds the content as it is), pinned."""
    found = {
        "current": version.name == config.status.current_version,
        "latest": version.name == config.status.latest_version,
        "pinned": hash_of(version) == config.spec.pin,
    }
    return [mark for mark, true in found.items() if true]


def previous(config: Config, *, sound: bool = False) -> VersionStatus | None:
    """The version that was current before the present one, of those that are kept; with `sound` one that did not fail."""
    for version in kept(config):
        failed = sound and version.result == "Failed"
        if version.since and version.name != config.status.current_version and not failed:
            return version
    return None


def resolve(config: Config, text: str) -> VersionStatus:
    """The kept version that somebody means: a hash or the beginning of one, a version's name, or one of WORDS.

    Raises:
        Refused: there is none, or more than one.
    """
    name = config.metadata.name
    versions = kept(config)
    if not versions:
        raise Refused(no_versions(config))
    if text in WORDS:
        found = [version for version in versions if _has_word(config, version, text)]
    else:
        start = text.removeprefix(f"{name}-")
        found = [version for version in versions if start and hash_of(version).startswith(start)]
    match found:
        case [only]:
            return only
        case []:
            raise Refused(f"{name} has no kept version {text!r}; there are: {listed(config)}")
        case _:
            hashes = ", ".join(map(hash_of, found))
            raise Refused(f"{text!r} is the beginning of {hashes}: give more characters")


def _has_word(config: Config, version: VersionStatus, word: str) -> bool:
    if word == "previous":
        before = previous(config)
        return before is not None and version.name == before.name
    return word in marks(config, version)


def listed(config: Config) -> str:
    """Every kept version in one line, with what it is."""
    told = []
    for version in kept(config):
        notes = marks(config, version) + (["failed"] if version.result == "Failed" else [])
        told.append(hash_of(version) + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(told)


def no_versions(config: Config) -> str:
    """That there are none yet, and why."""
    name = config.metadata.name
    for kind in ("Stalled", "Ready"):
        found = condition(config, kind)
        if found is not None and found.message and (kind == "Ready" or found.status == "True"):
            return f"{name} has no versions yet: {found.reason}: {found.message}"
    return (
        f"{name} has no versions yet, and no operator has looked at it: "
        "see that one runs, with `kubectl get pods -n versionedconfig-system`"
    )
