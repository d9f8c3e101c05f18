"""Enumeration, the rules table and the restrictions of a search."""
