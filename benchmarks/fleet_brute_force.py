"""How often the fleet planner's answer is the best there is, by an independent brute force over reported times.

Run: python benchmarks/fleet_brute_force.py [--cases 1000] [--first 0] [--save]. Every case is a small random fleet (one
to three pools of one to four GPUs), a small model and a small batch. The brute force knows nothing of the search: it
writes strategies as text in plain loops, every plain strategy of every part of a pool for every share of the batch,
every pair and triple of groups whose shares add up, and every pipeline over pools (orders, splits of the layers,
tensor-parallel degrees, recompute), and asks ``astra.estimate`` for each. ``--save`` writes
benchmarks/results/<date>_fleet_brute_force.json, which is tracked.
"""
