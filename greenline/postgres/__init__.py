"""
Postgres through psycopg2, green: pool, limits, errors.

:func:`open` is the public face; the other modules are internal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenline.postgres.factory import OpenPostgres, open  # noqa: A004

__all__ = ["OpenPostgres", "open"]


def __getattr__(name: str) -> Any:
    # At the first use: the arbiter and the commands import modules of this package without it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from greenline.postgres import factory
    except ModuleNotFoundError as error:
        if error.name != "psycopg2":
            raise
        raise ModuleNotFoundError(
            "greenline.postgres needs psycopg2: pip install 'greenline[postgres]', or "
            "psycopg2-binary",
            name=error.name,
        ) from None
    return getattr(factory, name)
