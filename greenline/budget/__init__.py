"""How many connections each worker may hold, computed from what the servers allow."""
