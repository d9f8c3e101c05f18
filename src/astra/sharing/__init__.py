"""Shared fleets: several jobs on pools of GPUs; which GPUs each gets, and when."""
