"""greenline.offload.semaphores: locks of multiprocessing between greenlets and processes."""

from tests.helpers.script import TICKING, run


def test_a_semaphore_is_waited_for_in_the_hub() -> None:
    """With and without a time, and a recursive lock belongs to one greenlet."""
    lines = run(f"""{TICKING}
def hold(lock, pipe):
    with lock:
        pipe.send(None)
        pipe.poll(20)  # until it is told to release the lock

def let_go(pipe):
    after = len(ticks) + 10
    while len(ticks) < after:
        gevent.sleep(0.005)
    pipe.send(None)

def main():
    lock, recursive = multiprocessing.Lock(), multiprocessing.RLock()
    for one in (lock, recursive):
        mine, its = multiprocessing.Pipe()
        process = multiprocessing.Process(target=hold, args=(one, its))
        process.start()
        mine.recv()
        report(lambda: one.acquire(False))
        report(lambda: one.acquire(timeout=0.5))
        gevent.spawn(let_go, mine)
        report(one.acquire)
        one.release()
        process.join()
    with recursive, recursive:
        other = gevent.spawn(recursive.acquire, False)
        tell("another greenlet", other.get())
        tell("another greenlet", gevent.spawn(release, recursive).get())
    tell("another greenlet", gevent.spawn(recursive.acquire, False).get())

def release(lock):
    try:
        lock.release()
    except AssertionError as error:
        return error
""")
    each = ["False alone", "False with others", "True with others"]
    assert lines == [
        *each,
        *each,
        "another greenlet False",
        "another greenlet attempt to release recursive lock not owned by thread",
        "another greenlet True",
    ]


def test_a_recursive_lock_is_shared_with_offload_threads() -> None:
    """Also where such a thread waits in a hub between two acquisitions."""
    lines = run(f"""{TICKING}
from greenline.offload import threads

def main():
    value = multiprocessing.Value("i", 0)

    def add():
        with value.get_lock():
            before = value.value
            time.sleep(0.001)
            value.value = before + 1

    def work():
        add()
        threads.run(add)
        add()

    gevent.joinall([gevent.spawn(work) for _ in range(5)], timeout=5)
    tell(value.value)
""")
    assert lines == ["15"]


def test_greenlets_wait_in_order() -> None:
    """Also where the one that has released it wants it again at once."""
    lines = run("""
def main():
    for lock in (multiprocessing.Lock(), multiprocessing.RLock(), multiprocessing.Semaphore(1)):
        order = []

        def work(name):
            for _ in range(3):
                with lock:
                    order.append(name)
                    time.sleep(0.001)

        gevent.joinall([gevent.spawn(work, name) for name in "abcd"])
        tell("".join(order))
""")
    assert lines == ["abcdabcdabcd"] * 3


def test_each_of_several_places_is_taken() -> None:
    """Where more than one is free, and the first that waits gives up."""
    lines = run("""
def main():
    places = multiprocessing.Semaphore(2)
    places.acquire(), places.acquire()
    impatient = gevent.spawn(places.acquire, timeout=0.05)
    patient = [gevent.spawn(places.acquire) for _ in range(3)]
    gevent.sleep(0)
    tell(impatient.get(), *(one.ready() for one in patient))
    places.release(), places.release()
    gevent.joinall(patient, timeout=10, count=2)
    gevent.sleep(0.01)
    tell(*(one.ready() for one in patient))
    patient[2].kill()
    tell(places.acquire(False), places.acquire(timeout=0.01))
""")
    assert lines == ["False False False False", "True True False", "False False"]


def test_a_child_does_not_queue_behind_greenlets_of_its_parent() -> None:
    """They never run in it."""
    lines = run("""
def main():
    lock = multiprocessing.Lock()
    lock.acquire()
    waiting = gevent.spawn(lock.acquire)
    gevent.sleep(0)
    process = multiprocessing.Process(target=lambda: tell(lock.acquire(timeout=10)))
    process.start()
    waiting.kill()
    lock.release()
    process.join()
    tell(process.exitcode)
""")
    assert lines == ["True", "0"]
