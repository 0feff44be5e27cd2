"""
WSGI applications that log: in their requests, in greenlets, and by what they do wrong.

CONFIGURED says how logging is configured: by ``basicConfig``, by ``dictConfig`` as Django does, or
not at all.
"""

import logging
import logging.config
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import flask
import gevent
from gevent.monkey import get_original

log = logging.getLogger("shop")
CONFIGURATIONS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "basic": lambda: logging.basicConfig(
        level="INFO", format="%(asctime)s [%(levelname)s] %(message)s"
    ),
    "dict": lambda: logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"short": {"format": "{levelname} {message}", "style": "{"}},
            "handlers": {
                "console": {"class": "logging.StreamHandler", "formatter": "short"},
                "file": {
                    "class": "logging.FileHandler",
                    "filename": os.environ.get("OWN_FILE", os.devnull),
                    "formatter": "short",
                },
            },
            "root": {"level": "INFO", "handlers": ["console", "file"]},
        }
    ),
}
CONFIGURATIONS[os.environ.get("CONFIGURED", "none")]()
log.warning("loading")


def _raise(_: object) -> None:
    try:
        {}["a"]
    except KeyError as error:
        raise ValueError("broken") from error


def _spawn(_: object) -> None:
    gevent.spawn(log.warning, "in a greenlet").join()
    gevent.spawn(_raise, None).join()
    thread = threading.Thread(target=_raise, args=(None,))
    thread.start()
    thread.join()


def _block(_: object) -> None:
    get_original("time", "sleep")(0.5)


def _hold(_: object) -> None:
    Path(os.environ["HELD"]).touch()
    while not os.path.exists(os.environ["OPEN"]):
        gevent.sleep(0.02)


def _swallow(_: object) -> None:
    for _attempt in range(3):
        try:
            gevent.sleep(60)
        except TimeoutError:
            log.warning("it took too long")


DO: dict[str, Callable[[dict[str, Any]], object]] = {
    "/warn": lambda _: log.warning("low stock: %d", 3, extra={"item": 7}),
    "/long": lambda _: log.warning("x" * 10_000),
    "/raise": _raise,
    "/spawn": _spawn,
    "/block": _block,
    "/hold": _hold,
    "/swallow": _swallow,
    "/short": lambda _: None,
    "/body": lambda environ: environ["wsgi.input"].read(),
}


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Do what the path names, and answer."""
    path = environ["PATH_INFO"]
    if path not in DO:
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    environ["greenline.route"] = path
    DO[path](environ)
    length = "3" if path == "/short" else "2"  # a byte too many
    start_response("200 OK", [("Content-Length", length)])
    return [b"ok"]


shop = flask.Flask(__name__)


@shop.get("/warn")
def warn() -> str:
    """Log as a module of the application does."""
    DO["/warn"]({})
    return "ok"


@shop.get("/raise")
def fail() -> str:
    """Fail, which Flask logs with its own handler if the application has none."""
    _raise(None)
    return "ok"
