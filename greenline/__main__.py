"""
``python -m greenline``: the console script where the package is not installed.

Internal: it is run, not imported.
"""

from greenline.cli import main

main(prog_name="greenline")
