"""What the operator keeps of workloads and their old revisions, and when a workload is through. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from versionedconfig.model import ConfigKey, Reference, WorkloadKey
from versionedconfig.references.demands import Demand


class Health(StrEnum):
    """Where a workload is on its way to its own template."""

    DONE = "Done"
    PROGRESSING = "Progressing"
    FAILED = "Failed"
    PAUSED = "Paused"
    MANUAL = "Manual"
    """Its pods get the template when somebody replaces them."""


DEPLOYMENT: Final = "Deployment"
STATEFUL_SET: Final = "StatefulSet"
DAEMON_SET: Final = "DaemonSet"
REPLICA_SET: Final = "ReplicaSet"
CRON_JOB: Final = "CronJob"
JOB: Final = "Job"
CONTROLLER_REVISION: Final = "ControllerRevision"

PATHS: Final[Mapping[str, str]] = {
    DEPLOYMENT: "/apis/apps/v1/deployments",
    STATEFUL_SET: "/apis/apps/v1/statefulsets",
    DAEMON_SET: "/apis/apps/v1/daemonsets",
    REPLICA_SET: "/apis/apps/v1/replicasets",
    CRON_JOB: "/apis/batch/v1/cronjobs",
}
"""Kinds that every cluster has, with their collection over all namespaces."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Something with a pod template that rollouts may change, without what they do not look at."""

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    references: tuple[Reference, ...]
    """All references of its template; paths start at the object."""
    health: Health
    demands: tuple[Demand, ...] = ()
    """What its template asks of what it refers to, beyond the name."""
    revision: int = 0
    """Of its template, where its kind counts them on the object (deployment.kubernetes.io/revision)."""
    pending: int = 0
    """Generations that its controller has not seen: its revision may grow by as much on their account."""
    running: bool = True
    """It wants pods now. What wants none cannot get unhealthy with a version."""
    controlled: bool = False
    """Another object owns it and writes it."""
    order: int = 0
    """ORDER_ANNOTATION"""
    labels: tuple[tuple[str, str], ...] = ()
    message: str = ""

    @property
    def key(self) -> WorkloadKey:
        """What it is known by."""
        return WorkloadKey(self.kind, self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Revision:
    """Something that follows a workload and is never changed: a ReplicaSet or ControllerRevision, which a rollback can
    bring back, or a Job that has not finished."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    keys: tuple[ConfigKey, ...]
    """What its template refers to."""
    revision: int
    owner_uid: str
    """uid of the controlling workload, or empty"""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What decides about a workload's health, as spec and status give it. Pods are counted."""

    kind: str
    generation: int
    observed_generation: int
    wanted: int
    total: int
    updated: int
    available: int
    partition: int = 0
    """Of a StatefulSet: pods with a lower ordinal keep the old template."""
    on_delete: bool = False
    """Pods are replaced when somebody deletes them."""
    paused: bool = False
    deadline_exceeded: bool = False
    """A Deployment's Progressing condition says ProgressDeadlineExceeded."""


def health(numbers: Numbers) -> Health:
    """As `kubectl rollout status` judges (kubectl pkg/polymorphichelpers/rollout_status.go). Apart from it are those that
    never get through by themselves: paused ones and OnDelete."""
    n = numbers
    if n.kind == CRON_JOB:
        # Its next Job gets the template; there is nothing to wait for.
        return Health.DONE
    if n.paused:
        return Health.PAUSED
    if n.observed_generation < n.generation:
        return Health.PROGRESSING
    if n.deadline_exceeded:
        return Health.FAILED
    if n.kind == REPLICA_SET:
        # Pods that are there keep the old template, whatever the numbers say: plan.py looks whether there are any.
        return Health.DONE if n.available >= n.wanted else Health.PROGRESSING
    if n.updated < max(0, n.wanted - n.partition):
        return Health.MANUAL if n.on_delete else Health.PROGRESSING
    if n.kind == DEPLOYMENT:
        done = n.total <= n.updated and n.available >= n.updated
    else:
        done = n.available >= n.wanted
    return Health.DONE if done else Health.PROGRESSING
