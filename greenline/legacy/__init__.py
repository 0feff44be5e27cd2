"""
Adapt libraries that were written for threads to many greenlets.

Internal: applications import nothing from here.
"""
