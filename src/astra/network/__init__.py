"""How long messages take on a topology: seconds and provenance."""
