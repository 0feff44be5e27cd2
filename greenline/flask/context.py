"""
Define Flask's two contexts, which make their objects at the first use.

The request object, the URL adapter and the session are made late only if the application cannot
notice it (see :class:`Decisions`), otherwise when Flask makes them.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flask import ctx as flask_ctx
from flask.signals import appcontext_popped, appcontext_pushed
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Rule

from greenline.flask.compat import _cv_app, _cv_request, _sentinel, _split_blueprint_path

if TYPE_CHECKING:
    from flask.sessions import SessionMixin
    from flask.wrappers import Request
    from werkzeug.routing import MapAdapter

NO_BLUEPRINTS: list[str] = []
# Flask's own default, with which its methods compare the argument.
NOT_GIVEN: Any = _sentinel


class made_at_first_use:  # noqa: N801
    """
    Compute an attribute at its first use, unless it was set before.

    :param make: the method that computes it.
    """

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, instance: Any, owner: Any) -> Any:
        value = self._make(instance)
        # The descriptor has no __set__, so from now on the instance's attribute is found first.
        instance.__dict__[self._name] = value
        return value


class AppContext(flask_ctx.AppContext):
    """
    The application context, whose URL adapter is made when a URL is built.

    :param app: a :class:`greenline.flask.Flask`.
    """

    app: Any

    def __init__(self, app: Any) -> None:
        self.app = app
        # An overridden create_url_adapter() is called when Flask calls it.
        if not app.greenline_decisions.own_adapter:
            self.url_adapter = app.create_url_adapter(None)
        elif app.config["SERVER_NAME"] is None:  # Flask makes none without it
            self.url_adapter = None
        self.g = app.app_ctx_globals_class()
        self._cv_tokens = []

    @made_at_first_use
    def url_adapter(self) -> "MapAdapter | None":
        adapter: MapAdapter | None = self.app.create_url_adapter(None)
        return adapter

    def push(self) -> None:
        self._cv_tokens.append(_cv_app.set(self))
        if appcontext_pushed.receivers:
            appcontext_pushed.send(self.app, _async_wrapper=self.app.ensure_sync)

    def pop(self, exc: BaseException | None = NOT_GIVEN) -> None:
        try:
            # A context may be pushed several times; the last pop tears it down.
            if len(self._cv_tokens) == 1:
                if exc is NOT_GIVEN:
                    exc = sys.exc_info()[1]
                self.app.do_teardown_appcontext(exc)
        finally:
            context = _cv_app.get()
            _cv_app.reset(self._cv_tokens.pop())
        if context is not self:
            raise AssertionError(f"Popped wrong app context. ({context!r} instead of {self!r})")
        if appcontext_popped.receivers:
            appcontext_popped.send(self.app, _async_wrapper=self.app.ensure_sync)


class RequestContext(flask_ctx.RequestContext):
    """
    The request context, which is routed without a request object if possible.

    :param app: a :class:`greenline.flask.Flask`.
    :param environ: the WSGI environ.
    :param request: an existing request object, default None.
    :param session: an existing session, default None.
    """

    app: Any
    rule: Rule | None = None
    view_args: Any = None
    routing_exception: HTTPException | None = None

    def __init__(
        self,
        app: Any,
        environ: dict[str, Any],
        request: "Request | None" = None,
        session: "SessionMixin | None" = None,
    ) -> None:
        self.app = app
        self.environ = environ
        self.flashes = None
        self._session = session
        self._after_request_functions = []
        self._cv_tokens = []
        decisions = app.greenline_decisions
        if request is not None:
            self.request = request
        elif not decisions.lazy_request:
            self.request = app.request_class(environ)
            self.request.json_module = app.json
        config = app.config
        # Without a known server name Flask makes the adapter, and refuses an invalid host.
        host = environ.get("wsgi.url_scheme"), environ.get("HTTP_HOST"), config["SERVER_NAME"]
        self.server_name = decisions.server_names.get(host)
        if (
            self.server_name is None
            or "HTTP_UPGRADE" in environ
            # Not in Decisions: both may be set at any time, without a notice.
            or config["TRUSTED_HOSTS"] is not None
            or app.url_map.host_matching
        ):
            self.url_adapter = None
            try:
                self.url_adapter = app.create_url_adapter(self.request)
            except HTTPException as error:
                # Raised at the dispatch, as in Flask, so that error handlers see it.
                self.request.routing_exception = error
            else:
                decisions.remember(host, self.url_adapter)

    @made_at_first_use
    def request(self) -> "Request":
        request: Request = self.app.request_class(self.environ)
        request.json_module = self.app.json
        # Routing may have been done without the object.
        if self.rule is not None:
            request.url_rule, request.view_args = self.rule, self.view_args
        if self.routing_exception is not None:
            request.routing_exception = self.routing_exception
        return request

    @made_at_first_use
    def url_adapter(self) -> "MapAdapter | None":
        adapter: MapAdapter = self.app.url_map.adapt(self.server_name, self.environ)
        return adapter

    @made_at_first_use
    def _session(self) -> Any:
        return self._open_session()

    def _open_session(self) -> Any:
        app = self.app
        interface = app.session_interface
        # Without a cookie Flask's interface returns an empty session.
        if (
            app.greenline_decisions.lazy_session
            and app.config["SECRET_KEY"]
            and not self._has_cookie()
        ):
            return interface.session_class()
        session = interface.open_session(app, self.request)
        return interface.make_null_session(app) if session is None else session

    def session_matters(self) -> bool:
        """Return whether the session was used, or has a cookie that may have to be renewed."""
        if "_session" in self.__dict__:
            return True
        return bool(self.app.config["SECRET_KEY"]) and self._has_cookie()

    def _has_cookie(self) -> bool:
        cookies = self.environ.get("HTTP_COOKIE")
        if not cookies:
            return False
        name = self.app.config["SESSION_COOKIE_NAME"]
        # A rough test that may say yes too often: the cookies need not be parsed.
        return name in cookies or not name.isascii()

    def blueprints(self) -> Any:
        """Return the names of the endpoint's blueprints, the innermost first."""
        request = self.__dict__.get("request")
        # A request class may override `blueprints`.
        if request is not None and not self.app.greenline_decisions.lazy_request:
            return request.blueprints
        rule = self.rule if request is None else request.url_rule
        if rule is None or rule.endpoint is None or "." not in rule.endpoint:
            return NO_BLUEPRINTS
        return _split_blueprint_path(rule.endpoint.rpartition(".")[0])

    def match_request(self) -> None:
        state = self.__dict__
        environ = self.environ
        # An adapter was made because this request needs it: Flask's method uses it.
        if "url_adapter" not in state and environ.get("PATH_INFO") and environ["REQUEST_METHOD"]:
            try:
                found = self.app.url_map.find(environ["REQUEST_METHOD"], environ["PATH_INFO"])
            except HTTPException as error:
                self.routing_exception = error
                # An existing request object gets a copy; one made later takes it from here.
                if "request" in state:
                    self.request.routing_exception = error
                return
            if found is not None:
                self.rule, self.view_args = found
                environ["greenline.route"] = self.rule.rule  # for the log line after the request
                if "request" in state:
                    self.request.url_rule, self.request.view_args = found
                return
        super().match_request()

    def push(self) -> None:
        app = self.app
        app_ctx = _cv_app.get(None)
        if app_ctx is None or app_ctx.app is not app:
            app_ctx = app.app_context()
            app_ctx.push()
        else:
            app_ctx = None
        self._cv_tokens.append((_cv_request.set(self), app_ctx))
        state = self.__dict__
        # __init__ sets None; later pushes keep the session, as stream_with_context() needs it.
        # `self` stands for an attribute that is not there.
        if state.get("_session", self) is None:
            if app.greenline_decisions.lazy_session:
                del self._session
            else:
                self._session = self._open_session()
        # After the session, which URL converters may use.
        if state.get("url_adapter", self) is not None:
            self.match_request()

    def pop(self, exc: BaseException | None = NOT_GIVEN) -> None:
        clear_request = len(self._cv_tokens) == 1
        try:
            if clear_request:
                if exc is NOT_GIVEN:
                    exc = sys.exc_info()[1]
                self.app.do_teardown_request(exc)
                # An unused request object is not made to be closed.
                request = self.__dict__.get("request")
                if request is not None:
                    close = getattr(request, "close", None)
                    if close is not None:
                        close()
        finally:
            context = _cv_request.get()
            token, app_ctx = self._cv_tokens.pop()
            _cv_request.reset(token)
            # Flask breaks this reference cycle, so that the garbage collector need not.
            if clear_request:
                if context is self and "request" not in self.__dict__:
                    self.environ["werkzeug.request"] = None
                else:
                    context.request.environ["werkzeug.request"] = None
            if app_ctx is not None:
                app_ctx.pop(exc)
            if context is not self:
                raise AssertionError(
                    f"Popped wrong request context. ({context!r} instead of {self!r})"
                )
