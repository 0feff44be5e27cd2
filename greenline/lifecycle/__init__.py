"""What a process opens, checks and closes, and how it stops."""
