"""End to end: the local cluster, the scenarios on it, the demonstration."""
