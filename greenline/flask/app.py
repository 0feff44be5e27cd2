"""
Define the application class.

Each method has the effect of Flask's method in fewer steps, so that a subclass may override it and
call ``super()``. Checks whose result is the same for all requests are in :class:`Decisions`.
"""

import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from inspect import CO_COROUTINE
from types import FunctionType
from typing import Any

import flask
from flask.signals import (
    appcontext_tearing_down,
    request_finished,
    request_started,
    request_tearing_down,
)
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from greenline.flask.compat import (
    FIND_ERROR_HANDLER,
    RAISE_ROUTING_EXCEPTION,
    _cv_app,
    _cv_request,
)
from greenline.flask.context import NOT_GIVEN, AppContext, RequestContext, made_at_first_use
from greenline.flask.decisions import DECIDED_BY, Decisions
from greenline.flask.json import JSONProvider
from greenline.flask.request import Request
from greenline.flask.response import error_page
from greenline.flask.routing import LazyRule, Map


class Flask(flask.Flask):
    """Do what ``flask.Flask`` does, with its arguments, in less time for each request."""

    json_provider_class = JSONProvider
    request_class = Request
    url_map_class = Map
    url_rule_class = LazyRule
    url_map: Map

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Decisions are made again at the next use.
        if name in DECIDED_BY:
            self.__dict__.pop("greenline_decisions", None)

    # No attribute of an application that is adopted has this name.
    @made_at_first_use
    def greenline_decisions(self) -> Decisions:
        """The decisions for the application's present attributes."""
        return Decisions(self)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        # The usual case of inspect.iscoroutinefunction(), which Flask calls for each function of
        # each request; the mark is that of inspect.markcoroutinefunction().
        if type(func) is FunctionType and "_is_coroutine_mark" not in func.__dict__:
            if func.__code__.co_flags & CO_COROUTINE:
                return self.async_to_sync(func)
            return func
        return super().ensure_sync(func)

    def async_to_sync(self, func: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        from greenline.hub import coroutines  # imports asyncio, which few applications need

        return partial(coroutines.call, func)

    def app_context(self) -> AppContext:
        return AppContext(self)

    def request_context(self, environ: dict[str, Any]) -> RequestContext:
        return RequestContext(self, environ)

    def wsgi_app(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        ctx = self.request_context(environ)
        error: BaseException | None = None
        try:
            try:
                ctx.push()
                response = self.full_dispatch_request()
            except Exception as caught:
                error = caught
                response = self.handle_exception(caught)
            except BaseException as caught:
                error = caught
                raise
            # Outside the inner try, as in Flask: an error while sending gets no error page.
            return response(environ, start_response)
        finally:
            # Set by Flask's test client and Werkzeug's debugger, which use the contexts later.
            if "werkzeug.debug.preserve_context" in environ:
                environ["werkzeug.debug.preserve_context"](_cv_app.get())
                environ["werkzeug.debug.preserve_context"](_cv_request.get())
            if error is not None and self.should_ignore_error(error):
                error = None
            ctx.pop(error)

    def full_dispatch_request(self) -> flask.Response:
        if not self._got_first_request:
            self._got_first_request = True
        try:
            # Without receivers a signal's send() costs a few calls for nothing.
            if request_started.receivers:
                request_started.send(self, _async_wrapper=self.ensure_sync)
            rv = self.preprocess_request()
            if rv is None:
                rv = self.dispatch_request()
        except Exception as error:
            rv = self.handle_user_exception(error)
        return self.finalize_request(rv)

    def preprocess_request(self) -> Any:
        ctx = _cv_request.get(None)
        if not isinstance(ctx, RequestContext):  # an extension or a test pushed Flask's own
            return super().preprocess_request()
        # Read for each request, as Flask does: extensions may register functions late.
        preprocessors, before = self.url_value_preprocessors, self.before_request_funcs
        if not preprocessors and not before:
            return None
        # None stands for the application itself, then the outermost blueprint.
        names = (None, *reversed(ctx.blueprints()))
        if preprocessors:
            request = ctx.request
            for name in names:
                for preprocess in preprocessors.get(name, ()):
                    preprocess(request.endpoint, request.view_args)
        for name in names:
            for function in before.get(name, ()):
                rv = self.ensure_sync(function)()
                if rv is not None:
                    return rv
        return None

    def dispatch_request(self) -> Any:
        ctx = _cv_request.get(None)
        if not isinstance(ctx, RequestContext):
            return super().dispatch_request()
        # From __dict__, as the attribute itself would make the request object. Once that exists,
        # its values count: a function of the application may have changed them.
        request = ctx.__dict__.get("request")
        if request is None:
            rule, arguments, error = ctx.rule, ctx.view_args, ctx.routing_exception
            method = ctx.environ["REQUEST_METHOD"].upper()
        else:
            rule, arguments, error = request.url_rule, request.view_args, request.routing_exception
            method = request.method
        if (
            error is not None
            and not isinstance(error, RequestRedirect)
            and _is(self.raise_routing_exception, RAISE_ROUTING_EXCEPTION)
        ):
            raise error
        # Flask explains some redirects when it debugs, and answers OPTIONS if the rule says so.
        if error is not None or rule is None or method == "OPTIONS":
            return super().dispatch_request()
        return self.ensure_sync(self.view_functions[rule.endpoint])(**arguments)

    def handle_http_exception(self, e: HTTPException) -> Any:
        # To find a handler Flask looks up the blueprints in the request.
        if any(any(handlers.values()) for handlers in self.error_handler_spec.values()) or not _is(
            self._find_error_handler, FIND_ERROR_HANDLER
        ):
            return super().handle_http_exception(e)
        return e

    def finalize_request(self, rv: Any, from_error_handler: bool = False) -> flask.Response:
        response = self._page_of(rv) if isinstance(rv, HTTPException) else None
        if response is None:
            response = self.make_response(rv)
        try:
            response = self.process_response(response)
            if request_finished.receivers:
                request_finished.send(self, _async_wrapper=self.ensure_sync, response=response)
        except Exception:
            if not from_error_handler:
                raise
            # The error page is sent all the same, as Flask does.
            self.logger.exception("Request finalizing failed with an error while handling an error")
        decisions = self.greenline_decisions
        # After all functions that are passed the response. Flask's wsgi_app() sends it, or ours.
        if type(response) is decisions.response_class and decisions.sending_class is not None:
            response.__class__ = decisions.sending_class
        return response

    def _page_of(self, error: HTTPException) -> Any | None:
        """Return the page of an error if only the client sees it; None: Flask has to make it."""
        ctx = _cv_request.get(None)
        decisions = self.greenline_decisions
        # A function that is passed the response might see that it is not a stream, as Flask's is.
        if (
            not isinstance(ctx, RequestContext)
            or ctx._after_request_functions
            or self.after_request_funcs
            or request_finished.receivers
            or not decisions.text.works
            or not _is(self.make_response, Flask.make_response)
            or not _is(self.process_response, Flask.process_response)
        ):
            return None
        return error_page(error, ctx.environ, decisions.text)

    def make_response(self, rv: Any) -> Any:
        kind = type(rv)
        # Exact types; everything else is left to Flask's own checks.
        if kind is dict or kind is list:
            return self.json.response(rv)
        decisions = self.greenline_decisions
        if kind is decisions.response_class:
            return rv
        if (kind is str or kind is bytes) and decisions.text.works:
            return decisions.text(rv.encode() if kind is str else rv)
        return super().make_response(rv)

    def process_response(self, response: flask.Response) -> flask.Response:
        ctx = _cv_request.get(None)
        if not isinstance(ctx, RequestContext):
            return super().process_response(response)
        # Functions of after_this_request() first, then those of blueprints and the application.
        for function in ctx._after_request_functions:
            response = self.ensure_sync(function)(response)
        after = self.after_request_funcs
        if after:
            for name in (*ctx.blueprints(), None):
                for function in reversed(after.get(name, ())):
                    response = self.ensure_sync(function)(response)
        # An untouched session without a cookie is neither opened nor saved.
        if ctx.session_matters():
            session = ctx._session
            if not self.session_interface.is_null_session(session):
                self.session_interface.save_session(self, session, response)
        return response

    def do_teardown_request(self, exc: BaseException | None = NOT_GIVEN) -> None:
        # Flask's own method reads request.blueprints, which makes the request object.
        if self.teardown_request_funcs or _cv_request.get(None) is None:
            super().do_teardown_request(exc)
        elif request_tearing_down.receivers:
            if exc is NOT_GIVEN:
                exc = sys.exc_info()[1]
            request_tearing_down.send(self, _async_wrapper=self.ensure_sync, exc=exc)

    def do_teardown_appcontext(self, exc: BaseException | None = NOT_GIVEN) -> None:
        if self.teardown_appcontext_funcs or appcontext_tearing_down.receivers:
            super().do_teardown_appcontext(exc)


def _is(method: Any, function: Any) -> bool:
    """Return whether a method of an object is *function*, and nothing has replaced it."""
    return getattr(method, "__func__", None) is function


def environ() -> dict[str, Any]:
    """
    Return the WSGI environ of the current request, without making a request object.

    :raises LookupError: there is no current request.
    """
    ctx = _cv_request.get()
    if isinstance(ctx, RequestContext):
        return ctx.environ
    # Flask's own context has the environ in the request object only.
    return ctx.request.environ
