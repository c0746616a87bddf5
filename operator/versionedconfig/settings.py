"""All settings in one typed place. The command line fills it; nothing else reads the environment."""

from dataclasses import dataclass, field

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What people may set."""

    kubeconfig: str | None = None
    """Path; None: $KUBECONFIG, else the usual place, or the pod's ServiceAccount inside a cluster."""
    own_namespace: str = "versionedconfig-system"
    """Never written to: with ordered namespace deletion the operator's pod goes first and nobody would release."""
    linger_seconds: float = 60.0
    """How long the finalizer stays after the last holder went; spans the gap between two pods of a restart."""
    resync_seconds: float = 300.0
    """How often each VersionedConfig is looked at without an event."""
    metrics_port: int = 8080
    """Prometheus metrics; 0 turns them off."""
    health_port: int = 8081
    """/healthz; 0 turns it off."""
    system_namespaces: frozenset[str] = field(default=SYSTEM_NAMESPACES)

    def excluded(self, namespace: str) -> bool:
        """The operator never writes there."""
        return namespace in self.system_namespaces or namespace == self.own_namespace
