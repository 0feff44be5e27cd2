"""
Run the requests of pages that block in C code in native threads, as a threaded server does.

numpy, pandas, lxml, duckdb, the reading of a large file or a driver that waits in C let the
interpreter's lock go, so that other threads run Python meanwhile; in a greenlet they keep the whole
worker. Which pages call them is not known before: the interruptions that such code does not answer
(:mod:`~greenline.hub.slices`) say it. When a page's requests have kept the worker like that for
``BLOCKED_S`` on average, and for ``BLOCKED_SHARE`` of what they compute, its next ones run in
threads.
"""

import ast
import sys
from collections.abc import Callable
from contextvars import Context
from functools import cache, partial
from io import BytesIO
from math import inf
from pathlib import Path
from time import monotonic, thread_time
from typing import Any
from weakref import WeakSet, ref

import gevent
import gevent.pool

from greenline.hub.handlers import MIN_WAIT_S
from greenline.hub.namespaces import namespaces
from greenline.hub.turns import Page, page_of
from greenline.offload import GREEN
from greenline.offload.clients import HubCalls, Input
from greenline.offload.threads import Places, cores

BLOCKED_S = 0.001  # of a request; a thread takes a tenth of that
# Of what it computes. Threads gain no more than this share: the rest needs the interpreter's lock,
# for which they contend with each other and with the hub.
BLOCKED_SHARE = 0.1
MIN_BLOCKED = 3  # requests: the first ones of a page may load a model, or connect
SMOOTHING = 16  # requests
BY_CHANCE = 1_000, BLOCKED_S / 10  # so many requests have blocked for less than that on average
MAX_WAITS = 8  # for so many times what it takes of the processor a request waits for its place
END = object()  # of a body
MIN_QUICK_PARTS = 8  # in a row, each less than BLOCKED_S, before one of a body is made in the hub
MANY_PARTS = 100
MAX_PAGES = 256
INSTALLED = {"site-packages", "dist-packages"}  # the folders of libraries
# Where one of these is loaded no page runs in a thread. What they make works in one thread alone,
# and may be kept from the requests before; the connections of greenline's own pools belong to the
# hub.
OF_ONE_THREAD = "pysqlite3", "sqlcipher3", "greenline.mongo.counted", "greenline.postgres.pool"
# Nor where a module of the application has one of these, or one of a library that works with gevent
# alone: a greenlet that a request spawns would stand still when its thread has ended the request.
OF_THE_HUB = (
    gevent, gevent.spawn, gevent.spawn_later, gevent.Greenlet, gevent.pool.Group, gevent.pool.Pool,
)  # fmt: skip

# Those that compute beside the hub gain nothing by being more than the processors, but for the time
# in which they wait for the disk; threads that wait in C code are as many as the largest threaded
# servers have.
_computing, _waiting = Places(2 * cores()), Places(32)


