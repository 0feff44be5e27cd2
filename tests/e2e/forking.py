"""A WSGI application whose views start processes, in every way that Python has."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

log = logging.getLogger("forking")
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")

if "FORKING_AT_IMPORT" in os.environ and os.fork() == 0:
    log.info("imported in %d as well", os.getpid())


def square(number: int) -> int:
    """Return the square: what a child computes."""
    return number * number


def send_square(number: int, pipe: Any) -> None:
    """Send the square, and 100 kB with it, which no pipe holds."""
    pipe.send((number * number, b"x" * 100_000))


def query(number: int, pipe: Any) -> None:
    """Send what a connection and threads of the child's own give."""
    import psycopg2  # not at the head: most of the children do without

    with psycopg2.connect(os.environ["DATABASE_URL"]) as connection:
        cursor = connection.cursor()
        cursor.execute("select %s * %s from pg_sleep(0.01)", (number, number))
        pipe.send((cursor.fetchone()[0], b""))


def process(number: int, method: str, target: Callable[..., None] = send_square) -> int:
    context: Any = multiprocessing.get_context(method)
    mine, its = context.Pipe()
    child = context.Process(target=target, args=(number, its))
    child.start()
    its.close()
    result, _ = mine.recv()
    child.join()
    assert child.exitcode == 0, child.exitcode
    return int(result)


def process_query(number: int, method: str) -> int:
    return process(number, method, query)


def pool(number: int, method: str) -> int:
    with multiprocessing.get_context(method).Pool(2) as processes:
        first, second = processes.map(square, [number, number + 1], chunksize=1)
    assert second == (number + 1) ** 2
    return int(first)


def executor(number: int, method: str) -> int:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as processes:
        first, second = processes.map(square, [number, number + 1])
    assert second == (number + 1) ** 2
    return int(first)


def kept_pool(number: int, _: str) -> int:
    return int(_kept_pool().apply(square, (number,)))


def kept_executor(number: int, _: str) -> int:
    return _kept_executor().submit(square, number).result()


@cache
def _kept_pool() -> Any:
    return multiprocessing.get_context("fork").Pool(2)


@cache
def _kept_executor() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))


def queue(number: int, method: str) -> int:
    """A queue with its feeder thread, a lock, a counter and an event, all shared."""
    context: Any = multiprocessing.get_context(method)
    numbers, results = context.Queue(), context.Queue()
    counter, is_done = context.Value("i", 0), context.Event()
    children = [
        context.Process(target=work, args=(numbers, results, counter, is_done)) for _ in range(2)
    ]
    for child in children:
        child.start()
    for _ in range(10):
        numbers.put(number)
    found = {results.get() for _ in range(10)}
    is_done.wait()
    for _ in children:
        numbers.put(None)
    for child in children:
        child.join()
    assert counter.value == 10
    (result,) = found
    return int(result)


def work(numbers: Any, results: Any, counter: Any, is_done: Any) -> None:
    while (number := numbers.get()) is not None:
        with counter.get_lock():
            counter.value += 1
            if counter.value == 10:
                is_done.set()
        results.put(number * number)


def exits(number: int, _: str) -> int:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, b"%d" % (number * number))
        os._exit(7)
    return finish(child, reading, writing, status=7)


def returns(number: int, _: str) -> int:
    """Its child goes on in the view, which returns an answer in both processes."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, b"%d" % (number * number))
        log.info("the child %d returns", number)
        return -1
    return finish(child, reading, writing)


def raises(number: int, _: str) -> int:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, b"%d" % (number * number))
        raise RuntimeError(f"the child {number} fails")
    return finish(child, reading, writing, status=1)


def sys_exits(number: int, _: str) -> int:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, b"%d" % (number * number))
        sys.exit(9)
    return finish(child, reading, writing, status=9)


def execs(number: int, _: str) -> int:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(writing, 1)
        os.execv("/bin/echo", ["echo", "-n", str(number * number)])
    return finish(child, reading, writing)


def finish(child: int, reading: int, writing: int, status: int = 0) -> int:
    """Return what the child wrote, when it has ended."""
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == status, ended
    os.close(writing)
    with open(reading, "rb") as answer:
        return int(answer.read())


def run(number: int, _: str) -> int:
    done = subprocess.run(
        ["/bin/sh", "-c", f"echo $(({number} * {number}))"], capture_output=True, check=True
    )
    return int(done.stdout)


def system(number: int, _: str) -> int:
    return os.waitstatus_to_exitcode(os.system(f"exit {number}")) ** 2  # noqa: S605


FORMS = {
    form.__name__: form
    for form in (
        process, process_query, pool, executor, kept_pool, kept_executor, queue, exits, returns,
        raises, sys_exits, execs, run, system,
    )
}  # fmt: skip


def left(_: int, __: str) -> int:
    """Leave children behind that nothing waits for; log their process ids."""
    context: Any = multiprocessing.get_context("fork")
    for target in (stay, detach, fork_twice):
        mine, its = context.Pipe()
        context.Process(target=target, args=(its,)).start()
        its.close()
        log.info("%s: %d", target.__name__, mine.recv())
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, b"%d" % os.getpid())
        signal.pause()
    log.info("raw: %s", os.read(reading, 100).decode())
    return 0


def stay(pipe: Any) -> None:
    """Tell the process id and stay until a signal."""
    pipe.send(os.getpid())
    time.sleep(600)


def detach(pipe: Any) -> None:
    """Stay in a session of its own."""
    os.setsid()
    stay(pipe)


def fork_twice(pipe: Any) -> None:
    """Let a grandchild stay, and end."""
    if os.fork() == 0:
        stay(pipe)


FORMS["left"] = left


def streams(number: int) -> Iterator[bytes]:
    """Fork in the middle of an answer; the child's part of it goes nowhere, and ends the child."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, b"%d" % (number * number))
        yield b"the child's"
        os._exit(1)
    yield b"%d" % finish(child, reading, writing)


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with the square of the number n, computed in a child by the form in the path."""
    query = dict(parse_qsl(environ["QUERY_STRING"]))
    number = int(query.get("n", 0))
    name = environ["PATH_INFO"].strip("/")
    if name == "streams":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return streams(number)
    if name == "count":
        result = -1
    else:
        import psycopg2

        connection = psycopg2.connect(os.environ["DATABASE_URL"])
        cursor = connection.cursor()
        cursor.execute("select %s + 0", (number,))
        if name == "bystander":
            cursor.execute("select %s * %s from pg_sleep(0.02)", (number, number))
            result = cursor.fetchone()[0]
        else:
            result = FORMS[name](number, query.get("method", ""))
            if result > 0:  # else in a child, which has no connection
                cursor.execute("select %s * %s", (number, number))
                assert cursor.fetchone()[0] == result
        connection.close()
    body = b"%d" % result
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
