"""The vocabulary that every part of the operator shares.

Pure data: no I/O, no kopf, no clock. The words are those of docs/architecture.md.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

GROUP: Final = "versionedconfig.io"
API_VERSION: Final = "v1alpha1"

IN_USE_FINALIZER: Final = f"{GROUP}/in-use"
"""Held on an incarnation while a holder refers to it."""

NAME_ANNOTATION: Final = f"{GROUP}/name"
"""On a version: `namespace/name` of the VersionedConfig it was made from. The namespace is in it so that a copy of a
version in another namespace is nobody's version there."""

ALIAS_ANNOTATION: Final = f"{GROUP}/alias"
"""On a mutable object that follows a VersionedConfig's content: `namespace/name` of it, and its own name is the same."""

NAME_LABEL: Final = f"{GROUP}/name"
"""The name for `kubectl get -l`; shortened when it exceeds a label value's 63 characters."""

DIGEST_ANNOTATION: Final = f"{GROUP}/sha256"
"""On a version: the whole SHA-256 of the content, in hex; its name carries 40 bits of it only."""

PROPAGATED_ANNOTATION: Final = f"{GROUP}/propagated"
"""On a version: which of its labels and annotations came from spec.metadata (their keys, JSON)."""

IGNORE_ANNOTATION: Final = f"{GROUP}/ignore"
"""`"true"` on a config object or a namespace: it is not looked after."""

RELEASE_ANNOTATION: Final = f"{GROUP}/release"
"""A reason, on a config object: break glass. Protection goes at once, and does not come back while it is there."""

QUARANTINE_ANNOTATION: Final = f"{GROUP}/quarantine"
"""On a protected object: force-deleted pods whose node may still run them (JSON; see protection/quarantine.py)."""

PROTECT_LABEL: Final = f"{GROUP}/protect"
"""`"true"` on a config object: it is protected where a use is only possible, not proven (see holders.py, Pattern)."""

ORDER_ANNOTATION: Final = f"{GROUP}/order"
"""A whole number, on a workload: those with a lower one move first, and the others wait until these are through; 0 if
it is not there."""

UNUSED_ANNOTATION: Final = f"{GROUP}/unused-since"
"""On a version that nothing needs any more: since when. Kept here so that a restart does not begin the wait anew."""

KEEP_ANNOTATION: Final = f"{GROUP}/keep"
"""Who needs the version though nothing refers to it; it is not collected while it is there. As a label: USER_LABEL."""

USER_LABEL: Final = f"{GROUP}/in-use-by"
"""The same for programs that read versions through the API, so that they find theirs with a selector."""

DELETION_ANNOTATION: Final = f"{GROUP}/deletion-policy"
"""On a version: spec.deletionPolicy where it is `Delete`, for the time when its VersionedConfig is gone."""

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


class WorkloadKey(NamedTuple):
    """Something with a pod template. Kinds of that sort have different names, whatever their group."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


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
    deleted: str = ""
    """deletionTimestamp as the API server writes it, or empty."""
    ignored: bool = False
    release: str = ""
    """Why somebody broke the glass, as RELEASE_ANNOTATION says, shortened."""
    quarantine: str = ""
    """QUARANTINE_ANNOTATION as it is."""
    owner: str = ""
    """Name of the VersionedConfig that it is a version of, or empty."""
    digest: str = ""
    """The version's SHA-256 as its annotation says, or empty."""
    unused_since: str = ""
    """UNUSED_ANNOTATION as it is."""
    alias: bool = False
    """It is the mutable copy of the current content of the VersionedConfig of its name."""
    kept: bool = False
    """KEEP_ANNOTATION or USER_LABEL is on it."""
    delete_with_owner: bool = False
    """DELETION_ANNOTATION says `Delete`."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of an immutable one, sorted."""
    created: str = ""
    """creationTimestamp as the API server writes it: RFC 3339, sortable as text."""
    written: str = ""
    """resource_version of a mutable one: its content, which is not kept, may differ from that of the version before."""
    fingerprint: bytes = b""
    """Of the content; equal for equal contents of one kind. A Secret's means nothing outside this process."""
    immutable_since: str = ""
    """When it was made immutable at the latest, as its managed fields say; empty where they do not."""

    @property
    def namespace(self) -> str:
        """The key's namespace."""
        return self.key.namespace

    @property
    def name(self) -> str:
        """The key's name."""
        return self.key.name

    @property
    def asked(self) -> bool:
        """It asks for protection by PROTECT_LABEL."""
        return (PROTECT_LABEL, "true") in self.labels


@dataclass(frozen=True, slots=True)
class Node:
    """What is kept of a node."""

    name: str
    uid: str
    resource_version: str
    boot_id: str
    ready: bool
    kubelet_version: str = ""
    endpoint: str = ""
    """Of its kubelet, as `10.0.0.7:10250`; empty where it tells none."""
    namespace: str = ""


def timestamp(moment: datetime) -> str:
    """As the API server writes times: RFC 3339 in UTC, to the second. `moment` is aware."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def is_key(text: str) -> bool:
    """A ConfigMap or Secret can have that key (apimachinery, IsConfigMapKey): it can be a file name in a pod."""
    return bool(_KEY.fullmatch(text)) and text != "." and not text.startswith("..")


_VERSION_NAME: Final = re.compile(r"([a-z0-9](?:[-.a-z0-9]{0,240}[a-z0-9])?)-[2456789bcdfghkmt]{10}")
"""A DNS-1123 subdomain, and the ten characters that kubectl's hash encoding can give."""


def owner_by_name(name: str) -> str:
    """Whose version an object of that name would be: `app` for `app-87m5g5hd76`; empty where it cannot be one."""
    match = _VERSION_NAME.fullmatch(name)
    return match.group(1) if match else ""


def owner_of(key: ConfigKey, immutable: bool, annotation: str) -> str:
    """The VersionedConfig that this object is a version of, or empty.

    Anybody can write an annotation, and what it names is read, written and deleted by us. So it alone proves nothing:
    immutability, namespace and name must be those of a version too.
    """
    owner = owner_by_name(key.name)
    ours = immutable and owner and annotation == f"{key.namespace}/{owner}"
    return owner if ours else ""


class Reference(NamedTuple):
    """One field that names a config object."""

    kind: str
    name: str
    path: tuple[str | int, ...]
    """From where the rules start, for pods and templates their pod spec, to the name, as for a JSON pointer."""
    optional: bool = False
    namespace: str = ""
    """Of the object; empty: the referrer's own."""
