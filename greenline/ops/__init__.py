"""
Show what the workers of an arbiter do: ``/metrics``, served by a process of its own.

Internal: applications import nothing from here. ``python -m greenline.ops`` is started by the
arbiter; it imports no gevent, no application and no driver of a database.
"""
