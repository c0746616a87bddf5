"""Which version targets should have: the content's, the pinned one, or after a failure the one before. Pure."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from versionedconfig.resource import Status, VersionStatus


class Cause(StrEnum):
    """Why a version became current."""

    SPEC_CHANGE = "SpecChange"
    SOURCE_CHANGE = "SourceChange"
    ROLLBACK = "Rollback"
    PIN = "Pin"
    UNPIN = "Unpin"


SUCCEEDED = "Succeeded"
FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Choice:
    """A version that is to become current."""

    version: str
    cause: Cause


class NotKept(Exception):
    """The version to go to is not there."""


def choose(
    status: Status, *, latest: str, pinned: str, kept: Collection[str], spec_changed: bool
) -> Choice | None:
    """What is to become current; None: it stays as it is.

    Args:
        status: as it was written last; its latest version is that of the content before.
        latest: the version of the content as it is.
        pinned: name of the version that the pin means; empty without one.
        kept: names of the versions that exist.
        spec_changed: this VersionedConfig itself changed, not only a source.

    Raises:
        NotKept: says which hashes there are.
    """
    if pinned:
        if pinned not in kept:
            hashes = ", ".join(sorted(name.rpartition("-")[2] for name in kept if name)) or "none"
            raise NotKept(
                f"pin: no version with hash {pinned.rpartition('-')[2]} is kept; there are: {hashes}"
            )
        return Choice(pinned, Cause.PIN) if pinned != status.current_version else None
    was_pinned = status.version(status.current_version).cause == Cause.PIN
    if latest == status.current_version:
        # From the pin on it is there for its content's sake, and a failure is taken back.
        return Choice(latest, Cause.UNPIN) if was_pinned else None
    if latest != status.latest_version:
        return Choice(latest, Cause.SPEC_CHANGE if spec_changed else Cause.SOURCE_CHANGE)
    if status.version(latest).result == FAILED:
        # Not tried again until the content changes.
        if status.current_version in kept:
            return None
        if status.stable_version in kept and status.stable_version != latest:
            return Choice(status.stable_version, Cause.ROLLBACK)
        raise NotKept(f"{latest} has failed, and the version before it is gone: change the content")
    return Choice(latest, Cause.UNPIN if was_pinned else Cause.SPEC_CHANGE)


def promoted(status: Status, choice: Choice, *, latest: str, now: str) -> Status:
    """The status with that version current; `now` is a timestamp. Its entry is there from now on: history() would only
    find it when the mirror shows it."""
    entry = msgspec.structs.replace(
        status.version(choice.version), since=now, cause=choice.cause, result="", message=""
    )
    others = [version for version in status.versions if version.name != choice.version]
    return msgspec.structs.replace(
        status,
        current_version=choice.version,
        current_since=now,
        latest_version=latest,
        stable_version=status.stable_version if _goes_slowly(status, choice) else choice.version,
        versions=[entry, *others],
    )


def _goes_slowly(status: Status, choice: Choice) -> bool:
    """New workloads get the version before, until this one has proved itself."""
    return bool(status.stable_version) and choice.cause in (
        Cause.SPEC_CHANGE,
        Cause.SOURCE_CHANGE,
        Cause.UNPIN,
    )


def way_back(status: Status, kept: Collection[str]) -> str:
    """The version to go back to when the current one fails: what most targets had that moved; empty where there is none."""
    had = Counter(target.previous for target in status.targets if target.previous in kept)
    del had[status.current_version]
    if not had:
        return ""
    return max(had, key=lambda name: (had[name], name == status.stable_version, name))


def failed(status: Status, message: str) -> Status:
    """The status with the current version marked as failed."""
    return _with_result(status, FAILED, message)


def succeeded(status: Status) -> Status:
    """The status with the current version marked as through: new workloads get it too."""
    done = _with_result(status, SUCCEEDED, "")
    return msgspec.structs.replace(done, stable_version=status.current_version)


def _with_result(status: Status, result: str, message: str) -> Status:
    versions = [
        msgspec.structs.replace(version, result=result, message=message)
        if version.name == status.current_version
        else version
        for version in status.versions
    ]
    return msgspec.structs.replace(status, versions=versions)


def rolling_back(status: Status) -> bool:
    """The current version is there because another one failed."""
    return status.version(status.current_version).cause == Cause.ROLLBACK


def undoes_failure(status: Status) -> bool:
    """A failure of the current version is to be undone: nobody asked for this very version."""
    entry: VersionStatus = status.version(status.current_version)
    return entry.cause in (Cause.SPEC_CHANGE, Cause.SOURCE_CHANGE, Cause.UNPIN) and entry.result != SUCCEEDED
