"""greenline.hub.standard_classes: what applications do with events, queues and threads."""

from tests.helpers.support import CHECKOUT, run

USED = """
from greenline.patch import patch_all; patch_all()
import queue, threading, time
event = threading.Event()
event.owner = "mine"
print(event.owner, event.__module__, isinstance(event, threading.Event))
class Latest(queue.Queue):
    "Has one item, as its documentation lets a subclass."
    def _init(self, maxsize):
        self.latest = []
    def _qsize(self):
        return len(self.latest)
    def _put(self, item):
        self.latest = [item]
    def _get(self):
        return self.latest.pop()
latest = Latest()
threading.Timer(0.01, latest.put, [2]).start()
print(latest.get(timeout=10), latest.maxsize, queue.Queue().maxsize)
with latest.mutex, queue.LifoQueue().not_full, queue.PriorityQueue().not_empty:
    pass
"""


def test_they_have_what_the_standard_library_s_have() -> None:
    said = run(["python", "-c", USED], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "mine threading True\n2 0 0\n"


NOTIFIED = """
from greenline.patch import patch_all; patch_all()
import gevent, threading
ran = []
gevent.spawn(ran.append, 1)
for condition in threading.Condition(threading.Lock()), threading.Condition():
    with condition:
        condition.notify()
    try:
        condition.notify()
    except RuntimeError as error:
        print(error)
print(ran)
"""


def test_a_notification_is_no_wait() -> None:
    """Another greenlet would find the lock of a queue held, and be interrupted there."""
    said = run(["python", "-c", NOTIFIED], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "cannot notify on un-acquired lock\n" * 2 + "[]\n"


INTERRUPTED = """
from greenline.patch import patch_all; patch_all()
import gevent, queue, threading
waiting = queue.LifoQueue()
one, other = gevent.spawn(waiting.get), gevent.spawn(waiting.get)
gevent.sleep(0)
one.kill(block=False)  # in the round of the loop in which it would go on, and before that
waiting.put("item")
print(other.get(timeout=10), one.value)
one, other = gevent.spawn(waiting.get), gevent.spawn(waiting.get)
gevent.sleep(0)
one.kill()
waiting.put("item")
print(other.get(timeout=10), waiting.qsize())
condition = threading.Condition()
try:
    condition.wait()
except RuntimeError as error:
    print(error)
"""


def test_what_an_interrupted_one_was_notified_of_is_for_another_one() -> None:
    said = run(["python", "-c", INTERRUPTED], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "item \nitem 0\ncannot wait on un-acquired lock\n"


STARTED = """
from greenline.patch import patch_all; patch_all()
import threading, time
import gevent
from greenline.offload import threads

def view():
    for more in {}, {"daemon": True}:
        sleep_s = 60 if more else 0.2
        threading.Thread(target=lambda s=sleep_s: (time.sleep(s), print(s)), **more).start()
    threading.Timer(0.1, print, ["timer"]).start()
    print(threading.current_thread().name[:5], threading.Thread().daemon)
    print(threads.run(threading.Thread).daemon)

gevent.spawn(view).join()
"""


def test_a_thread_that_a_request_starts_is_no_daemon() -> None:
    """A program waits for it at its end, and for no other one."""
    said = run(["python", "-c", STARTED], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert sorted(said.splitlines()) == ["0.2", "Dummy False", "False", "timer"]


COMPUTED = """
import functools
class Early:
    @functools.cached_property
    def value(self):
        return compute(self)
from greenline.patch import patch_all; patch_all()
import threading
import gevent
from greenline.offload import threads
class Late:
    @functools.cached_property
    def value(self):
        return compute(self)
def compute(self):
    if self is first:
        begun.set()
        return is_other_there.wait(10)
    return self is second
for kind in Early, Late:
    first, second = kind(), kind()
    begun, is_other_there = threading.Event(), threading.Event()
    computing = gevent.spawn(threads.run, lambda: first.value)
    begun.wait()
    print(second.value)
    is_other_there.set()
    print(computing.get(), vars(first))
"""


def test_a_cached_property_of_another_object_is_not_waited_for() -> None:
    """The hub would wait for an offload thread, and that for a greenlet."""
    done = run(["python", "-c", COMPUTED], {"PYTHONPATH": str(CHECKOUT)}, timeout_s=30)
    assert done.stdout == "True\nTrue {'value': True}\n" * 2
