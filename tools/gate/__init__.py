"""Two states of Astra on the same requests: which answers are equal, which moved, and which broke."""
