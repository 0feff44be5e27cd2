"""What the embedded servers read from the environment, and where things lie in the checkout."""

import os
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]


class Variable(NamedTuple):
    """A variable of the environment: its name, its default and what it means."""

    name: str
    default: str
    meaning: str


GREENLINE_DATA = Variable(
    "GREENLINE_DATA", "var", "folder of the embedded servers' data, seen from the checkout"
)
VARIABLES = (GREENLINE_DATA,)

# Built once for the checkout, whatever GREENLINE_DATA says: a build takes a minute.
VAR = CHECKOUT / GREENLINE_DATA.default


def data_folder() -> Path:
    """Return the folder that ``GREENLINE_DATA`` names, absolute."""
    return CHECKOUT / (os.environ.get(GREENLINE_DATA.name) or GREENLINE_DATA.default)
