"""The planner: objectives, ranking, and the functions behind the public API."""
