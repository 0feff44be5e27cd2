"""
MongoDB through pymongo, green: clients, limits, errors.

:func:`open`, the :class:`OpenMongo` that it returns and :func:`pool_pymongo` are the public face;
the other modules are internal. The service imports ``client``, ``errors`` and ``options``.
"""

from typing import TYPE_CHECKING

from greenline import lazy

if TYPE_CHECKING:
    from greenline.mongo.factory import OpenMongo, open  # noqa: A004
    from greenline.mongo.transparent import pool_pymongo

__all__ = ["OpenMongo", "open", "pool_pymongo"]

# At the first use: the arbiter and the commands import modules of this package without it.
__getattr__ = lazy.attributes(
    __name__,
    {"OpenMongo": "factory", "open": "factory", "pool_pymongo": "transparent"},
    extra="mongo",
)
