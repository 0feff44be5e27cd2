"""Admit requests to a worker: so many at once, the next ones in turn."""

# How many connections each pool of this worker's application has, by the pool's name.
pool_sizes: dict[str, int] = {}
