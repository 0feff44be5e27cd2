"""
MongoDB through pymongo, green: clients, limits, errors.

:func:`open` is the public face; the other modules are internal.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenline.mongo.factory import OpenMongo, open  # noqa: A004

__all__ = ["OpenMongo", "open"]


def __getattr__(name: str) -> Any:
    # At the first use: the arbiter and the commands import modules of this package without it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from greenline.mongo import factory
    except ModuleNotFoundError as error:
        if error.name != "pymongo":
            raise
        raise ModuleNotFoundError(
            "greenline.mongo needs pymongo: pip install 'greenline[mongo]'", name=error.name
        ) from None
    return getattr(factory, name)
