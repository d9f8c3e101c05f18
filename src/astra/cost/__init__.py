"""Compute, communication, memory and step time: columns in, columns out."""
