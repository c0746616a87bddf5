"""The vocabulary that every part of the operator shares.

Pure data: no I/O, no kopf, no clock. The words are those of docs/architecture.md.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

GROUP: Final = "versionedconfig.io"
API_VERSION: Final = "v1alpha1"

IN_USE_FINALIZER: Final = f"{GROUP}/in-use"
"""Held on an incarnation while a holder refers to it."""

NAME_ANNOTATION: Final = f"{GROUP}/name"
"""On a version: the full name of the VersionedConfig it was made from (up to 253 characters)."""

NAME_LABEL: Final = f"{GROUP}/name"
"""The same for `kubectl get -l`; shortened when the name exceeds a label value's 63 characters."""

DIGEST_ANNOTATION: Final = f"{GROUP}/sha256"
"""On a version: the whole SHA-256 of the content, in hex; its name carries 40 bits of it only."""

PROPAGATED_ANNOTATION: Final = f"{GROUP}/propagated"
"""On a version: which of its labels and annotations came from spec.metadata (their keys, JSON)."""

IGNORE_ANNOTATION: Final = f"{GROUP}/ignore"
"""`"true"` on a config object: the operator never writes to it."""

FIELD_MANAGER: Final = "versionedconfig"


class ConfigKey(NamedTuple):
    """What a reference points at. The uid is not part of it: the kubelet caches by name alone
    (watch_based_manager.go, objectKey), and that is the fault this project is about."""

    kind: str
    """`ConfigMap` or `Secret`"""
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name} in namespace {self.namespace}"


class ObjectKey(NamedTuple):
    """A namespaced object of a kind that the context knows; cluster-scoped ones have no namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a ConfigKey, without its content."""

    key: ConfigKey
    uid: str
    resource_version: str
    immutable: bool = False
    in_use: bool = False
    """Our finalizer is on it."""
    deleting: bool = False
    ignored: bool = False
    owner: str = ""
    """Name of the VersionedConfig that it is a version of, or empty."""
    digest: str = ""
    """The version's SHA-256 as its annotation says, or empty."""
    created: str = ""
    """creationTimestamp as the API server writes it: RFC 3339, sortable as text."""

    @property
    def namespace(self) -> str:
        """The key's namespace."""
        return self.key.namespace

    @property
    def name(self) -> str:
        """The key's name."""
        return self.key.name


class Reference(NamedTuple):
    """One field of a pod spec that names a config object of the same namespace."""

    kind: str
    name: str
    path: tuple[str | int, ...]
    """From the pod spec to the leaf that holds the name, as for a JSON pointer."""
    optional: bool = False
