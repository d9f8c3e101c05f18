"""Pipeline schedules as data, and the one simulator."""
