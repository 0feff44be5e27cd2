"""Adapt libraries that were written for threads to many greenlets."""
