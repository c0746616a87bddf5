"""Which object refers to which config object, and the index over that. Pure: no I/O."""

from versionedconfig.references.catalogue import CATALOGUE, PodSpec, pod_references, referenced_names
from versionedconfig.references.holders import Holders, Kept, Referrer, Source
from versionedconfig.references.index import ReferenceIndex

__all__ = [
    "CATALOGUE",
    "Holders",
    "Kept",
    "PodSpec",
    "ReferenceIndex",
    "Referrer",
    "Source",
    "pod_references",
    "referenced_names",
]
