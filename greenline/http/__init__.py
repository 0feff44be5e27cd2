"""
The HTTP side of one client connection: read requests and write responses.

Internal: applications import nothing from here. The service imports ``proxy_headers``.
"""
