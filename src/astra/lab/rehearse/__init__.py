"""Run one rank of a plan for real on one GPU, or count its memory without one."""
