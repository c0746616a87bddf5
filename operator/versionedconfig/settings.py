"""All settings in one typed place. The command line fills it; nothing else reads the environment."""

from dataclasses import dataclass, field

from versionedconfig.model import Incarnation
from versionedconfig.references.selector import Selector, matches

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What people may set."""

    kubeconfig: str | None = None
    """Path; None: $KUBECONFIG, else the usual place, or the pod's ServiceAccount inside a cluster."""
    own_namespace: str = "versionedconfig-system"
    """Never written to: with ordered namespace deletion the operator's pod goes first and nobody would release."""
    observe: bool = False
    """Write nothing, say what would be done."""
    selector: Selector = ()
    """Labels of the objects that are protected; versions of VersionedConfigs are in any case."""
    namespaces: frozenset[str] = frozenset()
    """Where objects are protected; everywhere if empty."""
    hold: tuple[str, ...] = ()
    """Kinds of the catalogue that hold beside Pods and cluster-scoped ones, as `ingresses.networking.k8s.io`."""
    finished_pods_hold: bool = False
    """Pods that have succeeded or failed hold until they are deleted."""
    pending_pods_hold: bool = True
    """Pods hold before they have a node."""
    quarantine_seconds: float = 3600.0
    """How long at most a force-deleted pod holds whose node is not heard of."""
    linger_seconds: float = 60.0
    """How long the finalizer stays after the last holder went; spans the gap between two pods of a restart."""
    replace_stuck_pods: bool = False
    """Delete a StatefulSet's pod that does not start and that its controller waits for before it goes on with a better
    template (kubernetes/kubernetes#67250)."""
    unused_seconds: float = 600.0
    """How long a version stays that nothing needs any more and that is beyond the history's limit."""
    resync_seconds: float = 300.0
    """How often each VersionedConfig is looked at without an event."""
    kubelet_sync_seconds: float = 60.0
    """The kubelets' syncFrequency: how often they bring volumes up to date."""
    kubelet_metrics: bool = False
    """Ask the kubelets of nodes where a name was reused when they were started; needs the right to get nodes/metrics."""
    metrics_port: int = 8080
    """Prometheus metrics; 0 turns them off."""
    health_port: int = 8081
    """/healthz; 0 turns it off."""
    system_namespaces: frozenset[str] = field(default=SYSTEM_NAMESPACES)

    @property
    def pod_selector(self) -> str:
        """Field selector of the pods that hold.

        A finished pod's containers never start again and the kubelet has dropped its references (kubelet.go,
        SyncTerminatedPod): to the mirror it is gone when it finishes. Lists that confirm a release use the same selector.
        """
        unfinished = () if self.finished_pods_hold else ("status.phase!=Succeeded", "status.phase!=Failed")
        scheduled = () if self.pending_pods_hold else ("spec.nodeName!=",)
        return ",".join((*unfinished, *scheduled))

    def looks_after(self, life: Incarnation) -> bool:
        """It is one of those to be protected."""
        if life.owner:
            return True
        if self.namespaces and life.namespace not in self.namespaces:
            return False
        return matches(self.selector, dict(life.labels))

    def excluded(self, namespace: str) -> bool:
        """The operator never writes there."""
        return namespace in self.system_namespaces or namespace == self.own_namespace
