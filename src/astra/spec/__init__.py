"""Frozen inputs: model, cluster, workload, strategy, request."""
