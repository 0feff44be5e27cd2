"""Thread-locals that were made before the patching, in a process that patches as a worker does."""

from tests.helpers.support import run

SCRIPT = """
import gc, threading, weakref
native = threading.local()
from greenline.patch import patch_all
patch_all()
import gevent
from greenline.hub import native_locals

class Value:
    pass

native.value = "main"
native_locals.install()
kept, hub = [], gevent.get_hub()

def work(number):
    assert not hasattr(native, "value") and gevent.get_hub() is hub
    native.value = Value()
    native.value.number = number
    kept.append(weakref.ref(native.value))
    for _ in range(3):
        gevent.sleep(0)
        assert native.value.number == number

for _ in range(2):
    gevent.joinall([gevent.spawn(work, number) for number in range(50)], raise_error=True)
    assert native.value == "main"
gevent.sleep(0.001)  # the last one is gone
gc.collect()
print(len(kept), [each for each in kept if each() is not None])
"""


def test_each_greenlet_has_its_own_values_until_it_ends() -> None:
    """That which has patched keeps what it had; gevent's hub stays that of the thread."""
    done = run(["python", "-c", SCRIPT], {})
    assert (done.stdout, done.stderr) == ("100 []\n", "")
