"""Several pools: pipelines across them and groups beside one another."""
