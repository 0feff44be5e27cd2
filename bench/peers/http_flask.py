"""All shapes from Flask as it is."""

from flask import Flask

from bench.peers.http_application import made

app = made(Flask)
