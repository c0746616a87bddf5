"""Moving workloads from one version to another."""
