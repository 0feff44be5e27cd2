"""The runtime's own variables: the only place in this package that reads the environment."""

import os
from typing import NamedTuple

from greenline.errors import ConfigError


class Variable(NamedTuple):
    """A variable of the environment: its name, its default and what it means."""

    name: str
    default: str
    meaning: str


PG_WAIT = Variable("GREENLINE_PG_WAIT", "greenline", "psycopg2's wait callback, or `psycogreen`")
VARIABLES = (PG_WAIT,)


def pg_wait() -> str:
    """
    Return whose wait callback psycopg2 gets.

    Raises:
        ConfigError: neither ``greenline`` nor ``psycogreen``.
    """
    value = os.environ.get(PG_WAIT.name, "").strip().lower() or PG_WAIT.default
    if value not in ("greenline", "psycogreen"):
        raise ConfigError(f"{PG_WAIT.name}: {value!r} is neither greenline nor psycogreen")
    return value
