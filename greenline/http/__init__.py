"""One client's conversation: reading requests, calling nothing, writing responses."""
