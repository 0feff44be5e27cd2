"""
What an application's requests need not ask again.

Each says that nothing in the application could tell the difference: what is overridden, in a
subclass or on the instance, is called when Flask calls it.
"""

from typing import Any

from flask import Flask as BaseFlask
from flask import Request as BaseRequest
from flask.sessions import SecureCookieSessionInterface
from werkzeug.routing import MapAdapter

from greenline.flask.response import ResponseFactory, sends_plainly
from greenline.flask.routing import Map

# The attributes of an application that are looked at below.
DECIDED_BY = {
    "create_url_adapter", "request_class", "response_class", "session_interface",
    "subdomain_matching", "url_map",
}  # fmt: skip

# Clients choose the Host header: what they make us remember has a limit.
MAX_HOSTS = 1_000

# A scheme, a Host header, and the SERVER_NAME in the configuration.
Host = tuple[str | None, str | None, str | None]


class Decisions:
    """Decided once, and again after an attribute that decides was set on the application."""

    def __init__(self, app: BaseFlask) -> None:
        request_class: Any = app.request_class
        self.own_adapter = _inherits(app, "create_url_adapter")
        self.routes_itself = (
            self.own_adapter
            and type(app.url_map) is Map
            and not app.subdomain_matching
            and getattr(request_class, "trusted_hosts", None) is None
        )
        self.lazy_request = all(
            getattr(request_class, name, None) is getattr(BaseRequest, name)
            for name in ("__init__", "__new__", "close", "endpoint", "blueprint", "blueprints")
        )
        self.lazy_session = type(app.session_interface) is SecureCookieSessionInterface
        self.response_class = app.response_class
        self.sends_plainly = sends_plainly(app.response_class)
        self.text = ResponseFactory(app.response_class, None)
        # The server names of the hosts that a URL adapter could be made for; the others get 400.
        self.server_names: dict[Host, str] = {}

    def remember(self, host: Host, adapter: MapAdapter | None) -> None:
        """A request from *host*, which got *adapter*, can be routed without one."""
        if self.routes_itself and adapter and host[0] in ("http", "https") and host[1] is not None:
            if len(self.server_names) >= MAX_HOSTS:
                self.server_names.clear()
            self.server_names[host] = adapter.server_name


def _inherits(app: BaseFlask, name: str) -> bool:
    return getattr(type(app), name) is getattr(BaseFlask, name) and name not in vars(app)
