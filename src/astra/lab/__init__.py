"""Measure a GPU and rehearse one rank of a plan on it; the only place that may import torch."""
