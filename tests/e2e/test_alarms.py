"""SIGALRM in an application that the worker hosts."""

from concurrent.futures import ThreadPoolExecutor

from tests.e2e.test_hosting import hosting
from tests.support import wait_until

TARGET = "tests.e2e.alarming:app"


def test_a_handler_set_in_a_request_is_an_error_as_in_a_thread() -> None:
    """500 for that request alone; a child process may restore its signals."""
    with hosting(TARGET) as running, ThreadPoolExecutor(1) as clients:
        pid = running.get("/").body
        waiting = clients.submit(running.get, "/wait")
        assert running.get("/handler").status == 500
        assert (waiting.result().status, waiting.result().body) == (200, pid)
        assert "ValueError: signal only works in main thread" in running.log
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
