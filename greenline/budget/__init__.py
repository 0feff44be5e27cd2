"""
How many connections each worker may hold, computed from what the servers allow.

Internal: applications import nothing from here.
"""

# How many connections each pool of ours has in this worker, by the pool's name.
pool_sizes: dict[str, int] = {}
