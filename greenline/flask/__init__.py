"""A drop-in ``flask.Flask`` that decides once what can be decided once."""

from greenline.flask.app import Flask, environ
from greenline.flask.response import json_response

__all__ = ["Flask", "environ", "json_response"]
