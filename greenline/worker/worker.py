"""
The gunicorn worker: accept clients, read their requests, call the application, send its responses.

``gunicorn -k greenline.worker.GreenWorker any.wsgi:app`` hosts an unmodified application. The
settings of gunicorn keep their meaning. gunicorn itself reads connections that may use HTTP/2.
"""

import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from operator import itemgetter
from time import monotonic
from typing import Any

import gevent
from gevent import GreenletExit
from gevent.monkey import get_original

from greenline import offload, settings
from greenline.admission.adaptive import INITIAL
from greenline.admission.limiter import limiter, refuse
from greenline.errors import ClientGone, ConfigError, Overloaded, Unavailable
from greenline.http import h1c_compat, http2, proxy_headers
from greenline.http.client import Client
from greenline.http.connection import ClientConnection
from greenline.http.error_responses import ErrorResponses
from greenline.http.fast_parser import Rules
from greenline.http.gunicorn_compat import (
    ALREADY_HANDLED,
    GeventWorker,
    HTTP2ConnectionError,
    HTTP2Error,
    NoMoreData,
    WSGIErrorsWrapper,
    base_environ,
    is_http2_negotiated,
    may_use_fast_parser,
    negotiation,
    ssl_context,
)
from greenline.http.plain_client import PlainClient, Sweep
from greenline.http.response import Response
from greenline.http.tls_client import TlsClient
from greenline.hub import (
    blocking,
    deadline,
    disconnect,
    handlers,
    inherited,
    lock_waits,
    native_locals,
    request_end,
    stacks,
    unavailable,
    uncaught,
)
from greenline.hub.request_timeout import REASON, RequestTimeout, RequestTimeouts
from greenline.hub.slices import Slices
from greenline.hub.watchdog import Watchdog
from greenline.lifecycle.drain import TICK_S, Drain, Guest
from greenline.lifecycle.resources import close_at_exit
from greenline.offload import clients, fork, pages, semaphores, tasks
from greenline.patch import gevent_patches, hook_libraries, hook_pymongo
from greenline.telemetry import counters, log_format, shared_memory
from greenline.telemetry.reports import Reports
from greenline.telemetry.request_log import RequestLog
from greenline.worker import arbiter, signals, slow_statements, tracing
from greenline.worker.heartbeat import Heartbeat
from greenline.worker.listener import Clients, Listener, Name
from greenline.worker.loading import few_collections
from greenline.worker.reporter import Reporter

RETIRE_EVERY_S, RETIRE_UNUSED_S = 0.3, 10.0
STREAMS_EVERY_S = 0.25
STUCK_S = 15.0  # if gunicorn's timeout is off
TAKEN_OVER = 101  # the status logged if the application has taken over the socket


