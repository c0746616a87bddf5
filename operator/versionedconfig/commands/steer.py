"""`versionedconfig pin`, `unpin`, `rollback`, `pause` and `resume`: one field of the spec each. What to write, and what to
say, are pure; nothing is written if it is so already."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console

from versionedconfig.commands.configs import (
    Config,
    Refused,
    forbidden,
    hash_of,
    listed,
    no_versions,
    previous,
    read,
    resolve,
)
from versionedconfig.kube.api import Api, ApiError, path_of
from versionedconfig.model import ObjectKey
from versionedconfig.resource import PATH, VersionStatus

MANAGER: Final = "kubectl-versionedconfig"
"""Whose the fields are that these commands write: not the operator's, which writes the status."""


class Step(NamedTuple):
    """What is to be done."""

    spec: dict[str, Any]
    """A merge patch; empty: it is so already."""
    said: list[str]


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What was done."""

    namespace: str
    name: str
    changed: bool
    pin: str
    """As it is now."""
    paused: bool
    """As it is now."""
    said: list[str]


def pin(config: Config, text: str, program: str) -> Step:
    """To the version that somebody means.

    Raises:
        Refused: it is none of the kept ones.
    """
    return _pin(config, resolve(config, text), program)


def rollback(config: Config, text: str, program: str) -> Step:
    """To the version that somebody means; if none is named, to the one that was current before and did not fail.

    Raises:
        Refused: there is none.
    """
    if text:
        return _pin(config, resolve(config, text), program)
    if not config.status.versions:
        raise Refused(no_versions(config))
    version = previous(config, sound=True)
    if version is None:
        raise Refused(
            f"there is no earlier version of {config.metadata.name} that did not fail; "
            f"there are: {listed(config)}; name one with --to"
        )
    return _pin(config, version, program)


def _pin(config: Config, version: VersionStatus, program: str) -> Step:
    hash_ = hash_of(version)
    back = f"to follow the content again: {program} unpin {_arguments(config)}"
    if config.spec.pin == hash_:
        return Step({}, [f"pinned to {version.name} already", back])
    said = [f"pinned to {version.name}: every target goes to it and stays there, whatever the content"]
    if version.result == "Failed":
        said.append(f"its last rollout failed: {version.message or 'see the targets'}")
    return Step({"pin": hash_}, [*said, *_paused(config, program), back])


def unpin(config: Config, program: str) -> Step:
    """Back to the content."""
    if not config.spec.pin:
        return Step({}, ["not pinned: it follows its content already"])
    latest = config.status.latest_version
    goal = f": targets go to {latest}" if latest else ""
    if any(version.name == latest and version.result == "Failed" for version in config.status.versions):
        goal = f": {latest} holds it, which failed and is not tried again until the content changes"
    return Step({"pin": None}, [f"follows its content again{goal}", *_paused(config, program)])


def pause(config: Config, program: str) -> Step:
    """No further target moves."""
    back = f"to go on: {program} resume {_arguments(config)}"
    if config.spec.rollout.paused:
        return Step({}, ["paused already", back])
    said = "paused: targets on the move finish, no further one moves"
    return Step({"rollout": {"paused": True}}, [said, back])


def resume(config: Config) -> Step:
    """Targets move again."""
    if not config.spec.rollout.paused:
        return Step({}, ["not paused: nothing to resume"])
    return Step({"rollout": {"paused": False}}, ["resumed: targets move again"])


def _paused(config: Config, program: str) -> list[str]:
    if not config.spec.rollout.paused:
        return []
    return [f"its rollout is paused, no target moves before: {program} resume {_arguments(config)}"]


def _arguments(config: Config) -> str:
    return f"{config.metadata.name} -n {config.metadata.namespace}"


async def steer(api: Api, key: ObjectKey, decide: Callable[[Config], Step]) -> Answer:
    """Read it, decide, and write to that very object.

    Raises:
        Refused: it cannot be done; nothing was written.
    """
    config = await read(api, key)
    step = decide(config)
    if step.spec:
        config = await _write(api, key, config.metadata.uid, step.spec)
    return Answer(
        namespace=key.namespace,
        name=key.name,
        changed=bool(step.spec),
        pin=config.spec.pin,
        paused=config.spec.rollout.paused,
        said=step.said,
    )


async def _write(api: Api, key: ObjectKey, uid: str, spec: dict[str, Any]) -> Config:
    # The uid: somebody may have made another object of that name since it was read.
    body = {"metadata": {"uid": uid}, "spec": spec}
    try:
        return await api.patch(
            path_of(PATH, *key), body, kind="merge", type=Config, params={"fieldManager": MANAGER}
        )
    except ApiError as error:
        if error.status == 403:
            raise forbidden("patch", key.namespace) from None
        if error.status in (404, 409) or error.blames("metadata.uid"):
            raise Refused(
                f"{key.name} was deleted or replaced while this ran, and nothing was written: run it again"
            ) from None
        raise


def show(answer: Answer, console: Console) -> None:
    """In a few lines."""
    for number, line in enumerate(answer.said):
        console.print(
            f"{answer.name}: {line}" if not number else f"  {line}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
