"""Plans to files for frameworks and launchers."""
