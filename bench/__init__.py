"""Benches: what runs, what it is compared with, and what came out."""
