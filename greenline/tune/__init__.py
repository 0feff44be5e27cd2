"""
Measure an application under load, and compute its settings from the figures: ``greenline tune``
and ``greenline capacity``.

Internal: applications import nothing from here.
"""