class Blocking:
    """A page that has blocked the worker in C code; native threads run its requests, perhaps."""

    def __init__(self) -> None:
        self.requests = 1  # of those that were counted
        self._blocked = 0  # of these
        self._last: ref[Any] | None = None  # of these
        self.blocked_s = 0.0
        self._computed_s = 0.0  # of blocked_s
        self._took_s = self._used_s = 0.0  # a call in a thread, and of the processor
        self.moved: WeakSet[Any] = WeakSet()  # requests whose call is in a thread
        self._blocked_in_body = 0  # notes of these
        self.quick_parts = MIN_QUICK_PARTS  # more where one that was made in the hub was slow
        self.places: Places | None = None  # None: it runs in a greenlet

    def note(self, request: Any, blocked_s: float, computed_s: float, known_s: float) -> bool:
        """
        Note what :meth:`Pages.note` does; return whether the next ones run in threads now.

        :param known_s: how long a request computes without a wait, seconds, float; 0: it is not
            known.
        """
        self._blocked_in_body += request in self.moved
        if self._last is None or self._last() is not request:
            self._last = ref(request)
            self._blocked += 1
        self.blocked_s += blocked_s
        self._computed_s += computed_s
        if self.places is None and self._is_worth_it(known_s):
            self._took_s = self.blocked_s / self.requests
            self.places = _computing if self._computed_s >= self.blocked_s / 2 else _waiting
            return True
        return False

    def run(self, application: Callable[..., Any], environ: dict[str, Any], response: Any) -> Any:
        """
        Call *application* in a native thread, as its greenlet.

        :param application: a WSGI application.
        :param environ: its environ.
        :param response: a :class:`~greenline.http.response.Response`.
        :returns: what the application returns.
        :raises BaseException: what the application raises.
        """
        hub = HubCalls()
        # By REQUEST_TIMEOUT; of its class, for an application may answer for any name.
        in_time = getattr(type(application), "run_in_time", None)

        def start_response(*args: Any) -> Callable[[bytes], None]:
            hub.check()
            return hub.runs(response.start_response(*args))

        if not isinstance(environ["wsgi.input"], BytesIO):
            environ["wsgi.input"] = Input(environ["wsgi.input"], hub)
        if hints := environ.get("wsgi.early_hints"):
            environ["wsgi.early_hints"] = hub.runs(hints)
        try:
            result = self.call(application, environ, start_response)
        except BaseException:
            hub.is_left = True
            raise
        if self._blocked_in_body < MIN_BLOCKED or isinstance(
            result, list | tuple | environ.get("wsgi.file_wrapper", list)
        ):
            hub.is_left = True
            return result
        run = self._run if in_time is None else partial(self._run, in_time, application)
        return _Body(result, run, hub, self)

    def call(self, func: Callable[..., Any], *args: Any) -> Any:
        """
        Call *func*, all of a request but for its body, or all of a task, in a native thread.

        :param func: the function to call.
        :param args: its positional arguments.
        :returns: the result of *func*.
        :raises BaseException: what *func* raises.
        """
        result = self._run(func, *args)
        if self._took_s < 2 * BLOCKED_S and not self._blocked_in_body:
            vars(self).update(vars(Blocking()))  # it was loading something, which it has now
        return result

    def _run(self, *call: Any) -> Any:
        places = self.places or _computing
        return places.run(max(MAX_WAITS * self._used_s, MIN_WAIT_S), self._measured, *call)

    def _measured(self, func: Callable[..., Any], *args: Any) -> Any:
        begun_s, before_s = monotonic(), thread_time()
        try:
            return func(*args)
        finally:
            self._took_s += (monotonic() - begun_s - self._took_s) / SMOOTHING
            self._used_s += (thread_time() - before_s - self._used_s) / SMOOTHING

    def _is_worth_it(self, known_s: float) -> bool:
        return (
            self._blocked >= MIN_BLOCKED
            and self.blocked_s >= max(BLOCKED_S, BLOCKED_SHARE * known_s) * self.requests
            and may_move()
        )


