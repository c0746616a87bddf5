"""Labels and annotations of a version: ours, and those of spec.metadata. Pure."""

import hashlib
import json
from collections.abc import Mapping

import msgspec

from versionedconfig.model import (
    DELETION_ANNOTATION,
    DIGEST_ANNOTATION,
    NAME_ANNOTATION,
    NAME_LABEL,
    PROPAGATED_ANNOTATION,
    ObjectKey,
)
from versionedconfig.resource import Spec

MAX_LABEL = 63
DELETE = "Delete"
"""Of spec.deletionPolicy."""


def version_metadata(owner: ObjectKey, digest: str, spec: Spec) -> dict[str, dict[str, str]]:
    """Labels and annotations that a version has to have."""
    wanted = spec.metadata
    annotations = {**wanted.annotations, NAME_ANNOTATION: str(owner), DIGEST_ANNOTATION: digest}
    if spec.deletion_policy == DELETE:
        annotations[DELETION_ANNOTATION] = DELETE
    if wanted.labels or wanted.annotations:
        annotations[PROPAGATED_ANNOTATION] = json.dumps(
            {"labels": sorted(wanted.labels), "annotations": sorted(wanted.annotations)},
            separators=(",", ":"),
        )
    return {"labels": {**wanted.labels, NAME_LABEL: label_value(owner.name)}, "annotations": annotations}


def metadata_patch(
    owner: ObjectKey,
    digest: str,
    spec: Spec,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, dict[str, str | None]]:
    """A merge patch that brings an existing version's metadata in step; empty where it is.

    Only keys that came from spec.metadata before are taken away: other people's labels stay.
    """
    want = version_metadata(owner, digest, spec)
    had = _propagated(annotations.get(PROPAGATED_ANNOTATION, "{}"))
    patch: dict[str, dict[str, str | None]] = {}
    for field, now in (("labels", labels), ("annotations", annotations)):
        changes: dict[str, str | None] = {k: v for k, v in want[field].items() if now.get(k) != v}
        dropped = had.get(field, [])
        if field == "annotations":
            dropped = [*dropped, PROPAGATED_ANNOTATION, DELETION_ANNOTATION]
        changes.update({key: None for key in dropped if key not in want[field] and key in now})
        if changes:
            patch[field] = changes
    return patch


def _propagated(text: str) -> dict[str, list[str]]:
    """The annotation's value; nothing where somebody spoilt it, since it is written anew anyway."""
    try:
        return msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError:
        return {}


def label_value(name: str) -> str:
    """The name, or where it is too long for a label value its beginning and a hash of the whole."""
    if len(name) <= MAX_LABEL:
        return name
    tail = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: MAX_LABEL - 11].rstrip('-.')}-{tail}"
