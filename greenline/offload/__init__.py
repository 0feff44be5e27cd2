"""Calls that block in C, kept away from the hub."""
