"""The VersionedConfig resource as the operator reads and writes it. Pure: structs and what today's operator supports.

The structs follow crds/versionedconfigs.yaml. Their repr is masked: a spec may carry what people keep secret.
"""

from typing import Any, Final

import msgspec

from versionedconfig.model import API_VERSION, GROUP

KIND: Final = "VersionedConfig"
PLURAL: Final = "versionedconfigs"
PATH: Final = f"/apis/{GROUP}/{API_VERSION}/{PLURAL}"
"""Of the collection over all namespaces."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Masked(_Struct, frozen=True):
    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class VersionMetadata(_Struct, frozen=True):
    """Copied to every version."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Rollout(_Struct, frozen=True):
    """How targets move to a new version; the meaning and defaults of each field stand in the CRD."""

    targets: list[Any] = []
    max_concurrent: int | str = "25%"
    settle_seconds: int = 1
    progress_deadline_seconds: int = 600
    on_failure: str = "Pause"
    paused: bool = False


class Spec(_Masked, frozen=True):
    """spec of a VersionedConfig."""

    kind: str = "ConfigMap"
    type: str = ""
    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    from_: list[Any] = msgspec.field(name="from", default_factory=list)
    metadata: VersionMetadata = VersionMetadata()
    rollout: Rollout = Rollout()
    pin: str = ""
    history_limit: int = 10
    deletion_policy: str = "RetainInUse"


class VersionStatus(_Struct, frozen=True):
    """One kept version."""

    name: str = ""
    hash: str = ""
    created: str = ""
    state: str = ""
    """Current, InUse or Unused"""


class TargetStatus(_Struct, frozen=True, omit_defaults=True):
    """One workload that uses this VersionedConfig."""

    kind: str = ""
    name: str = ""
    version: str = ""
    """What its template refers to now: a version, or the logical name; empty while a patch of ours is under way."""
    state: str = ""
    """Updated, Updating, Waiting, Overridden, Failed or Paused"""
    from_revision: int = 0
    """The workload's revision when the current version became current: tells an undo from a target not yet moved."""
    since: str = ""
    message: str = ""


class Condition(_Struct, frozen=True):
    """metav1.Condition"""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Status(_Struct, frozen=True):
    """status of a VersionedConfig."""

    observed_generation: int = 0
    current_version: str = ""
    current_since: str | None = None
    targets_summary: str = ""
    versions: list[VersionStatus] = []
    targets: list[TargetStatus] = []
    conditions: list[Condition] = []


class Metadata(_Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resource_version: str
    generation: int = 1
    deletion_timestamp: str | None = None


class VersionedConfig(_Masked, frozen=True):
    """The whole resource, read live and dropped again: the operator keeps no content in memory."""

    metadata: Metadata
    spec: Spec
    status: Status = Status()


def unsupported(spec: Spec) -> tuple[str, ...]:
    """Fields that the schema has and this operator does not do yet, each with what to do instead. They are refused, never
    ignored."""
    found = []
    if spec.kind != "ConfigMap" or spec.type or spec.string_data:
        found.append(
            "kind: Secret (with type and stringData): leave it out, and use an immutable Secret of your own"
        )
    if spec.from_:
        found.append("from: put the content into data or binaryData")
    if spec.rollout.targets:
        found.append("rollout.targets: leave it out, and every Deployment that refers to the name is one")
    if spec.rollout.on_failure != "Pause":
        found.append(
            f"rollout.onFailure: {spec.rollout.on_failure}: leave it out, and a failure stops the rollout"
        )
    if spec.pin:
        found.append("pin: put the old content back, or use `kubectl rollout undo`")
    if spec.deletion_policy != "RetainInUse":
        found.append(
            f"deletionPolicy: {spec.deletion_policy}: leave it out, and unused versions go by themselves"
        )
    return tuple(found)


def max_concurrent(value: int | str, targets: int) -> int:
    """How many of the targets may be on the move at once: at least one, percentages rounded down.

    Raises:
        ValueError: neither a positive number nor a percentage.
    """
    text = str(value)
    number = int(text.removesuffix("%"))
    if number < 1:
        raise ValueError(f"rollout.maxConcurrent {text!r} is no positive number or percentage")
    return max(1, targets * number // 100) if text.endswith("%") else number
