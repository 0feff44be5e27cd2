"""
Decide once for an application which of Flask's steps its requests can omit.

A step is omitted only if the application cannot notice it: a method that is overridden in a
subclass or on the instance is called when Flask calls it.
"""

from typing import Any, cast

from flask import Flask as BaseFlask
from flask import Request as BaseRequest
from flask.sessions import SecureCookieSessionInterface
from werkzeug.routing import MapAdapter

from greenline.flask.request import Request
from greenline.flask.response import ResponseFactory, sending
from greenline.flask.routing import Map

# The attributes of an application on which the decisions depend.
DECIDED_BY = {
    "create_url_adapter", "request_class", "response_class", "session_interface",
    "subdomain_matching", "url_map",
}  # fmt: skip

# What Flask calls of a request object that the view does not use.
OF_REQUEST = ("__init__", "__new__", "close", "endpoint", "blueprint", "blueprints")
# Functions of the application for which Flask looks up the blueprints, or more, in the request.
NEED_REQUEST = {
    "teardown_request_funcs": "teardown_request",
    "url_value_preprocessors": "url_value_preprocessor",
}

ADAPTER = "a URL adapter is made for each request"
REQUEST = "a request object is made for each request"
SESSION = "the session is opened at each request"

# Clients choose the Host header, so the number of remembered hosts has a limit.
MAX_HOSTS = 1_000

# A scheme, a Host header, and the SERVER_NAME in the configuration.
Host = tuple[str | None, str | None, str | None]


class Decisions:
    """
    Hold the decisions, which are made again after an attribute in ``DECIDED_BY`` was set.

    :param app: the application.
    """

    def __init__(self, app: BaseFlask) -> None:
        # The steps that are not omitted, or are left to Werkzeug, each with the reason.
        self.left: dict[str, str] = {}
        self.own_adapter = _inherits(app, "create_url_adapter")
        # Routing by the path alone is enough: no host, subdomain or custom adapter matters.
        self.routes_itself = self._omit(ADAPTER, _why_adapter(app, self.own_adapter))
        self.lazy_request = self._omit(REQUEST, _why_request(app.request_class))
        # The exact class: a subclass may override open_session().
        kind = type(app.session_interface)
        is_flasks = kind is SecureCookieSessionInterface
        self.lazy_session = self._omit(
            SESSION, "" if is_flasks else f"its interface is a {kind.__qualname__}"
        )
        self.response_class = response_class = cast(Any, app.response_class)
        self.sending_class: type[Any] | None = None
        try:
            self.sending_class = sending(response_class)
        except TypeError as error:
            self.left["Werkzeug sends the responses"] = str(error)
        self.text = ResponseFactory(app.response_class, None)
        self._omit("Werkzeug makes the responses", "" if self.text.works else self.text.reason)
        # The server names of the hosts for which a URL adapter was made; invalid hosts get 400.
        self.server_names: dict[Host, str] = {}

    def _omit(self, step: str, reason: str) -> bool:
        if reason:
            self.left[step] = reason
        return not reason

    def remember(self, host: Host, adapter: MapAdapter | None) -> None:
        """
        Remember that further requests with *host* need no URL adapter.

        :param host: the scheme, the Host header and SERVER_NAME.
        :param adapter: the adapter that Flask made for such a request, or None.
        """
        if self.routes_itself and adapter and host[0] in ("http", "https") and host[1] is not None:
            if len(self.server_names) >= MAX_HOSTS:
                self.server_names.clear()
            self.server_names[host] = adapter.server_name


def left_to_flask(app: Any) -> dict[str, str]:
    """
    Return the steps that each request of an application takes, with the reasons.

    :param app: a :class:`greenline.flask.Flask`.
    """
    # Not those of the application, which it makes when its first request needs them.
    left = Decisions(app).left
    # What may be set at any time, without a notice, is looked at by each request.
    if app.config["TRUSTED_HOSTS"] is not None:
        left.setdefault(ADAPTER, "TRUSTED_HOSTS is set")
    if app.url_map.host_matching:
        left.setdefault(ADAPTER, "the URL map has host_matching")
    if ADAPTER in left:
        left.setdefault(REQUEST, "its URL adapter needs it")
    for name, decorator in NEED_REQUEST.items():
        if getattr(app, name):
            left.setdefault(REQUEST, f"there are functions of {decorator}")
    return left


def _why_adapter(app: BaseFlask, own_adapter: bool) -> str:
    if not own_adapter:
        return "create_url_adapter() is the application's own"
    if type(app.url_map) is not Map:
        return f"the URL map is a {type(app.url_map).__qualname__}"
    if app.subdomain_matching:
        return "subdomain_matching is set"
    if getattr(app.request_class, "trusted_hosts", None) is not None:
        return f"{app.request_class.__qualname__} has trusted_hosts"
    return ""


def _why_request(request_class: type[Any]) -> str:
    for name in OF_REQUEST:
        known = getattr(BaseRequest, name), getattr(Request, name)
        if getattr(request_class, name, None) not in known:
            return f"{request_class.__qualname__} has a {name} of its own"
    return ""


def _inherits(app: BaseFlask, name: str) -> bool:
    # A method may also be replaced on the instance, as extensions do.
    return getattr(type(app), name) is getattr(BaseFlask, name) and name not in vars(app)
