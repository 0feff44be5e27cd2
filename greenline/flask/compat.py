"""
The undocumented names of Flask that this package builds on, and whether this Flask has them.

``_split_blueprint_path`` and ``_sentinel`` are compared with what Flask's own methods use;
``_cv_app`` and ``_cv_request`` hold its contexts.
"""

import inspect
from importlib.metadata import version

import flask
from flask import ctx as flask_ctx

SUPPORTED = ">=3.1.3,<3.2"

MISSING = ""
try:
    from flask.globals import _cv_app, _cv_request
    from flask.helpers import _split_blueprint_path
    from flask.sansio.scaffold import _sentinel
except ImportError as error:
    MISSING = str(error)

# The methods that are overridden, with the parameters that they have in the supported versions.
METHODS = {
    flask.Flask: {
        "ensure_sync": "func",
        "async_to_sync": "func",
        "app_context": "",
        "request_context": "environ",
        "wsgi_app": "environ start_response",
        "full_dispatch_request": "",
        "preprocess_request": "",
        "dispatch_request": "",
        "finalize_request": "rv from_error_handler",
        "make_response": "rv",
        "process_response": "response",
        "do_teardown_request": "exc",
        "do_teardown_appcontext": "exc",
    },
    getattr(flask_ctx, "AppContext", None): {"__init__": "app", "push": "", "pop": "exc"},
    getattr(flask_ctx, "RequestContext", None): {
        "__init__": "app environ request session",
        "push": "",
        "pop": "exc",
    },
}


def misfit() -> str | None:
    """
    Say why the fast application class cannot build on this Flask.

    :returns: a sentence that names the version, the reason and the supported versions; None where
        it can.
    """
    reason = MISSING or _other_method()
    if not reason:
        return None
    return (
        f"Flask {version('Flask')} is not one that greenline.flask builds on ({reason}): "
        f"applications run as on Flask itself; the supported versions are Flask{SUPPORTED}"
    )


def _other_method() -> str:
    for owner, methods in METHODS.items():
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
