"""greenline.hub.epoll: ``select.epoll`` waits in the hub, as a thread waits in the kernel."""

import pytest

from tests.helpers.script import TICKS, run

pytest.importorskip("select", reason="Linux").EPOLLIN  # noqa: B018

SELECT = """
import select, selectors, time
from select import EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT

def later(call, *args):
    return gevent.spawn_later(0.05, call, *args)
"""

# Calls a function when others have run meanwhile.
AFTER_OTHERS = """
def after_others(call, *args):
    def wait(before):
        while len(ticks) < before + 5:
            gevent.sleep(0.005)
        call(*args)
    return gevent.spawn(wait, len(ticks))
"""


def test_it_waits_in_the_hub_until_an_event() -> None:
    """Others run meanwhile; a timeout returns nothing, and a timeout of 0 at once."""
    assert run(f"""{SELECT}{TICKS}{AFTER_OTHERS}
def main():
    mine, its = socket.socketpair()
    with select.epoll() as poller:
        poller.register(mine, EPOLLIN)
        began = time.monotonic()
        tell(poller.poll(0), poller.poll(0.05), time.monotonic() - began >= 0.05)
        after_others(its.sendall, b"x")
        tell(poller.poll(60) == [(mine.fileno(), EPOLLIN)])
        tell(poller.poll(timeout=10, maxevents=1) == [(mine.fileno(), EPOLLIN)])
        poller.modify(mine, EPOLLOUT)
        tell(poller.poll(-1) == [(mine.fileno(), EPOLLOUT)])
        poller.unregister(mine)
        tell(poller.poll(0), poller.closed, poller.fileno() > 2)
    tell(poller.closed)
""") == ["[] [] True", "True", "True", "True", "[] False True", "True"]


def test_edges_and_single_shots_are_reported_once() -> None:
    """Until there is more to read, or the descriptor is modified."""
    assert run(f"""{SELECT}
def main():
    mine, its = socket.socketpair()
    poller = select.epoll()
    poller.register(mine, EPOLLIN | EPOLLET)
    later(its.sendall, b"x")
    tell(len(poller.poll()), poller.poll(0.02))
    later(its.sendall, b"x")
    tell(len(poller.poll()), poller.poll(0.02))
    poller.modify(mine, EPOLLIN | EPOLLONESHOT)
    tell(len(poller.poll()), poller.poll(0.02))
    poller.modify(mine, EPOLLIN | EPOLLONESHOT)
    tell(len(poller.poll()), len(select.epoll.fromfd(os.dup(poller.fileno())).poll(0.02)))
    its.close()
    poller.modify(mine, 0)
    tell(poller.poll()[0][1] & EPOLLHUP == EPOLLHUP)
""") == ["1 []", "1 []", "1 []", "1 0", "True"]


def test_a_closed_one_refuses_and_does_not_keep_a_greenlet_waiting() -> None:
    """Its number is another descriptor's then, whose own waits end with its own events."""
    assert run(
        f"""{SELECT}
def error(call, *args):
    try:
        return call(*args)
    except (ValueError, TypeError, OSError) as error:
        return type(error).__name__ + ": " + str(error)

def main():
    poller = select.epoll()
    number = poller.fileno()
    waiting = gevent.spawn(error, poller.poll)
    gevent.sleep(0.01)
    poller.close()
    tell(poller.closed, error(poller.poll, 0), error(poller.fileno))
    tell(waiting.get(timeout=10))
    tell(error(poller.__enter__), poller.close())
    reads, writes = os.pipe()
    tell(number in (reads, writes))
    later(os.write, writes, b"x")
    tell(os.read(reads, 1))
    poller = select.epoll()
    tell(error(poller.poll, "x"), error(poller.poll, 0, 0), error(poller.register, -1), sep="; ")
""".replace(', sep="; "', "")
    ) == [
        "True ValueError: I/O operation on closed epoll object "
        "ValueError: I/O operation on closed epoll object",
        "ValueError: I/O operation on closed epoll object",
        "ValueError: I/O operation on closed epoll object None",
        "True",
        "b'x'",
        "TypeError: '<' not supported between instances of 'str' and 'int' "
        "ValueError: maxevents must be greater than 0, got 0 "
        "ValueError: file descriptor cannot be a negative integer (-1)",
    ]


def test_a_loop_that_finds_events_at_once_lets_others_run() -> None:
    """As a thread that is busy does."""
    assert run(f"""{SELECT}{TICKS}
def main():
    with select.epoll() as poller:
        poller.register(1, EPOLLOUT)
        while len(ticks) < 5:
            assert poller.poll(1)
    tell("others ran")
""") == ["others ran"]


def test_the_selector_of_it_is_there_also_where_it_was_imported_before_the_patching() -> None:
    """And so is the class itself; the default selector stays gevent's."""
    assert run(
        f"""{SELECT}
def main():
    mine, its = socket.socketpair()
    tell(Early is select.epoll, EarlySelector is selectors.EpollSelector)
    tell(selectors.DefaultSelector.__name__)
    with selectors.EpollSelector() as selector:
        selector.register(mine, selectors.EVENT_READ, "it")
        later(its.sendall, b"x")
        tell(selector.select()[0][0].data)
""",
        before="from select import epoll as Early\n"
        "from selectors import EpollSelector as EarlySelector\n",
    ) == ["True True", "GeventSelector", "it"]


def test_an_offloaded_function_waits_in_its_thread() -> None:
    """With an object that a request has made."""
    assert run(f"""{SELECT}{TICKS}{AFTER_OTHERS}
from greenline.offload.threads import run as in_thread

def main():
    mine, its = socket.socketpair()
    poller = select.epoll()
    poller.register(mine, EPOLLIN)
    after_others(its.sendall, b"x")
    tell(len(in_thread(poller.poll, 60)))
""") == ["1"]
