"""The writes that more than one concern needs: our finalizer, and Events. Expected outcomes are values, not
exceptions. Knows the API's conventions for metadata and Events; decides nothing.
"""

import enum
import hashlib
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from versionedconfig.kube.api import METADATA_ONLY, Api, ApiError, path_of
from versionedconfig.model import timestamp

REPORTER: Final = "versionedconfig"


class Outcome(enum.Enum):
    DONE = "done"
    """The object is now as asked for, or was already."""
    GONE = "gone"
    """There is no object of that name."""
    REPLACED = "replaced"
    """The name belongs to another uid by now; nothing was written to it."""
    CONFLICT = "conflict"
    """The object changed since that resource version; look again."""
    TERMINATING = "terminating"
    """It is being deleted, and such an object takes no new finalizers."""


async def add_finalizer(api: Api, path: str, uid: str, finalizer: str) -> Outcome:
    """Merges with the finalizers of others; repeating it changes nothing."""
    return await _patch_metadata(api, path, {"uid": uid, "finalizers": [finalizer]})


async def remove_finalizer(api: Api, path: str, uid: str, finalizer: str, annotation: str = "") -> Outcome:
    """Takes away ours alone, with an annotation if one is named, from this incarnation whatever else has changed of it."""
    # No resourceVersion: it says nothing of who holds the object, and where others write to it all the time, a release
    # that needs it never comes through (seen with 80 writes a second).
    metadata: dict[str, object] = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}
    if annotation:
        metadata["annotations"] = {annotation: None}
    return await _patch_metadata(api, path, metadata)


async def annotate(api: Api, path: str, uid: str, resource_version: str, name: str, value: str) -> Outcome:
    """Sets one annotation, if the object is still as it was when that was decided."""
    metadata: dict[str, object] = {
        "uid": uid,
        "resourceVersion": resource_version,
        "annotations": {name: value},
    }
    return await _patch_metadata(api, path, metadata)


async def _patch_metadata(api: Api, path: str, metadata: dict[str, object]) -> Outcome:
    try:
        # The answer would hold the whole object, a Secret's data included; ask for its metadata and drop it.
        await api.patch(
            path, {"metadata": metadata}, kind="strategic", type=msgspec.Raw, accept=METADATA_ONLY
        )
    except ApiError as error:
        match error.status:
            case 404:
                return Outcome.GONE
            case 409:
                return Outcome.CONFLICT
            # ValidateObjectMetaAccessorUpdate (apimachinery pkg/api/validation/objectmeta.go): the uid is
            # immutable, and ValidateNoNewFinalizers on a terminating object. Both: another incarnation.
            case 422 if error.blames("metadata.uid"):
                return Outcome.REPLACED
            case 422 if error.blames("metadata.finalizers"):
                return Outcome.TERMINATING
            case _:
                raise
    return Outcome.DONE


class Regarding(NamedTuple):
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class _StoredEvent(msgspec.Struct, gc=False):
    message: str = ""
    count: int | None = None


async def upsert_event(
    api: Api,
    regarding: Regarding,
    *,
    reason: str,
    message: str,
    type: Literal["Normal", "Warning"] = "Normal",
    now: datetime,
) -> bool:
    """One Event per object and reason, with a name that follows from both; True if something was written.

    So a restart that comes to the same message writes nothing, where the usual random names would make a new
    Event each time. `now` is aware.
    """
    message = message if len(message) <= 1024 else message[:1023] + "…"  # the limit of events.k8s.io
    # Events about cluster-scoped objects live in `default` (k/k pkg/apis/core/validation/events.go).
    namespace = regarding.namespace or "default"
    path = path_of("/api/v1/events", namespace)
    digest = hashlib.sha256(f"{regarding.uid}/{reason}".encode()).hexdigest()[:16]
    name = f"{regarding.name[:200].rstrip('-.')}.{digest}"
    moment = timestamp(now)
    try:
        try:
            stored = await api.get(f"{path}/{name}", type=_StoredEvent)
            if stored.message == message:
                return False
            change = {
                "message": message,
                "type": type,
                "count": (stored.count or 0) + 1,
                "lastTimestamp": moment,
            }
            await api.patch(f"{path}/{name}", change, kind="merge", type=msgspec.Raw)
        except ApiError as error:
            if error.status != 404:  # never written, or the API server dropped it (--event-ttl, one hour)
                raise
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "apiVersion": regarding.api_version,
                    "kind": regarding.kind,
                    "namespace": regarding.namespace,
                    "name": regarding.name,
                    "uid": regarding.uid,
                },
                "type": type,
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": moment,
                "lastTimestamp": moment,
                "source": {"component": REPORTER},
                "reportingComponent": REPORTER,
                "reportingInstance": "",
            }
            await api.create(path, event, type=msgspec.Raw)
    except ApiError as error:
        # A namespace that goes away takes no new Events, and nobody is left to read them.
        if error.has_cause("NamespaceTerminating"):
            return False
        raise
    return True