class _Body:
    """
    A body whose parts are made in native threads: the call of its page returns before them.

    Where many in a row are quick, further ones are made in the hub. A text of JSON may have some
    thousands, and a hand-over takes longer than each.

    :param result: what the application has returned.
    :param run: calls a function with its arguments in a thread.
    :param hub: where the client is waited for.
    :param page: its page.
    """

    def __init__(self, result: Any, run: Callable[..., Any], hub: HubCalls, page: Blocking) -> None:
        self._parts, self._run, self._hub, self._page = iter(result), run, hub, page
        self._close: list[Any] = [result.close] if hasattr(result, "close") else []
        self._is_making = False
        self._took_s = 0.0  # the last part
        self._quick = 0  # parts in a row

    def __iter__(self) -> "_Body":
        return self

    def __next__(self) -> Any:
        page = self._page
        is_here = self._quick >= page.quick_parts
        part = self._make() if is_here else self._run(self._make)
        if part is END:
            raise StopIteration
        if self._took_s < BLOCKED_S:
            self._quick += 1
            if is_here and self._quick % MANY_PARTS == 0:  # a slow one may have been an accident
                page.quick_parts = max(page.quick_parts // 2, MIN_QUICK_PARTS)
        else:
            self._quick = 0
            if is_here:
                page.quick_parts *= 2
        return part

    def close(self) -> None:
        """Close what the application has returned, or let the thread do it that still uses it."""
        self._hub.is_left = True
        if not self._is_making:
            self._end()

    def _make(self) -> Any:
        self._is_making = True
        begun_s = monotonic()
        try:
            return next(self._parts, END)
        finally:
            self._took_s = monotonic() - begun_s
            self._is_making = False
            if self._hub.is_left:  # its greenlet was killed meanwhile
                self._end()

    def _end(self) -> None:
        while self._close:  # only once
            self._close.pop()()


class Task:
    """
    What a thread of the application does: all of it, or what an executor has given it.

    :param func: the function that it calls.
    """

    def __init__(self, func: Any) -> None:
        while isinstance(func, partial):
            # asyncio.to_thread() calls the function in a context.
            is_context = isinstance(getattr(func.func, "__self__", None), Context) and func.args
            func = func.args[0] if is_context else func.func
        if not hasattr(func, "__qualname__"):
            func = type(func)
        module = getattr(func, "__module__", None)  # a method of a type in C has none
        self.name = f"{module}.{func.__qualname__}"
        self.page: Page = ("thread", 0, self.name)
        self._since_s = inf  # it computes; infinite while it waits
        self._noted_s = inf  # _since_s, when it has blocked last
        self._times, self._blocked_s = 0, 0.0

    def go_on(self) -> None:
        """Note that it begins, or that a wait of it has ended."""
        self._since_s = monotonic()

    def switch_out(self) -> None:
        """Note that it waits, or has ended."""
        self._since_s = inf

    def computed_at(self, now: float, _: float) -> bool:
        """Return whether it has computed without a wait since *now*, monotonic seconds, float."""
        return self._since_s <= now

    def blocks_again(self, blocked_s: float) -> bool:
        """
        Note that it has blocked; return whether it has done so again and again, between waits.

        :param blocked_s: for how long, seconds, float.
        """
        if self._noted_s != self._since_s:
            self._noted_s = self._since_s
            self._times += 1
        self._blocked_s += blocked_s
        return self._times >= MIN_BLOCKED and self._blocked_s >= self._times * BLOCKED_S


class Pages:
    """
    The pages and tasks that have blocked the worker in C code. Call from one thread.

    :param log: where the pages are named that run in threads.
    :param known_s: returns how long the page of a request computes without a wait, seconds, float;
        0: it is not known. Default: 0.
    """

    def __init__(self, log: Any, known_s: Callable[[Any], float] = lambda _: 0.0) -> None:
        self._log = log
        self._known_s = known_s
        # Whether all calls into C code are noted now: then their requests are counted.
        self.is_counting: Callable[[], bool] = lambda: False
        # The last used one is at the end. Empty: there is nothing to call find() for.
        self.found: dict[Page, Blocking] = {}

    def note(self, request: Any, blocked_s: float, computed_s: float) -> None:
        """
        Note that a request or a task has blocked the worker in C code.

        :param request: has a ``method`` and a ``path``, or is a :class:`Task`.
        :param blocked_s: for how long, seconds, float.
        :param computed_s: for how long it used the processor meanwhile, seconds, float.
        """
        # Beside threads that compute it may have waited for the interpreter's lock.
        if computed_s > blocked_s or _computing.is_used():
            blocked_s = computed_s
        is_task = type(request) is Task
        page = request.page if is_task else page_of(request.method, request.path)
        known_s = 0.0 if is_task else self._known_s(request)
        found = self.found.pop(page, Blocking())
        self.found[page] = found
        if len(self.found) > MAX_PAGES:
            del self.found[next(iter(self.found))]
        if found.note(request, blocked_s, computed_s, known_s):
            text = "%s %s blocks in C code for %.0f ms: the next ones run in native threads"
            self._log.info(text, *page[::2], found.blocked_s / found.requests * 1000)

    def find(self, request: Any, environ: dict[str, Any]) -> Blocking | None:
        """
        Return the page that runs *request* in a native thread; None: it runs in its greenlet.

        :param request: has a ``method`` and a ``path``.
        :param environ: its environ.
        """
        if "HTTP_UPGRADE" in environ:  # a WebSocket would keep a thread while its client is there
            return None
        return self._find(page_of(request.method, request.path), request)

    def find_task(self, task: Task) -> Blocking | None:
        """Return what runs *task* in a native thread; None: it runs in its greenlet."""
        return self._find(task.page, task)

    def _find(self, page: Page, request: Any) -> Blocking | None:
        found = self.found.get(page)
        if found is None:
            return None
        if found.places is not None:
            self.found[page] = self.found.pop(page)
            found.moved.add(request)
            return found
        if self.is_counting():
            found.requests += 1
            requests, blocked_s = BY_CHANCE
            if found.requests >= requests and found.blocked_s < blocked_s * found.requests:
                del self.found[page]  # as long as there are any, each request looks for its page
        return None


def may_move() -> bool:
    """Return whether what the application has loaded works in native threads."""
    return not any(name in sys.modules for name in OF_ONE_THREAD) and not _uses_gevent()


@cache  # it takes some milliseconds
def _uses_gevent() -> bool:
    return any(
        name.partition(".")[0] not in GREEN
        and any(value is each for value in list(namespace.values()) for each in OF_THE_HUB)
        and _needs_gevent(namespace.get("__file__") or "")
        for name, namespace in namespaces()
    )


def _needs_gevent(file: str) -> bool:
    """
    Return whether a module that has gevent is the application's, or imports it in any case.

    A library that goes on without gevent, as huey does, uses it where the application wants it to.
    """
    if INSTALLED.isdisjoint(Path(file).parts):
        return True
    try:
        statements = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    return any(map(_imports_gevent, statements))


def _imports_gevent(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Import):
        return any(each.name.partition(".")[0] == "gevent" for each in statement.names)
    if isinstance(statement, ast.ImportFrom):
        return str(statement.module).partition(".")[0] == "gevent"
    is_guarded = isinstance(statement, ast.Try) and statement.handlers
    return not is_guarded and any(map(_imports_gevent, ast.iter_child_nodes(statement)))
