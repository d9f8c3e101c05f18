"""Model shape to layer operators: GEMM shapes, attention, bytes moved, tensors kept for backward."""
