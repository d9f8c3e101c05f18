"""A web page and an HTTP API over the planner. Loaded by ``astra serve`` alone; needs the extra ``[serve]``."""
