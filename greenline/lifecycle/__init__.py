"""
Start, check and close the resources of a worker, and drain its connections.

:class:`Resources`, which ``postgres.open()`` and ``mongo.open()`` take, and its :class:`Health` are
the public face; the modules are internal.
"""

from typing import TYPE_CHECKING

from greenline import lazy

if TYPE_CHECKING:
    from greenline.lifecycle.health import Health
    from greenline.lifecycle.resources import Resources

__all__ = ["Health", "Resources"]

__getattr__ = lazy.attributes(__name__, {"Health": "health", "Resources": "resources"})
