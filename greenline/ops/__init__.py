"""
Show what the workers of an arbiter do: ``/metrics`` and a page, served by a process of its own, and
the commands ``greenline top`` and ``greenline stacks``.

Internal: applications import nothing from here. ``python -m greenline.ops`` is started by the
arbiter; it imports no gevent, no application and no driver of a database.
"""
