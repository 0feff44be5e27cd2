"""The same as ``http_flask``, with our Flask in place of Flask's."""

from bench.peers.http_application import made
from greenline.flask import Flask

app = made(Flask)
