"""One module per parallel dimension."""
