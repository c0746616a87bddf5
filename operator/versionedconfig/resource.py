"""The VersionedConfig resource as the operator reads and writes it. Pure.

The structs follow crds/versionedconfigs.yaml. Their repr is masked: a spec may carry what people keep secret.
"""

from typing import Final

import msgspec

from versionedconfig.model import API_VERSION, GROUP
from versionedconfig.references.selector import IN, Requirement, Selector, matches
from versionedconfig.workload import Workload

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


class Expression(_Struct, frozen=True):
    """One of matchExpressions."""

    key: str
    operator: str
    values: list[str] = []


class LabelSelector(_Struct, frozen=True):
    """metav1.LabelSelector"""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []

    def requirements(self) -> Selector:
        """As one list."""
        return (
            *(Requirement(key, IN, (value,)) for key, value in self.match_labels.items()),
            *(Requirement(e.key, e.operator, tuple(e.values)) for e in self.match_expressions),
        )


class TargetRef(_Struct, frozen=True):
    """One workload by name, or several by label."""

    kind: str
    name: str = ""
    selector: LabelSelector | None = None

    def matches(self, workload: Workload) -> bool:
        """It means this one."""
        if workload.kind != self.kind:
            return False
        if self.selector is None:
            return workload.name == self.name
        return matches(self.selector.requirements(), dict(workload.labels))


class Rollout(_Struct, frozen=True):
    """How targets move to a new version; the meaning and defaults of each field stand in the CRD."""

    targets: list[TargetRef] = []
    max_concurrent: int | str = "25%"
    settle_seconds: int = 1
    progress_deadline_seconds: int = 600
    min_ready_seconds: int = 5
    on_failure: str = "Rollback"
    paused: bool = False

    def means(self, workload: Workload) -> bool:
        """The workload is a target, where it refers to this VersionedConfig. One that a controller owns is written by that
        controller, which would put the name back: only who lists it knows better."""
        if not self.targets:
            return not workload.controlled
        return any(target.matches(workload) for target in self.targets)


class SourceRef(_Struct, frozen=True):
    """An object to take content from."""

    kind: str
    name: str
    optional: bool = False
    keys: list[str] = []


class Alias(_Struct, frozen=True):
    """A mutable copy of the content under the logical name."""

    enabled: bool = False


class Spec(_Masked, frozen=True):
    """spec of a VersionedConfig."""

    kind: str = "ConfigMap"
    type: str = ""
    data: dict[str, str] = {}
    string_data: dict[str, str] = {}
    binary_data: dict[str, str] = {}
    from_: list[SourceRef] = msgspec.field(name="from", default_factory=list)
    metadata: VersionMetadata = VersionMetadata()
    rollout: Rollout = Rollout()
    pin: str = ""
    alias: Alias = Alias()
    history_limit: int = 10
    deletion_policy: str = "RetainInUse"


class Users(_Struct, frozen=True, omit_defaults=True):
    """Who refers to a version."""

    pods: int = 0
    revisions: int = 0
    workloads: list[str] = []


class VersionStatus(_Struct, frozen=True, omit_defaults=True):
    """One kept version."""

    name: str = ""
    hash: str = ""
    created: str = ""
    state: str = ""
    """Current, InUse or Unused"""
    since: str = ""
    cause: str = ""
    """SpecChange, SourceChange, Rollback, Pin or Unpin"""
    result: str = ""
    """Succeeded or Failed; empty while its rollout goes on."""
    message: str = ""
    users: Users = Users()


class TargetStatus(_Struct, frozen=True, omit_defaults=True):
    """One workload that uses this VersionedConfig."""

    kind: str = ""
    name: str = ""
    version: str = ""
    """What its template refers to now: a version, or the logical name; empty while a patch of ours is under way."""
    state: str = ""
    """See rollout/plan.py, State."""
    uid: str = ""
    """Of the workload: another one of the same name is another target."""
    from_revision: int = 0
    """The workload's revision when the current version became current: tells an undo from a target not yet moved."""
    previous: str = ""
    wanted: str = ""
    healthy_since: str = ""
    reverts: int = 0
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
    latest_version: str = ""
    latest_generation: int = 0
    stable_version: str = ""
    targets_summary: str = ""
    versions: list[VersionStatus] = []
    targets: list[TargetStatus] = []
    conditions: list[Condition] = []

    def version(self, name: str) -> VersionStatus:
        """What is told of that version."""
        return next((version for version in self.versions if version.name == name), VersionStatus(name))


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
