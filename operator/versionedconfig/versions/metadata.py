"""Labels and annotations of a version: ours, and those of spec.metadata. Pure."""

import hashlib
import json
from collections.abc import Mapping

from versionedconfig.model import DIGEST_ANNOTATION, NAME_ANNOTATION, NAME_LABEL, PROPAGATED_ANNOTATION
from versionedconfig.resource import VersionMetadata

MAX_LABEL = 63


def version_metadata(owner: str, digest: str, wanted: VersionMetadata) -> dict[str, dict[str, str]]:
    """Labels and annotations for a new version."""
    annotations = {**wanted.annotations, NAME_ANNOTATION: owner, DIGEST_ANNOTATION: digest}
    if wanted.labels or wanted.annotations:
        annotations[PROPAGATED_ANNOTATION] = _keys(wanted)
    return {"labels": {**wanted.labels, NAME_LABEL: label_value(owner)}, "annotations": annotations}


def metadata_patch(
    wanted: VersionMetadata, *, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, dict[str, str | None]]:
    """A merge patch that brings an existing version's metadata in step; empty where it is.

    Only keys that came from spec.metadata before are taken away: other people's labels stay.
    """
    had = json.loads(annotations.get(PROPAGATED_ANNOTATION, "{}"))
    patch: dict[str, dict[str, str | None]] = {}
    for field, now, want in (
        ("labels", labels, wanted.labels),
        ("annotations", annotations, wanted.annotations),
    ):
        changes: dict[str, str | None] = {k: v for k, v in want.items() if now.get(k) != v}
        changes.update({key: None for key in had.get(field, ()) if key not in want and key in now})
        if changes:
            patch[field] = changes
    keys = _keys(wanted) if wanted.labels or wanted.annotations else None
    if annotations.get(PROPAGATED_ANNOTATION) != keys:
        patch.setdefault("annotations", {})[PROPAGATED_ANNOTATION] = keys
    return patch


def label_value(name: str) -> str:
    """The name, or where it is too long for a label value its beginning and a hash of the whole."""
    if len(name) <= MAX_LABEL:
        return name
    tail = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{name[: MAX_LABEL - 11].rstrip('-.')}-{tail}"


def _keys(wanted: VersionMetadata) -> str:
    return json.dumps(
        {"labels": sorted(wanted.labels), "annotations": sorted(wanted.annotations)}, separators=(",", ":")
    )
