"""Explain a result, then draw it as text or HTML."""
