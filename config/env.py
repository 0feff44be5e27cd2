"""Text of an environment variable to a value; what is wrong names the variable."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from greenline.errors import ConfigError

OFF = "off"
ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")


@contextmanager
def named(variable: str) -> Iterator[None]:
    """Let an error about a value out of the block with the name of its *variable*."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from error


def text(environ: Mapping[str, str], name: str, default: str | None = None) -> str:
    """Return the variable; without a *default* it must be set. An empty one counts as unset."""
    value = environ.get(name, "").strip() or default
    if value is None:
        raise ConfigError(f"{name}: not set")
    return value


def url(environ: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str:
    """Return a URL of one of *schemes*. It may hold a password, so errors do not show it."""
    value = text(environ, name)
    if not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        raise ConfigError(f"{name}: must begin with {' or '.join(f'{s}://' for s in schemes)}")
    return value


def url_or_off(environ: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str | None:
    """Return a URL of one of *schemes*, None where the variable is ``OFF``."""
    return None if environ.get(name, "").strip() == OFF else url(environ, name, schemes)


def optional_integer(environ: Mapping[str, str], name: str, *, least: int, most: int) -> int | None:
    """Return a whole number from *least* to *most*, None where the variable is not set."""
    value = environ.get(name, "").strip()
    if not value:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
        raise ConfigError(f"{name}: {value!r} is not a whole number from {least} to {most}")
    return int(value)


def integer(environ: Mapping[str, str], name: str, default: int, *, least: int, most: int) -> int:
    """Return a whole number from *least* to *most*."""
    value = optional_integer(environ, name, least=least, most=most)
    return default if value is None else value


def optional_seconds(environ: Mapping[str, str], name: str, *, most: float) -> float | None:
    """Return seconds above 0 and up to *most*, None where the variable is not set."""
    value = environ.get(name, "").strip()
    if not value:
        return None
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value) or not 0 < float(value) <= most:
        raise ConfigError(f"{name}: {value!r} is not a number of seconds above 0, at most {most:g}")
    return float(value)


def seconds(environ: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    """Return seconds above 0 and up to *most*."""
    value = optional_seconds(environ, name, most=most)
    return default if value is None else value


def flag(environ: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return whether the variable is 1."""
    value = environ.get(name, "").strip()
    if value not in ("", "0", "1"):
        raise ConfigError(f"{name}: {value!r} is neither 0 nor 1")
    return value == "1" if value else default


def choice(environ: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    """Return one of *choices*, in whatever case it is written."""
    value = text(environ, name, default).lower()
    if value not in choices:
        raise ConfigError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return value


def origins(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return web origins (scheme://host, with a port or without), which commas divide; or ``*``."""
    given = [one.strip() for one in environ.get(name, "").split(",") if one.strip()]
    for one in given:
        if one != "*" and not ORIGIN.fullmatch(one):
            raise ConfigError(f"{name}: {one!r} is no origin like https://app.example:8443, nor *")
    return tuple(given)
