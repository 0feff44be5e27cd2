"""
The undocumented names of Flask and Werkzeug that this package builds on, and whether they exist.

``_split_blueprint_path`` and ``_sentinel`` are compared with what Flask's own methods use;
``_cv_app`` and ``_cv_request`` hold its contexts. Of Werkzeug the attributes of rules, of the
matcher, of requests and of responses are used, which a sample shows.
"""

import inspect
import os
import sys
from collections.abc import Mapping
from importlib.metadata import version
from types import FunctionType
from typing import Any

import flask
from flask import ctx as flask_ctx
from flask.json.provider import DefaultJSONProvider
from werkzeug.datastructures import EnvironHeaders, ImmutableMultiDict
from werkzeug.routing import Map, MapAdapter, Rule
from werkzeug.sansio.request import Request as SansIORequest
from werkzeug.wrappers import Request

FLASK_SUPPORTED = ">=3.1.3,<3.2"
WERKZEUG_SUPPORTED = ">=3.1,<3.2"

MISSING = ""
# Ours do what these do, unless something has replaced them.
RAISE_ROUTING_EXCEPTION = getattr(flask.Flask, "raise_routing_exception", None)
FIND_ERROR_HANDLER = getattr(flask.Flask, "_find_error_handler", None)
try:
    from flask.globals import _cv_app, _cv_request
    from flask.helpers import _split_blueprint_path
    from flask.sansio.scaffold import _sentinel
except ImportError as error:
    MISSING = str(error)

# The methods that are overridden, with the parameters that they have in the supported versions.
FLASK_METHODS = {
    flask.Flask: {
        "ensure_sync": "func",
        "async_to_sync": "func",
        "app_context": "",
        "request_context": "environ",
        "wsgi_app": "environ start_response",
        "full_dispatch_request": "",
        "preprocess_request": "",
        "dispatch_request": "",
        "handle_http_exception": "e",
        "finalize_request": "rv from_error_handler",
        "make_response": "rv",
        "process_response": "response",
        "do_teardown_request": "exc",
        "do_teardown_appcontext": "exc",
    },
    getattr(flask_ctx, "AppContext", None): {"__init__": "app", "push": "", "pop": "exc"},
    getattr(flask_ctx, "RequestContext", None): {
        "__init__": "app environ request session",
        "match_request": "",
        "push": "",
        "pop": "exc",
    },
    DefaultJSONProvider: {
        "_prepare_response_obj": "args kwargs",
        "dumps": "obj kwargs",
        "loads": "s kwargs",
        "response": "args kwargs",
    },
}
WERKZEUG_METHODS = {
    MapAdapter: {
        "__init__": "map server_name script_name subdomain url_scheme path_info default_method "
        "query_args",
    },
    Request: {"__init__": "environ populate_request shallow"},
    SansIORequest: {
        "__init__": "method scheme server root_path path query_string headers remote_addr",
        "_parse_content_type": "",
    },
    EnvironHeaders: {"__init__": "environ"},
}
# All attributes of a new request.
REQUEST = {
    "method", "scheme", "server", "root_path", "path", "query_string", "headers", "remote_addr",
    "environ", "shallow",
}  # fmt: skip


def misfit() -> str | None:
    """
    Say why the fast application class cannot build on this Flask.

    :returns: a sentence that names the version, the reason and the supported versions; None where
        it can.
    """
    name, supported = "Flask", FLASK_SUPPORTED
    reason = MISSING or _other_method(FLASK_METHODS) or _other_session()
    if not reason:
        name, supported = "Werkzeug", WERKZEUG_SUPPORTED
        reason = _other_method(WERKZEUG_METHODS) or _other_attribute()
    if not reason:
        return None
    return (
        f"{name} {version(name)} is not one that greenline.flask builds on ({reason}): "
        f"applications run as on Flask itself; the supported versions are {name}{supported}"
    )


def replaced_method() -> str:
    """
    Name one of the overridden methods that is not the library's own any more.

    Monitoring agents replace such methods, and ours would bypass them.

    :returns: the method as ``Class.method``; empty if there is none.
    """
    owner: Any
    for owner, methods in (*FLASK_METHODS.items(), *WERKZEUG_METHODS.items()):
        folder = os.path.dirname(sys.modules[owner.__module__.partition(".")[0]].__file__ or "")
        for name in methods:
            method = inspect.getattr_static(owner, name)
            # A wrapper may have the name and the module of what it wraps, but not its file.
            if type(method) is not FunctionType or not method.__code__.co_filename.startswith(
                folder
            ):
                return f"{owner.__name__}.{name}"
    return ""


def _other_method(classes: Mapping[Any, Mapping[str, str]]) -> str:
    for owner, methods in classes.items():
        if owner is None:
            return "one of its contexts is gone"
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            if method is None:
                return f"{owner.__name__}.{name} is gone"
            parameters = inspect.signature(method).parameters
            # A monitoring agent may have wrapped it in a function of any arguments.
            is_wrapped = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
            if not is_wrapped and list(parameters)[1:] != expected.split():
                return f"{owner.__name__}.{name}({', '.join(parameters)})"
    return ""


def _other_session() -> str:
    # Flask's session proxy reads this property, and it reads ``_session``. Before 3.1.3 ``session``
    # was an attribute, which no context of ours sets.
    owner = flask_ctx.RequestContext
    is_property = isinstance(inspect.getattr_static(owner, "session", None), property)
    return "" if is_property else f"{owner.__name__}.session is no property"


def _other_attribute() -> str:
    """Name what a rule, the matcher, a request or a response of Werkzeug lacks."""
    rule = Rule("/a/<int:id>", endpoint="a")
    try:
        # The way of routing.Map through the matcher.
        state = Map([rule])._matcher._root
        *fixed, last = rule._parts
        for part in fixed:
            state = state.static[part.content]
        ((part, found),) = state.dynamic
        is_known = part is last and not (last.static or last.final) and found.rules == [rule]
        if not is_known or [*rule._converters] != ["id"]:
            return "its matcher is another one"
        _ = DefaultJSONProvider(rule)._app  # type: ignore[arg-type]  # any object
        response = flask.Response(b"")
        _ = response._status, response._status_code, response._on_close, response.headers._list
        request: Any = flask.Request({})
        if {*vars(request)} != REQUEST or request.headers.environ is not request.environ:
            return "its request is another one"
        fields = ImmutableMultiDict([("a", "b"), ("a", "c")])
        if {**vars(fields), **{name: dict.get(fields, name) for name in fields}} != {
            "a": ["b", "c"]
        }:
            return "its ImmutableMultiDict is another one"
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return str(error)
    return ""
