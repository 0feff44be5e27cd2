"""What would block the hub in C, or would take it with it, kept away from it."""
