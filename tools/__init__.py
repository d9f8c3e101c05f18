"""Programs for those who develop Astra: in the repository, not in the wheel. Run them from its root."""
