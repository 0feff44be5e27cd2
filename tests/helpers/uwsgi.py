"""Requests in uwsgi's own protocol."""

import struct


def packet(**variables: str) -> bytes:
    """Return a request with *variables*."""
    packed = b""
    for pair in {"SERVER_PROTOCOL": "HTTP/1.1", **variables}.items():
        for text in pair:
            packed += struct.pack("<H", len(text)) + text.encode()
    return struct.pack("<BHB", 0, len(packed), 0) + packed
