"""
Parse the text of environment variables.

Each function takes the environment (*environ*) and the name of the variable (*name*), which is part
of every error.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from greenline.errors import ConfigError

OFF = "off"
ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")


@contextmanager
def named(variable: str) -> Iterator[None]:
    """
    Add the name of a variable to a ConfigError that leaves the block.

    :raises ConfigError: the block raised one.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from error


def text(environ: Mapping[str, str], name: str, default: str | None = None) -> str:
    """
    Return the text of a variable; an empty one counts as unset.

    :param environ: the environment.
    :param name: of the variable, str.
    :param default: its value if it is not set, str; None requires it to be set. Default None.
    :raises ConfigError: it is not set and has no default.
    """
    value = environ.get(name, "").strip() or default
    if value is None:
        raise ConfigError(f"{name}: not set")
    return value


def url(environ: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str:
    """
    Return the URL in a variable that must be set.

    :param schemes: those that are allowed, such as ``postgresql``, tuple of str.
    :raises ConfigError: it is not set, or has another scheme.
    """
    value = text(environ, name)
    # The error does not show the value: a URL may contain a password.
    if not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        raise ConfigError(f"{name}: must begin with {' or '.join(f'{s}://' for s in schemes)}")
    return value


def url_or_off(environ: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str | None:
    """
    Return the URL in a variable as :func:`url` does, or None if its value is ``off``.

    :raises ConfigError: as :func:`url`.
    """
    return None if environ.get(name, "").strip() == OFF else url(environ, name, schemes)


def optional_integer(environ: Mapping[str, str], name: str, *, least: int, most: int) -> int | None:
    """
    Return the whole number in a variable, or None if it is not set.

    :param least: the smallest allowed number, int.
    :param most: the largest allowed number, int.
    :raises ConfigError: it is no whole number, or beyond these limits.
    """
    value = environ.get(name, "").strip()
    if not value:
        return None
    # int() alone would accept "1_000", "+1" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
        raise ConfigError(f"{name}: {value!r} is not a whole number from {least} to {most}")
    return int(value)


def integer(environ: Mapping[str, str], name: str, default: int, *, least: int, most: int) -> int:
    """
    Return the whole number in a variable, or *default* if it is not set.

    :param default: int; it is not checked against the limits.
    :raises ConfigError: as :func:`optional_integer`.
    """
    value = optional_integer(environ, name, least=least, most=most)
    return default if value is None else value


def optional_seconds(environ: Mapping[str, str], name: str, *, most: float) -> float | None:
    """
    Return the seconds in a variable, or None if it is not set.

    :param most: the largest allowed number of seconds, float; the smallest is above 0.
    :raises ConfigError: it is no decimal number, or beyond these limits.
    """
    value = environ.get(name, "").strip()
    if not value:
        return None
    # float() alone would accept "nan" and "inf".
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value) or not 0 < float(value) <= most:
        raise ConfigError(f"{name}: {value!r} is not a number of seconds above 0, at most {most:g}")
    return float(value)


def seconds(environ: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    """
    Return the seconds in a variable, or *default* if it is not set.

    :param default: seconds, float; not checked against the limits.
    :raises ConfigError: as :func:`optional_seconds`.
    """
    value = optional_seconds(environ, name, most=most)
    return default if value is None else value


def flag(environ: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """
    Return whether a variable is 1.

    :param default: the result if it is not set, bool. Default False.
    :raises ConfigError: it is neither 0 nor 1.
    """
    value = environ.get(name, "").strip()
    if value not in ("", "0", "1"):
        raise ConfigError(f"{name}: {value!r} is neither 0 nor 1")
    return value == "1" if value else default


def choice(environ: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    """
    Return the variable's value in lower case.

    :param default: the value if it is not set, str.
    :param choices: the allowed values in lower case, tuple of str.
    :raises ConfigError: it is none of *choices*.
    """
    value = text(environ, name, default).lower()
    if value not in choices:
        raise ConfigError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return value


def origins(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """
    Return a comma-separated list of web origins (``scheme://host`` with an optional port).

    :returns: the origins; ``*`` stands for any.
    :raises ConfigError: one is neither an origin nor ``*``.
    """
    # A browser sends an origin without a path, in lower case: another form would never match.
    given = [one.strip() for one in environ.get(name, "").split(",") if one.strip()]
    for one in given:
        if one != "*" and not ORIGIN.fullmatch(one):
            raise ConfigError(f"{name}: {one!r} is no origin like https://app.example:8443, nor *")
    return tuple(given)
