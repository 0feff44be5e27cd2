"""
A drop-in ``flask.Flask`` with less work for each request.

:class:`Flask`, :func:`adopt`, :func:`adopt_loaded`, :func:`environ` and :func:`json_response` are
the public face; the other modules are internal.
"""

import logging

from greenline.lazy import needs_extra

with needs_extra("flask"):
    from greenline.flask.compat import misfit

if (reason := misfit()) is None:
    from greenline.flask import conditional
    from greenline.flask.adoption import adopt, adopt_loaded
    from greenline.flask.app import Flask, environ
    from greenline.flask.response import json_response

    conditional.install()
else:
    logging.getLogger(__name__).warning("%s", reason)
    from greenline.flask.plain import PlainFlask as Flask  # type: ignore[assignment]
    from greenline.flask.plain import adopt, adopt_loaded, environ, json_response

__all__ = ["Flask", "adopt", "adopt_loaded", "environ", "json_response"]
