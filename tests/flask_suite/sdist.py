"""Flask's sdist, which holds its tests."""

from importlib.metadata import version
from pathlib import Path

from tests.helpers import sdist

PINNED = Path(__file__).with_name("sdist.txt")


def folder() -> Path:
    """Return the unpacked sdist of the Flask that is installed."""
    return sdist.folder("flask", version("flask"), PINNED)
