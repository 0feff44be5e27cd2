"""The applications of ``bench.legacy``: what hosts and fills them, and the pins of each one."""
