"""`versionedconfig uninstall`: takes every finalizer off, so that nothing waits for an operator that is gone.

Can be interrupted and run again: it goes by what is there. Order matters: the operator first, which would put finalizers
back; then the guard, which would deny taking them off; then the finalizers, page by page, until a whole pass finds none.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from versionedconfig.kube.api import METADATA_ONLY_LIST, Api, ApiError, path_of
from versionedconfig.kube.writes import Outcome, remove_finalizer
from versionedconfig.model import GROUP, IN_USE_FINALIZER, QUARANTINE_ANNOTATION

WRITES_IN_FLIGHT: Final = 10
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
POLICIES: Final = (
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
)
GUARD_BINDING: Final = "versionedconfig-finalizer-guard"
GUARD_SECONDS: Final = 30.0
"""An API server goes on enforcing a policy for a moment after its binding is gone."""

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

Say = Callable[[str], None]

PUT_BACK_SECONDS: Final = 5.0
"""An operator that runs puts a finalizer back at once."""

PASSES: Final = 5
"""Over everything, until one finds nothing: what the operator did last may come late. Where objects that were freed come
back again and again, it runs somewhere else."""


class StillRunning(Exception):
    """The operator does not end."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    finalizers: list[str] = []
    annotations: dict[str, str] = {}


class _Item(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] = {}


class _DeploymentSpec(msgspec.Struct, frozen=True):
    selector: _Selector


class _Deployment(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _DeploymentSpec


async def uninstall(
    api: Api, namespace: str, deployment: str, *, policies: bool, crds: bool, wait_seconds: float, say: Say
) -> None:
    """Do it all.

    Raises:
        StillRunning: the operator's Deployment keeps pods longer than `wait_seconds`.
        ApiError: what was done stays done; run it again.
    """
    stopped = await _stop_operator(api, namespace, deployment, wait_seconds, say)
    await _delete(api, f"{ADMISSION}/validatingadmissionpolicybindings/{GUARD_BINDING}", say)
    freed = 0
    for _ in range(PASSES):
        try:
            seen, done = await _strip(api, say)
        except ApiError as error:
            if error.status != 410:  # the pages took too long, and the rest of them is of another time
                raise
            continue
        freed += done
        if not seen:
            break
    else:
        raise StillRunning(
            f"objects get their finalizer back after it was taken off ({freed} times by now): an operator runs somewhere else, "
            f"not as Deployment {deployment} in namespace {namespace}. End it, and run this again"
        )
    if not stopped:
        # Somewhere else one may run, which puts them back.
        await asyncio.sleep(PUT_BACK_SECONDS)
        if (await _strip(api, say))[0]:
            raise StillRunning(
                "objects got their finalizer back: an operator runs somewhere else. End it, and run this again"
            )
    say(f"{freed} finalizers taken off, none is left")
    if policies:
        for plural in POLICIES:
            for name in await _ours(api, f"{ADMISSION}/{plural}", "versionedconfig-"):
                await _delete(api, f"{ADMISSION}/{plural}/{name}", say)
    if crds:
        for name in await _ours(api, CRDS, "", f".{GROUP}"):
            await _delete(api, f"{CRDS}/{name}", say)


async def _stop_operator(api: Api, namespace: str, name: str, wait_seconds: float, say: Say) -> bool:
    """False: there is none where it should be."""
    deadline = time.monotonic() + wait_seconds
    path, pods_path = (
        path_of("/apis/apps/v1/deployments", namespace, name),
        path_of("/api/v1/pods", namespace),
    )
    told = False
    while True:
        try:
            if not told:
                await api.patch(path, {"spec": {"replicas": 0}}, kind="merge", type=msgspec.Raw)
                say(f"{name}: scaled to 0")
                told = True
            # Not its status: that does not count pods which are ending, and may still write.
            labels = (await api.get(path, type=_Deployment)).spec.selector.match_labels
            selector = ",".join(f"{key}={value}" for key, value in labels.items())
            pods = await api.list_page(
                pods_path, item=_Item, label_selector=selector, accept=METADATA_ONLY_LIST
            )
            left = len(pods.items)
        except ApiError as error:
            if error.status != 404:
                raise
            if not told:
                say(f"there is no Deployment {name} there: if the operator runs elsewhere, end it first")
            return told
        if not left:
            return True
        if time.monotonic() > deadline:
            raise StillRunning(
                f"the operator still has {left} pods after {wait_seconds:g} s: end them, and run this again"
            )
        await asyncio.sleep(0.5)


async def _strip(api: Api, say: Say) -> tuple[int, int]:
    """One pass over all objects: how many had the finalizer, and how many have it no more."""
    seen, freed = 0, 0
    for plural in ("configmaps", "secrets"):
        async for page in api.list_pages(f"/api/v1/{plural}", item=_Item, accept=METADATA_ONLY_LIST):
            ours = [item.metadata for item in page.items if IN_USE_FINALIZER in item.metadata.finalizers]
            for start in range(0, len(ours), WRITES_IN_FLIGHT):
                batch = ours[start : start + WRITES_IN_FLIGHT]
                outcomes = await asyncio.gather(*(_free(api, plural, meta) for meta in batch))
                freed += outcomes.count(Outcome.DONE)
            seen += len(ours)
            if ours:
                say(f"{plural}: {len(ours)} on this page")
    return seen, freed


async def _free(api: Api, plural: str, meta: _Metadata) -> Outcome:
    path = path_of(f"/api/v1/{plural}", meta.namespace, meta.name)
    annotation = QUARANTINE_ANNOTATION if QUARANTINE_ANNOTATION in meta.annotations else ""
    deadline = time.monotonic() + GUARD_SECONDS
    while True:
        try:
            return await remove_finalizer(api, path, meta.uid, IN_USE_FINALIZER, annotation)
        except ApiError as error:
            if GUARD_BINDING not in error.message or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


async def _ours(api: Api, path: str, prefix: str, suffix: str = "") -> list[str]:
    try:
        return [
            item.metadata.name
            async for page in api.list_pages(path, item=_Item, accept=METADATA_ONLY_LIST)
            for item in page.items
            if item.metadata.name.startswith(prefix) and item.metadata.name.endswith(suffix)
        ]
    except ApiError as error:
        if error.status != 404:  # the cluster is older than the kind
            raise
        return []


async def _delete(api: Api, path: str, say: Say) -> None:
    try:
        item = await api.get(path, type=_Item)
        await api.delete(path, uid=item.metadata.uid)
    except ApiError as error:
        if error.status != 404:
            raise
    else:
        say(f"{path.rpartition('/')[2]}: deleted")
