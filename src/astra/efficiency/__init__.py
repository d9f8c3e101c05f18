"""Operator shape and GPU to seconds and provenance; fitted offline, light to load."""
