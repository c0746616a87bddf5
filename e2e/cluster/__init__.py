"""A Kubernetes cluster without containers, for tests and demonstrations: real control plane, real kubelet code."""

from e2e.cluster import provide
from e2e.cluster.errors import ClusterError
from e2e.cluster.local import LocalCluster, up

__all__ = ["ClusterError", "LocalCluster", "provide", "up"]
