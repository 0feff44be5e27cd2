"""
Let ``flask.Flask`` objects that an application has made be served as ours are.

The class of the object becomes ours, or a class of both where it has its own, whose methods come
first. What the application has replaced stays. An object whose class cannot be combined with ours
is left as it is, and so are all if a method that ours override is no longer Flask's.
"""

import gc
import logging
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import flask
from flask import Flask as BaseFlask
from flask.app import Flask as AnyFlask  # OpenTelemetry replaces the name above, not this one
from flask.json.provider import DefaultJSONProvider
from werkzeug.routing import Map as WerkzeugMap

from greenline.flask.app import Flask
from greenline.flask.classes import stand_in
from greenline.flask.compat import FLASK_METHODS, replaced_method
from greenline.flask.decisions import left_to_flask
from greenline.flask.json import JSONProvider
from greenline.flask.routing import Map
from greenline.hub import inherited

A = TypeVar("A", bound=flask.Flask)

log = logging.getLogger(__name__)

# Attributes whose values become ours if they are exactly Flask's. What Flask looks up in the class,
# such as request_class, the application's new class has.
TAKEN_OVER: tuple[tuple[str, type[Any], type[Any]], ...] = (
    ("url_map", WerkzeugMap, Map),
    ("json", DefaultJSONProvider, JSONProvider),
)


def adopt(app: A) -> A:
    """
    Let *app* be served as a :class:`greenline.flask.Flask` is, from its next request on.

    An application that cannot be adopted is left as it is, with a warning that says why.

    :param app: an object of ``flask.Flask``, or of a subclass.
    :returns: *app* itself.
    """
    if reason := _adopt(app):
        log.warning("%s is left to Flask: %s", app.import_name, reason)
    return app


def adopt_loaded(application: Any) -> str:
    """
    Adopt each Flask application of the process.

    :param application: the WSGI application that the worker serves.
    :returns: a line for the log: what was adopted, and what is left to Flask, with the reasons.
    """
    adopted, left = [], []
    for app, refusal in adopt_each(application):
        if not refusal:
            adopted.append(app.import_name)
        reasons = [refusal] if refusal else remainder(app)
        left += [f"{app.import_name}: {each}" for each in reasons]
    line = f"adopted {', '.join(adopted) or 'no Flask application'}"
    return f"{line}; left to Flask: {'; '.join(left)}" if left else line


def adopt_each(application: Any) -> list[tuple[flask.Flask, str]]:
    """
    Adopt the Flask applications of the process, those behind a middleware included.

    :param application: the WSGI application.
    :returns: each, and why it is left to Flask, which is empty where it is not.
    """
    # Some may be excluded from collections, the given one as well.
    every = chain(gc.get_objects(), inherited.applications(), [application])
    # By type(): isinstance() would ask proxies for the objects behind them.
    found = {id(one): one for one in every if issubclass(type(one), AnyFlask)}
    # The collector has no order that lasts.
    return [(app, _adopt(app)) for app in sorted(found.values(), key=lambda app: app.import_name)]


def _adopt(app: flask.Flask) -> str:
    """Adopt *app*; return why it is left, empty where it is not."""
    if isinstance(app, Flask):
        return ""
    if not isinstance(app, BaseFlask):
        return f"flask.Flask was replaced by {BaseFlask.__qualname__} after it was made"
    if replaced := replaced_method():
        return f"{replaced} is not Flask's own: something has replaced it"
    cls: Any = type(app)
    try:
        # Past an application's own __setattr__(), which need not know about classes.
        object.__setattr__(app, "__class__", Flask if cls is BaseFlask else _combined(cls))
    except TypeError as error:
        return f"its class {cls.__qualname__} cannot be combined with ours: {error}"
    for name, flasks, ours in TAKEN_OVER:
        value = getattr(app, name)
        if type(value) is flasks:
            value.__class__ = ours
    return ""


@cache
def _combined(cls: type[flask.Flask]) -> type[flask.Flask]:
    # Ours notices the attributes on which its decisions depend.
    if cls.__setattr__ is not BaseFlask.__setattr__:
        raise TypeError("it has a __setattr__ of its own")
    return stand_in(cls, Flask)


def remainder(app: Any) -> Iterator[str]:
    """Yield what of an adopted application is left to Flask for all routes, and why."""
    for name in FLASK_METHODS[BaseFlask]:
        # What replaces wsgi_app is a middleware, as a rule; Flask's own does the same as ours.
        if name != "wsgi_app" and (owner := _replacing(app, name)):
            yield f"{name}(): {owner} has its own"
    for name, _, ours in TAKEN_OVER:
        kind = type(getattr(app, name))
        if kind is not ours:
            yield f"{name}: its class {kind.__qualname__} is the application's own"
    for step, reason in left_to_flask(app).items():
        yield f"{step} ({reason})"


def _replacing(app: Any, name: str) -> str:
    """Return what defines a method in place of ours, empty if nothing does."""
    if name in vars(app):
        return "the object"
    owner = next(one for one in type(app).__mro__ if name in vars(one))
    return "" if owner is Flask else owner.__qualname__
