"""
Decide once for an application which of Flask's steps its requests can omit.

A step is omitted only if the application cannot notice it: a method that is overridden in a
subclass or on the instance is called when Flask calls it.
"""

from typing import Any

from flask import Flask as BaseFlask
from flask import Request as BaseRequest
from flask.sessions import SecureCookieSessionInterface
from werkzeug.routing import MapAdapter

from greenline.flask.request import Request
from greenline.flask.response import ResponseFactory, sends_plainly
from greenline.flask.routing import Map

# The attributes of an application on which the decisions depend.
DECIDED_BY = {
    "create_url_adapter", "request_class", "response_class", "session_interface",
    "subdomain_matching", "url_map",
}  # fmt: skip

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
        request_class: Any = app.request_class
        self.own_adapter = _inherits(app, "create_url_adapter")
        # Routing by the path alone is enough: no host, subdomain or custom adapter matters.
        self.routes_itself = (
            self.own_adapter
            and type(app.url_map) is Map
            and not app.subdomain_matching
            and getattr(request_class, "trusted_hosts", None) is None
        )
        # All that Flask calls of an unused request object.
        self.lazy_request = all(
            getattr(request_class, name, ...)
            in (getattr(BaseRequest, name), getattr(Request, name))
            for name in ("__init__", "__new__", "close", "endpoint", "blueprint", "blueprints")
        )
        # The exact class: a subclass may override open_session().
        self.lazy_session = type(app.session_interface) is SecureCookieSessionInterface
        self.response_class = app.response_class
        self.sends_plainly = sends_plainly(app.response_class)
        self.text = ResponseFactory(app.response_class, None)
        # The server names of the hosts for which a URL adapter was made; invalid hosts get 400.
        self.server_names: dict[Host, str] = {}

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


def _inherits(app: BaseFlask, name: str) -> bool:
    # A method may also be replaced on the instance, as extensions do.
    return getattr(type(app), name) is getattr(BaseFlask, name) and name not in vars(app)
