"""Pipeline schedules as data, their closed forms, the one simulator, and traces."""
