"""Labels and annotations of a version: ours, and those of spec.metadata. Pure."""

import hashlib
import json
from collections.abc import Mapping

import msgspec

from versionedconfig.model import (
    ALIAS_ANNOTATION,
    DELETION_ANNOTATION,
    DIGEST_ANNOTATION,
    NAME_ANNOTATION,
    NAME_LABEL,
    PROPAGATED_ANNOTATION,
    UNUSED_ANNOTATION,
    ObjectKey,
)
from versionedconfig.resource import Spec

MAX_LABEL = 63
DELETE = "Delete"
"""Of spec.deletionPolicy."""


def version_metadata(owner: ObjectKey, digest: str, spec: Spec) -> dict[str, dict[str, str]]:
    """Labels and annotations that a version has to have."""
    labels = {NAME_LABEL: label_value(owner.name)}
    return _metadata(spec, labels, {NAME_ANNOTATION: str(owner), DIGEST_ANNOTATION: digest})


def alias_metadata(owner: ObjectKey, spec: Spec) -> dict[str, dict[str, str]]:
    """Labels and annotations that the alias has to have. It is none of the versions, so that their label is not on it."""
    return _metadata(spec, {}, {ALIAS_ANNOTATION: str(owner)})


def _metadata(spec: Spec, labels: dict[str, str], own: dict[str, str]) -> dict[str, dict[str, str]]:
    wanted = spec.metadata
    annotations = {**wanted.annotations, **own}
    if spec.deletion_policy == DELETE:
        annotations[DELETION_ANNOTATION] = DELETE
    if wanted.labels or wanted.annotations:
        annotations[PROPAGATED_ANNOTATION] = json.dumps(
            {"labels": sorted(wanted.labels), "annotations": sorted(wanted.annotations)},
            separators=(",", ":"),
        )
    return {"labels": {**wanted.labels, **labels}, "annotations": annotations}


def metadata_patch(
    want: Mapping[str, Mapping[str, str]],
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, dict[str, str | None]]:
    """A merge patch that brings the metadata of an existing version or alias in step; empty where it is.

    Only keys that came from spec.metadata before are taken away: other people's labels stay.

    Args:
        want: as version_metadata or alias_metadata gives it.
    """
    had = _propagated(annotations.get(PROPAGATED_ANNOTATION, "{}"))
    patch: dict[str, dict[str, str | None]] = {}
    for field, now in (("labels", labels), ("annotations", annotations)):
        changes: dict[str, str | None] = {k: v for k, v in want[field].items() if now.get(k) != v}
        dropped = had.get(field, [])
        if field == "annotations":
            dropped = [*dropped, PROPAGATED_ANNOTATION, DELETION_ANNOTATION]
            if ALIAS_ANNOTATION in want[field]:  # whether a version is needed is not known here
                dropped.append(UNUSED_ANNOTATION)
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
