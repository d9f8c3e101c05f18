"""Layers over unequal stages: an exact problem by itself, on arrays alone."""
