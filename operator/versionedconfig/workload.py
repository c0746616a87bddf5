"""What the operator keeps of a Deployment or ReplicaSet, and whether a Deployment is done rolling out. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from versionedconfig.model import ConfigKey, Reference


class Health(StrEnum):
    """Where a workload is on its way to its own template."""

    DONE = "Done"
    PROGRESSING = "Progressing"
    FAILED = "Failed"
    PAUSED = "Paused"


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment, without what rollouts do not look at."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    references: tuple[Reference, ...]
    """All references of its template; paths start at the pod spec."""
    revision: int
    """deployment.kubernetes.io/revision"""
    health: Health
    pending: int = 0
    """Generations that the deployment controller has not seen: `revision` may grow by as much on their account."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    """A ReplicaSet: one revision of its Deployment that a rollback can bring back."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    keys: tuple[ConfigKey, ...]
    """What its template refers to."""
    revision: int
    owner_uid: str
    """uid of the controlling Deployment, or empty"""


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """The numbers that decide about a Deployment's health, as spec and status give them."""

    generation: int
    observed_generation: int
    wanted: int
    total: int
    updated: int
    available: int
    paused: bool
    deadline_exceeded: bool
    """Its Progressing condition says ProgressDeadlineExceeded."""


def health(state: DeploymentState) -> Health:
    """As `kubectl rollout status` judges (kubectl pkg/polymorphichelpers/rollout_status.go), and paused ones apart:
    they never get done by themselves."""
    if state.paused:
        return Health.PAUSED
    if state.observed_generation < state.generation:
        return Health.PROGRESSING
    if state.deadline_exceeded:
        return Health.FAILED
    done = state.updated >= state.wanted and state.total <= state.updated and state.available >= state.updated
    return Health.DONE if done else Health.PROGRESSING
