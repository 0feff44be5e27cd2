"""
Services on gevent's hub and its greenlets: deadlines, disconnects, blocking calls, asyncio.

``deadline.limit()``, ``deadline.remaining()`` and ``trace_context.headers()`` are the public face;
all else is internal.
The service imports ``patching``.
"""

from greenline import lazy

__all__ = ["deadline", "trace_context"]

__getattr__ = lazy.modules(__name__, __all__)
