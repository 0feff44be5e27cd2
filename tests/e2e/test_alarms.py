"""Signals in an application that the worker hosts."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.hosting import hosting
from tests.helpers.support import wait_until

TARGET = "tests.e2e.alarming:app"


def test_a_handler_set_in_a_request_is_an_error_as_in_a_thread() -> None:
    """500 for that request alone; a child process may restore its signals."""
    with hosting(TARGET) as running, ThreadPoolExecutor(1) as clients:
        pid = running.get("/").body
        waiting = clients.submit(running.get, "/wait")
        assert running.get("/handler").status == 500
        assert (waiting.result().status, waiting.result().body) == (200, pid)
        error = "ValueError: signal only works in main thread"
        wait_until(lambda: error in running.log, "the entry")
        assert running.get("/child").body == pid


def test_an_exception_of_the_applications_handler_does_not_end_the_worker() -> None:
    """The handler was set when the application was loaded: its exception is logged."""
    with hosting(TARGET) as running:
        pid = running.get("/").body
        answer = running.get("/alarm")
        assert (answer.status, answer.body) == (200, pid)
        wait_until(lambda: "a signal handler raised an exception" in running.log, "the entry")
        assert "TooLate" in running.log
        assert running.get("/").body == pid


def test_a_wakeup_descriptor_of_the_applications_changes_nothing_for_the_worker() -> None:
    """In a request it is an error; HUP and TERM have their effect, and no client gets a byte."""
    with hosting(TARGET) as running:
        old = running.workers()
        assert running.get("/wakeup").status == 500
        assert running.get("/loop").status == 500
        # One of them has the number that the closed loop had.
        clients = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(5)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")
        os.kill(running.process.pid, signal.SIGHUP)
        wait_until(lambda: running.workers() not in ([], old), "another worker")
        for client in clients:
            with client:
                client.settimeout(30)
                assert client.recv(65_536) == b""
        wait_until(lambda: len(running.workers()) == 1, "the old worker's end")
        assert running.stop() == 0
        # gunicorn may send another SIGTERM when Python has put the default handlers back.
        assert f"Worker exiting (pid: {old[0]})" in running.log
