"""
Let a request in a native thread read its body and send its response in the hub.

Each wait for the client has a frame of this module, and none of them counts as the application's
time.
"""

from collections.abc import Callable
from typing import Any

from greenline.offload import threads


class RequestEnded(Exception):
    """The client's connection is used by a call whose request has ended."""

    def __init__(self) -> None:
        super().__init__("the request has ended before this call in a thread")


class HubCalls:
    """Where all that waits for the client runs, also in the middle of a call in a thread."""

    is_left = False  # the call has ended, or its greenlet was killed and the call goes on

    def check(self) -> None:
        """
        Raise an error if the request has ended before this call in a thread.

        :raises RequestEnded: it has.
        """
        if self.is_left and threads.is_offloaded():
            raise RequestEnded

    def runs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls *function* in the hub's thread."""

        def call(*args: Any) -> Any:
            self.check()
            if threads.is_offloaded():
                return threads.run_in_main_hub(function, *args)
            return function(*args)

        return call


class Input:
    """
    A body that the client may still send.

    :param body: gunicorn's, or one with the same methods.
    :param hub: where its methods run.
    """

    def __init__(self, body: Any, hub: HubCalls) -> None:
        self._body = body
        self.read, self.readline = hub.runs(body.read), hub.runs(body.readline)
        self.readlines = hub.runs(body.readlines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def __iter__(self) -> Any:
        return iter(self.readline, b"")
