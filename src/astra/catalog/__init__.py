"""GPUs, node types, models, prices and runtimes as data with source and date."""
