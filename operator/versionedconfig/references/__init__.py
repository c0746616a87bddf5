"""Which object refers to which config object, and the index over that. Pure: no I/O."""

from versionedconfig.references.index import ReferenceIndex
from versionedconfig.references.podspec import PodSpec, pod_references, referenced_names

__all__ = ["PodSpec", "ReferenceIndex", "pod_references", "referenced_names"]
