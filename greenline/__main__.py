"""``python -m greenline``: the console script where the package is not installed."""

from greenline.cli import main

main(prog_name="greenline")
