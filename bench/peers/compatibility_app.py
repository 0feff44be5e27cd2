"""
Ask the library that ``COMPATIBILITY`` names, for ``bench.compatibility``.

``/ask?WORD`` makes one call of it and answers with what the call returned and how long it took,
``/lag`` with the longest delay of a ticker in the hub since the last time, ``/`` at once.
"""

import importlib
import json
import os
import threading
import traceback
from time import monotonic
from typing import Any

import gevent

from bench.compatibility_lineup import BY_NAME

TICK_S = 0.01
LIBRARY = BY_NAME[os.environ["COMPATIBILITY"]]
ADDRESS = os.environ["COMPATIBILITY_ADDRESS"]
for module in LIBRARY.modules:  # the lag is that of a call, not of an import
    importlib.import_module(module)
if LIBRARY.start and not os.environ.get("COMPATIBILITY_STARTED"):
    LIBRARY.start(ADDRESS)


class State:
    """The client, made in the first request that needs it, and the ticker's longest delay."""

    def __init__(self) -> None:
        self.client: Any = None
        self.lock = threading.Lock()
        self.late_s = 0.0

    def tick(self) -> None:
        """Sleep again and again, and keep how much longer it took."""
        while True:
            begun = monotonic()
            gevent.sleep(TICK_S)
            self.late_s = max(self.late_s, monotonic() - begun - TICK_S)


STATE = State()


def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer as the module says."""
    status, said = "200 OK", dict[str, Any]()
    path, word = environ["PATH_INFO"], environ["QUERY_STRING"]
    if path == "/lag":
        said, STATE.late_s = {"late_s": STATE.late_s}, 0.0
    elif path == "/ask":
        begun = monotonic()
        try:
            with STATE.lock:
                if STATE.client is None:
                    STATE.client = LIBRARY.open(ADDRESS)
            said["found"] = str(LIBRARY.ask(STATE.client, word))
        except Exception as error:
            said["error"] = f"{type(error).__name__}: {error}"[:300]
            said["at"] = traceback.format_exc()[-1500:]
            status = "500 Internal Server Error"
        said["took_s"] = monotonic() - begun
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(said).encode()]


gevent.spawn(STATE.tick)
