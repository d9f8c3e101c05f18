"""Measure the GPU here: products, attention, memory, launches, sustained load, collectives."""
