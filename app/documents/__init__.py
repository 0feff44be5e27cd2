"""Fill, copy, compare, export and import collections of MongoDB, for ``flask documents``."""
