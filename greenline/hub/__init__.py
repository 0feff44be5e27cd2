"""
Services on gevent's hub and its greenlets: deadlines, disconnects, blocking calls, asyncio.

``deadline.limit()`` and ``deadline.remaining()`` are the public face; all else is internal.
"""

__all__ = ["deadline"]
