"""
MongoDB through pymongo, green: clients, limits, errors.

:func:`open` is the public face; the other modules are internal.
"""

from typing import TYPE_CHECKING, Any

from greenline.extras import needs_extra

if TYPE_CHECKING:
    from greenline.mongo.factory import OpenMongo, open  # noqa: A004

__all__ = ["OpenMongo", "open"]


def __getattr__(name: str) -> Any:
    # At the first use: the arbiter and the commands import modules of this package without it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("mongo"):
        from greenline.mongo import factory
    return getattr(factory, name)