class GreenWorker(GeventWorker):  # type: ignore[misc]
    """
    gunicorn's gevent worker, with admission, time limits for clients and a drain at its end.

    :param args: gunicorn's, as for its GeventWorker.
    :param kwargs: the same.
    """

    alive: bool
    is_over = False
    early_signals: Any  # the arbiter's queue of signals, as the fork has copied it
    _servers: Sequence[Listener] = ()
    _retired_s, _retire_every_s, _wanted = 0.0, RETIRE_EVERY_S, inf
    _streams_s = 0.0  # the time of the last look for streams
    _is_orphan = False
    _lag_s = 0.0  # by which the hub was late at the last look
    moves_pages = True  # that block in C code into native threads
    shared_fd = -1  # of the memory that holds the counters of all workers

    @classmethod
    def setup(cls) -> None:
        """Check the settings and create the shared counters; gunicorn's arbiter calls it."""
        try:
            settings.check()
        except ConfigError as error:
            sys.exit(f"greenline: {error}")
        arbiter.format_log()
        semaphores.install()
        hook_pymongo()  # preload_app: what is made here may connect in the workers alone
        tracing.hook_pymongo()
        slow_statements.hook_pymongo()
        if cls.shared_fd < 0:  # a reload calls this again, and old workers still count
            cls.shared_fd = shared_memory.share()
            fork.prepare_threads()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_patched = False
        arbiter.attend(self.cfg)

    def patch(self) -> None:
        # Called before post_fork, and again by gunicorn, whose method cannot run twice: it replaces
        # the listening sockets.
        if self._is_patched:
            return
        self._is_patched = True
        with gevent_patches():
            super().patch()
        if shared := native_locals.holders():
            native_locals.install()
            if self.age == 1:
                by = "preload_app" if self.cfg.preload_app else "gunicorn's configuration"
                self.log.warning(
                    "%s: imported by %s, before the worker was patched: its "
                    "thread-locals belong to greenlets all the same",
                    ", ".join(shared), by,
                )  # fmt: skip
        lock_waits.install()
        handlers.install()
        self.prepare_libraries(self.cfg)
        fork.install()
        signals.keep_to_main_greenlet()
        offload.patch()
        inherited.forget()

    @staticmethod
    def prepare_libraries(cfg: Any) -> None:
        """Make the application's libraries green; a dry run does it as well, to load as here."""
        hook_libraries()
        tracing.hook_libraries()
        slow_statements.hook_libraries()
        # postgres.open() and mongo.open() divide what the servers allow by this number.
        os.environ[settings.WORKERS.name] = str(cfg.workers)

    def init_signals(self) -> None:
        """Set gunicorn's handlers of signals."""
        super().init_signals()
        # Only gunicorn's sync worker reads this pipe. The signals of Slices would fill it, and from
        # then on Python would write a traceback for each.
        signal.set_wakeup_fd(-1)

    def load_wsgi(self) -> None:
        """Load the application."""
        close_at_exit(self._release)  # first, so that it runs after what the application registers
        with few_collections():
            super().load_wsgi()

    def run(self) -> None:
        if fork.is_child:  # the application has forked while it was loaded
            fork.end(None)
        self.prepare()
        servers = self._servers = [self._listen(listener) for listener in self.sockets]
        arbiter.note_boot()  # not before: the release may still fail to listen
        heartbeat = Heartbeat(self.notify, self.cfg.timeout)
        heartbeat.start()
        if self._must_stop():
            self.alive = False
        while self.alive and not arbiter.is_stopping():
            heartbeat.beat()
            self._reporter.attend()
            self._counters.read_gauges()
            self._close_idle()
            self._release_streams()
            try:
                self._free_slots()
                begun_s = monotonic()
                gevent.sleep(TICK_S)
                self._lag_s = monotonic() - begun_s - TICK_S
            except SystemError:  # the event loop cannot continue
                raise
            except Exception:
                # gevent raises here the errors of signal handlers that ran while no greenlet did.
                self.log.exception("a signal handler raised an exception")
        self.alive = False
        # From now on each response says "Connection: close".
        Response.is_ending = True

        def beat() -> None:
            heartbeat.beat()
            self._reporter.attend()
            self._counters.read_gauges()
            self._release_streams()

        signals.ignore_exits()
        drain = Drain(self.cfg.graceful_timeout, beat)
        # Keep accepting for a moment: /readyz fails by now, and the load balancer needs time to
        # notice. A worker that is replaced need not wait.
        if arbiter.is_stopping():
            drain.go_on(settings.DRAIN_DELAY.read())
        for server in servers:
            server.leave()
        gevent.sleep(0)  # the clients just accepted enter self.conversations
        for server in servers:
            server.close()
        drain.finish(self.conversations, self.proxy_s)
        signals.finish(beat)
        tracing.end(drain)
        self._counters.flush()
        for one in list(self.conversations):
            if what := one.what():
                self.log.warning("request still running after it was cancelled: %s", what)
        self._reporter.end()
        self.is_over = True

    def notify(self) -> None:
        """Notify the arbiter; stop as after its SIGTERM if it has ended."""
        if self.ppid == os.getppid():
            super().notify()
        elif not self._is_orphan:
            self._is_orphan = True
            self.log.info("Parent changed, shutting down: %s", self)
            self.alive = False
            # As the arbiter would. A worker may wait at its exit for processes that wait for its
            # own end, such as those of multiprocessing.
            get_original("_thread", "start_new_thread")(_kill_after, (self.cfg.graceful_timeout,))

    def _must_stop(self) -> bool:
        """Return whether SIGTERM arrived while this worker booted."""
        # Until a worker has booted, the arbiter's signal handler runs in it and puts the signal
        # into a queue that is never read.
        while not self.early_signals.empty():
            if self.early_signals.get_nowait() == signal.SIGTERM:
                return True
        return False

    def prepare(self) -> None:
        """Create the objects that all requests share; runs after the application was loaded."""
        cfg = self.cfg
        proxy_headers.ignore_default_names(cfg)
        self.limits = settings.limits()
        # An idle connection must not be closed before the proxy closes it: a request that the proxy
        # is about to send on it would end as a 502.
        configured_s = settings.PROXY_KEEPALIVE.read()
        self.proxy_s = cfg.keepalive if configured_s is None else configured_s
        self.keepalive_s = cfg.keepalive and max(cfg.keepalive, self.proxy_s)
        self._counters = counters.join(self.shared_fd)
        reports = Reports(self.shared_fd, self._counters.row, os.getpid())
        slow_s = settings.slow_s()
        self._request_log = RequestLog(
            cfg,
            self.log,
            self._counters,
            as_json=settings.access_log_is_json(),
            has_metrics=settings.OPS_BIND.read() is not None,
            reports=reports,
            slow_s=slow_s,
        )
        if log_format.is_json():
            uncaught.install()
        Response.count = self._request_log.count
        self._error_responses = ErrorResponses(cfg, self.log, self._request_log, self.handle_error)
        self.base = base_environ(cfg)  # after RequestLog has replaced sys.stderr
        self.rules = Rules(cfg)
        self._handlers = handlers.Handlers()
        self._pages = pages.Pages(self.log, self._handlers.turns.known_s)
        counters.add("handlers", self._handlers.stats)
        self.sweep = Sweep()
        self.sweep.start()
        self.conversations: set[ClientConnection | Guest] = set()
        self._streams: set[http2.StreamResponse] = set()  # in progress
        self._reporter = Reporter(reports, self._counters, self.conversations)
        self._pre_request = self._hook("pre_request")
        self._post_request = self._hook("post_request")
        # A new worker starts with the limit that the others have found.
        learnt = self._counters.inherited.get(("limiter", "limit"), 0)
        self._limiter = limiter(
            settings.admission(),
            learnt,
            starved=_slot_waits,
            spare=self._handlers.idle,
            connected=lambda: sum(server.connected() for server in self._servers),
            unaccepted=lambda: sum(server.unaccepted() for server in self._servers),
        )
        counters.add("limiter", self._limiter.stats)
        counters.add("limiter", partial(dict, max_waiting=settings.MAX_WAITING.read() or 0))
        counters.add("connections", self._count_connections)
        counters.add(counters.OF_ONE, self._describe)
        self._serves_in_hub = self._has_fast_parser()
        self._connect = partial(
            ClientConnection,
            rules=self.rules,
            base=self.base,
            limits=self.limits,
            limiter=self._limiter,
            keepalive_s=self.keepalive_s,
            answer=self.answer,
            handlers=self._handlers if self._serves_in_hub else None,
            spawn=partial(gevent.spawn, self._converse),
            sweep=self.sweep,
        )
        self._limit_requests()
        self._respond = tracing.begin(  # type: ignore[method-assign]
            self._respond, self.log, is_first=self.age == 1
        )
        has_hooks = self._pre_request is not None or self._post_request is not None
        self._run = self._respond_with_hooks if has_hooks else self._respond
        # The objects of the loaded application are permanent: exclude them from collections.
        gc.collect()
        self._adopt_flask()
        stacks.note_permanent()
        gc.freeze()
        # Not before: that collection would be reported as a blocked hub.
        self._watch_hub(self._interrupt_long_ones())
        if self.age == 1:  # the first worker only: the others have the same application
            for name, why in blocking.found():
                self.log.warning("%s: %s", name, why)
            if negotiation.upgrade_allowed(self.cfg, ""):  # for a trusted peer
                self.log.warning(
                    "http2_cleartext: HTTP/1 requests of trusted peers are served by gunicorn, "
                    "without a limit, a queue and REQUEST_TIMEOUT"
                )

    def _release(self) -> None:
        """
        Release the application at the exit of this process, so that its objects are destroyed: the
        rest of a file that it has not closed is written then.
        """
        # What is per thread and what is garbage is destroyed here: later, when the interpreter
        # ends, destructors that log or use a thread-local fail.
        self._handlers.retire_idle(self._handlers.idle())
        gevent.sleep(0)  # they end
        gevent.sleep(0)  # the loop drops their callbacks, which refer to them
        gc.collect()
        # Native threads keep this worker, and what is frozen is never collected.
        del self.wsgi, self.app
        gc.unfreeze()

    def _adopt_flask(self) -> None:
        # Before gc.freeze(), as applications behind a middleware are found by the collector.
        if not settings.FAST_FLASK.read() or "flask" not in sys.modules:
            return
        from greenline.flask import adopt_loaded  # imports Flask, which few applications need

        line = adopt_loaded(self.wsgi)
        if self.age == 1:  # the others have the same application
            self.log.info("greenline.flask: %s", line)

    def _count_connections(self) -> dict[str, int]:
        connected = sum(server.connected() for server in self._servers)
        started, limiter = self._handlers.stats(), self._limiter.stats()
        # To count them at each look would cost the worker a part of its time.
        busy = started["size"] - started["idle"] + limiter["waiting"]
        most = self.worker_connections * len(self._servers)
        return {"open": connected, "idle": max(connected - busy, 0), "max": most}

    def _describe(self) -> dict[str, int]:
        return {
            "pid": os.getpid(),
            "lag_us": max(0, int(self._lag_s * 1e6)),
            "configured": self.cfg.workers,
        }

    def handle(self, listener: Any, sock: Any, addr: Any) -> None:
        """
        Serve one client until either side closes the connection.

        :param listener: the :class:`Name` of the listener.
        :param sock: the client's socket.
        :param addr: the client's address.
        """
        sock.setblocking(1)
        is_tls = isinstance(sock, ssl.SSLSocket)
        if is_tls and not self._shakes_hands(sock):
            return
        if (is_tls and is_http2_negotiated(sock)) or self._may_upgrade(addr):
            self._let_gunicorn_handle(listener, sock, addr)
            return
        name, on_end = listener.getsockname(), self.conversations.discard
        connection = self._connect(sock, addr, name, on_end=on_end)
        self.conversations.add(connection)
        self._converse(connection)

    def begin(self, listener: Any, clients: Clients, sock: Any, addr: Any) -> bool:
        """
        Serve a client that needs no greenlet of its own; call it in the hub.

        :param listener: the :class:`Name` of the listener.
        :param clients: those of the listener.
        :param sock: the client's socket.
        :param addr: the client's address.
        :returns: False, with nothing done, if :meth:`handle` has to serve it.
        """
        if not self._serves_in_hub or self._may_upgrade(addr):
            return False
        sock.setblocking(1)  # whatever socket.setdefaulttimeout() says

        def end(connection: ClientConnection) -> None:
            self.conversations.discard(connection)
            clients.leave()

        connection = self._connect(sock, addr, listener.getsockname(), on_end=end)
        clients.enter()
        self.conversations.add(connection)
        connection.begin()
        return True

    def _converse(self, connection: ClientConnection) -> None:
        """Have requests of a client answered in this greenlet; close the connection at its end."""
        goes_on = False
        try:
            goes_on = connection.converse()
        except (StopIteration, NoMoreData) as error:
            # The application took over the socket, or the client closed it in a request.
            self.log.debug("Closing connection. %r", error)
        except ClientGone:
            self._counters.count(("gone",))
        except GreenletExit:
            if not self.alive:  # else _close_idle() has closed it
                self._error_responses.cut(connection)
        except BaseException as error:
            self._error_responses.give_up(connection, connection.addr, error)
        finally:
            if not goes_on:
                connection.close()

    def _may_upgrade(self, addr: Any) -> bool:
        """Return whether a client with this address may speak HTTP/2 without TLS."""
        return bool(
            negotiation.prior_knowledge_allowed(self.cfg, addr)
            or negotiation.upgrade_allowed(self.cfg, addr)
        )

    def _let_gunicorn_handle(self, listener: Any, sock: Any, addr: Any) -> None:
        """Serve a client that may speak HTTP/2."""
        guest = Guest()
        self.conversations.add(guest)
        try:
            super().handle(listener, sock, addr)
        finally:
            self.conversations.discard(guest)

    def answer(self, connection: ClientConnection, request: Any, in_handler: bool) -> bool:
        """
        Call the application and send its response. All HTTP/1 requests pass here.

        :param connection: the client's.
        :param request: the request.
        :param in_handler: whether this greenlet is a handler, bool: the application may run in it.
        :returns: whether the connection stays open.
        :raises ClientGone: the client disconnected while the request waited for admission.
        :raises RequestTimeout: the request was not answered in time.
        :raises OSError: the client is gone, or too slow.
        :raises Exception: the application's.
        """
        response, environ = connection.respond(request)
        started = connection.started_s
        try:
            self.nr += 1
            if self.nr >= self.max_requests:
                self._end_after_this()
            if not self.alive or not self.keepalive_s:
                response.force_close()
            try:
                queued = connection.queued
                if queued is not None:
                    connection.queued = None
                in_turn = None if in_handler else self._in_turn(request)
                is_long = not in_handler and self._handlers.turns.known_s(request) > 0
                admitted = self._limiter.acquire(environ, connection.sock, queued, in_turn, is_long)
            except Overloaded as error:
                self._counters.count(("refused", error.reason))
                if connection.withholds_body():
                    # After this response the client may send the body or not (RFC 9110, 10.1.1).
                    response.force_close()
                self._run(refuse, environ, response, started, request)
                return not response.should_close()
            except RequestTimeout as error:
                self._log_timeout_in_queue(environ, request, error)
                raise
            # Reads and writes that wait suspend it. An exempt request is not counted.
            if admitted is not None:
                connection.begin_count()
            try:
                if in_handler:
                    self._run(self.wsgi, environ, response, started, request)
                else:
                    connection.ask_for_body()
                    self._handlers.run(
                        self._run, self.wsgi, environ, response, started, request, request=request
                    )
            finally:
                if connection.end_count():  # the rest of the body must not suspend it
                    self._limiter.release(admitted, (response.status_code or 500) < 500)
            # Without a head the application has taken over the socket, and may have closed it.
            return not response.headers_sent or not response.should_close()
        finally:
            # It refers to the response, which refers to the environ: leave no cycle.
            environ.pop("wsgi.early_hints", None)

    def handle_http2_request(
        self, listener_name: Any, req: Any, sock: Any, addr: Any, h2_conn: Any
    ) -> None:
        """
        Answer one stream of an HTTP/2 connection, as :meth:`answer` does for HTTP/1.

        :param listener_name: the address of the listener.
        :param req: gunicorn's request.
        :param sock: the client's socket.
        :param addr: the client's address.
        :param h2_conn: gunicorn's connection.
        :raises HTTP2ConnectionError: the client disconnected while the request waited.
        :raises Exception: the application's, which gunicorn logs and answers with a 500.
        """
        started = monotonic()
        response, environ = http2.respond(req, sock, addr, listener_name, h2_conn, self.cfg)
        self.nr += 1
        if self.nr >= self.max_requests:
            self._end_after_this()
        try:
            self._answer_stream(environ, response, started, req)
        except ClientGone as error:
            self._counters.count(("gone",))
            raise HTTP2ConnectionError(str(error)) from error
        except HTTP2Error:
            raise
        except RequestTimeout as error:
            self._report_failed_stream(environ, req, response, REASON, started)
            # gunicorn sends the 504, or resets the stream if its response has begun.
            h2_conn.send_error(req.stream.stream_id, 504, str(error))
        except Exception:
            self._report_failed_stream(environ, req, response, "500 Internal Server Error", started)
            raise

    def _in_turn(self, request: Any) -> Callable[[Callable[[], object]], object] | None:
        """Return what calls a function when it is the turn of *request*; None: it takes none."""
        turns = self._handlers.turns
        if turns.pages and turns.must_wait(request):
            return partial(turns.wait, request)
        return None

    def _answer_stream(
        self, environ: dict[str, Any], response: Any, started: float, request: Any
    ) -> None:
        try:
            admitted = self._limiter.acquire(
                environ,
                environ["gunicorn.socket"],
                in_turn=self._in_turn(request),
                is_long=self._handlers.turns.known_s(request) > 0,
            )
        except Overloaded as error:
            self._counters.count(("refused", error.reason))
            self._run(refuse, environ, response, started, request)
            return
        except RequestTimeout as error:
            self._log_timeout_in_queue(environ, request, error)
            raise
        if admitted is not None:  # an exempt request is not counted
            response.limiter = self._limiter
        self._streams.add(response)
        try:
            self._handlers.run(
                self._run, self.wsgi, environ, response, started, request, request=request
            )
        finally:
            self._streams.discard(response)
            if response.limiter is not None:
                self._limiter.release(admitted, (response.status_code or 500) < 500)

    def _report_failed_stream(
        self, environ: dict[str, Any], request: Any, response: Any, status: str, started: float
    ) -> None:
        """Log the error response that gunicorn sends, unless the application has sent its own."""
        deadline.count_in(environ)  # for gunicorn's line
        if not response.headers_sent:
            response.status, response.status_code = status, int(status[:3])
            self._request_log.record(environ, request, response, monotonic() - started)

    def _log_timeout_in_queue(
        self, environ: dict[str, Any], request: Any, error: RequestTimeout
    ) -> None:
        deadline.count_in(environ)
        self.log.warning("%s %s: %s; it waited for admission", request.method, request.path, error)

    def _respond_with_hooks(
        self, application: Any, environ: dict[str, Any], response: Any, started: float, request: Any
    ) -> None:
        """Call the application between gunicorn's hooks ``pre_request`` and ``post_request``."""
        deadline.count_in(environ)
        # In the same handler: data that they keep per thread belongs to this request.
        if self._pre_request is not None:
            self._pre_request(self, request)
        try:
            self._respond(application, environ, response, started, request)
        finally:
            if self._post_request is not None:
                try:
                    self._post_request(self, request, environ, response)
                except Exception:
                    self.log.exception("Exception in post_request hook")

    def _respond(
        self, application: Any, environ: dict[str, Any], response: Any, started: float, request: Any
    ) -> None:
        result: Any = None
        # The databases' waits watch this socket, to end when the client disconnects.
        disconnect.serve(environ["gunicorn.socket"])
        deadline.count_in(environ)
        try:
            blocking = self._pages.find(request, environ) if self._pages.found else None
            if blocking is None:
                result = application(environ, response.start_response)
            else:
                result = blocking.run(application, environ, response)
            if result is ALREADY_HANDLED:
                response.status_code = TAKEN_OVER
                return
            if unavailable.noted:
                unavailable.restate(response)
            if isinstance(result, environ["wsgi.file_wrapper"]):
                response.write_file(result)
                response.close()
            else:
                response.write_all(result)
        except StopIteration:  # flask-sock raises it in place of returning ALREADY_HANDLED
            response.status_code = TAKEN_OVER
            raise
        except Exception as failed:
            if (reason := unavailable.reason()) is not None and not response.headers_sent:
                raise Unavailable(str(reason)) from failed
            raise
        finally:
            # A child that the application forked in this request must not return to the worker.
            if fork.is_child:
                error = sys.exception()
                fork.end(None if error is getattr(response.sock, "error", None) else error)
            if response.headers_sent:  # else an error response is sent and logged
                self._request_log.record(environ, request, response, monotonic() - started)
            try:
                if hasattr(result, "close"):
                    result.close()
            finally:
                try:
                    request_end.run()
                finally:
                    unavailable.forget()

    def handle_quit(self, sig: Any, frame: Any) -> None:
        """Exit without waiting for the requests in progress."""
        # Ctrl-C arrives twice: from the terminal, and as SIGQUIT from the arbiter.
        for each in (signal.SIGINT, signal.SIGQUIT):
            signals.set_handler(each, _do_nothing)  # SIG_IGN: an error if one is pending
        # In a greenlet: the signal may have interrupted any other, and SystemExit in a spawned one
        # ends the main one.
        gevent.spawn(self._quit)

    def _quit(self) -> None:
        """Exit from the main greenlet, unless it is ending already."""
        # The other signal may have been handled before its handler was replaced.
        if not self.is_over:
            self.is_over = True
            self.cfg.worker_int(self)
            sys.exit(0)

    def handle_usr1(self, sig: Any, frame: Any) -> None:
        """Open the log files again, including the stream of ``wsgi.errors``."""
        gevent.spawn(self._reopen)

    def _reopen(self) -> None:
        self.log.reopen_files()
        self._request_log.reopen()
        self.base["wsgi.errors"].streams = WSGIErrorsWrapper(self.cfg).streams

    def _end_after_this(self) -> None:
        if self.alive and arbiter.has_successors():
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    def _shakes_hands(self, sock: Any) -> bool:
        try:
            sock.settimeout(self.limits.head_s)
            sock.do_handshake()
            sock.settimeout(None)
        except OSError as error:
            self.log.debug("No TLS handshake. %r", error)
            return False
        return True

    def _close_idle(self) -> None:
        """Close the longest idle connections of a listener that has little room for new ones."""
        for server in self._servers:
            if (missing := server.missing()) <= 0:
                continue
            idle = [
                (idle_s, each)
                for each in self.conversations
                if isinstance(each, ClientConnection)
                and each.server == server.address
                and (idle_s := each.idle_s()) is not None
                # A proxy may be about to send a request, which would end as a 502.
                and (idle_s > self.proxy_s or not each.is_trusted())
            ]
            idle.sort(key=itemgetter(0), reverse=True)
            for _, each in idle[:missing]:
                each.close_if_idle()

    def _release_streams(self) -> None:
        """Give the places of streams, which may never end, to requests that wait."""
        now = monotonic()
        if now - self._streams_s < STREAMS_EVERY_S or not self._limiter.is_late():
            return
        self._streams_s = now
        for each in self.conversations:
            if isinstance(each, ClientConnection):
                each.leave_if_streaming(now)
        for stream in self._streams:
            stream.leave_if_streaming(now)

    def _free_slots(self) -> None:
        """
        End idle handlers, which may hold connections to Postgres.

        Django keeps one for each thread, so for each handler. It is closed with its handler, and
        its slot is free for another request, worker or process.
        """
        now = monotonic()
        self._handlers.note_idle()
        ended = 0
        if now - self._retired_s >= RETIRE_UNUSED_S:
            self._retired_s = now
            ended = self._handlers.retire_unused(keep=INITIAL)
            self._handlers.turns.forget_unused()
        elif now - self._retired_s >= self._retire_every_s and (wanted := _slots_wanted()):
            self._retired_s = now
            ended = self._handlers.retire_idle(wanted)
            if ended:
                # If fewer requests wait now than at the last attempt, that attempt has freed slots.
                # If not, a pool may hold the slots: try less often.
                has_helped = wanted < self._wanted
                longer_s = min(2 * self._retire_every_s, RETIRE_UNUSED_S)
                self._retire_every_s = RETIRE_EVERY_S if has_helped else longer_s
                self._wanted = wanted
        if ended:
            gevent.sleep(0)  # they end
            gevent.sleep(0)  # the loop runs, and drops, their callbacks, which refer to them
            gc.collect()  # connections in reference cycles, such as Django's, are closed now

    def _has_fast_parser(self) -> bool:
        if h1c_compat.MISFIT and getattr(self.cfg, "http_parser", "auto") != "python":
            self.log.warning(
                "%s: every request is read by gunicorn's Python parser", h1c_compat.MISFIT
            )
        return (
            bool(may_use_fast_parser(self.cfg))
            and not h1c_compat.MISFIT
            and self.cfg.proxy_protocol in ("off", False)  # a bool in gunicorn 23
            and not self.rules.is_uwsgi
        )

    def _hook(self, name: str) -> Any:
        """Return a hook of gunicorn, None if it would do nothing."""
        # The default hooks log at the level debug at most.
        hook = getattr(self.cfg, name)
        is_own = hook is not self.cfg.settings[name].default
        return hook if is_own or self.log.error_log.isEnabledFor(logging.DEBUG) else None

    def _limit_requests(self) -> None:
        """Apply REQUEST_TIMEOUT to each request, unless the application does so itself."""
        timeout_s = settings.REQUEST_TIMEOUT.read()
        if timeout_s is None or getattr(self.wsgi, "limits_requests", False):
            return
        # A wait counts as the client's if one of these modules is in its stack. So never the module
        # of ClientConnection: it is in the stack of every request, and none would be limited.
        modules = {each.__module__ for each in (Client, PlainClient, TlsClient)}
        modules.update(http2.CLIENT_MODULES)
        modules.add(clients.__name__)  # of a request in a native thread
        timeouts = RequestTimeouts(timeout_s, self.log, modules)
        self._respond = timeouts.limited(self._respond)  # type: ignore[method-assign]
        timeouts.start()

    def _interrupt_long_ones(self) -> Slices | None:
        """Start to interrupt what keeps the hub; return None if the settings forbid it."""
        interval_ms = settings.SWITCH_INTERVAL_MS.read()
        if not interval_ms:
            return None
        moves = self.moves_pages and settings.OFFLOAD.read() is not None
        note = (tasks.note,) if moves else ()
        tasks.pages = self._pages if moves else None
        slices = Slices(self._handlers.turns, interval_ms / 1000, *note)
        slices.start(signals.set_handler)
        return slices

    def _watch_hub(self, slices: Slices | None) -> None:
        limit_s = settings.blocked_hub_s()
        if limit_s is not None:
            stuck_s = self.cfg.timeout / 2 or STUCK_S
            blocked = partial(self._counters.count, ("hub_blocked",))
            watchdog = Watchdog(
                limit_s,
                stuck_s=stuck_s,
                on_blocked=blocked,
                progress=lambda: int(self.nr),
                advise=offload.advice_for,
                on_logged=self._reporter.note_block,
                on_stuck=self._reporter.note_hub,
                interrupt=slices.interrupt if slices else lambda is_look: None,
            )
            watchdog.start()
            self._pages.is_counting = watchdog.is_looking

    def _listen(self, listener: Any) -> Listener:
        """Accept clients, at most worker_connections of them."""
        tls = {}
        if self.cfg.is_ssl:
            # The handshake is made in handle(), with a time limit.
            tls = {"ssl_context": ssl_context(self.cfg), "do_handshake_on_connect": False}
        listener.setblocking(1)
        clients, name = Clients(self.worker_connections), Name(listener.getsockname())
        server = Listener(
            listener,
            partial(self.handle, name),
            partial(self.begin, name, clients),
            clients,
            **tls,
        )
        # Accept one at a time: the workers share the socket, and a burst must spread over them.
        if self.cfg.workers > 1:
            server.max_accept = 1
        server.start()
        return server


def _slot_waits() -> int:
    """Return how many requests wait for a connection slot of Postgres; 0 without psycopg2."""
    # Not imported here: an application without psycopg2 must not need it.
    foreign = sys.modules.get("greenline.postgres.foreign")
    return 0 if foreign is None else int(foreign.waiting)


def _slots_wanted() -> int:
    """Return how many requests on the host wait for a slot that this worker may hold."""
    foreign = sys.modules.get("greenline.postgres.foreign")
    return 0 if foreign is None else int(foreign.slots_wanted())


def _kill_after(seconds: float) -> None:
    get_original("time", "sleep")(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _do_nothing(sig: int, frame: Any) -> None:
    """Ignore a signal that was handled already."""


# Its public name, which configurations have: check-deploy looks for it among a class's bases.
GreenWorker.__module__ = "greenline.worker"
