"""How long kernels take on a GPU: an operator's shape in, seconds and provenance out."""
