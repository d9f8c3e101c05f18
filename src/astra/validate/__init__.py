"""Measure, fit and validate; offline."""
