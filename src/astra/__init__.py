"""Astra: plan the training of large language models on the GPUs you have."""

from __future__ import annotations

__version__ = "0.1.0"
