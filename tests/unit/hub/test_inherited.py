"""greenline.hub.inherited: what is frozen, and what is found all the same."""

from tests.helpers.support import CHECKOUT, run

FROZEN = """
import gc, logging, queue, threading
class Holder:
    shared = threading.Lock()
    def __init__(self):
        self.lock, self.pending = threading.Lock(), queue.SimpleQueue()
class Slotted:
    __slots__ = ("lock",)
holder, slotted, listed = Holder(), Slotted(), [threading.RLock()]
slotted.lock = threading.Lock()
def closed(lock=threading.Lock()):
    inner = threading.Condition()
    return lambda: inner
inner = closed()
from greenline.hub import inherited
before = len(gc.get_objects())
inherited.freeze()
print(len(gc.get_objects()) < before / 100, len(list(inherited.objects())) < before / 10)
late = threading.Lock()
from greenline.patch import patch_all; patch_all()
found = late, holder.lock, holder.pending, Holder.shared, slotted.lock, listed[0], inner()._lock
print(*(type(each).__module__.partition(".")[0] for each in found))
"""


def test_locks_of_what_was_frozen_are_exchanged() -> None:
    """Few objects are noted, and those that hold locks are among them."""
    said = run(["python", "-c", FROZEN], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "True True\ngreenline greenline queue greenline greenline threading threading\n"


TWICE = """
import gc, threading
from greenline.hub import inherited
inherited.freeze()
late = [threading.RLock()]
inherited.freeze()
print(any(each is late for each in gc.get_objects()))
"""


def test_objects_are_frozen_once() -> None:
    """For the dry run; what is made between it and the first worker is little."""
    said = run(["python", "-c", TWICE], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "True\n"


HOOKS = """
import os
from greenline.hub import inherited
def hook(): pass
inherited.freeze()
os.register_at_fork(after_in_child=hook)
lists = [each for each in inherited.objects() if type(each) is list and each[-1:] == [hook]]
print(len(lists))
inherited.forget()
print(any(each is lists[0] for each in inherited.objects()))
"""


def test_the_hooks_of_children_are_found() -> None:
    """The collector does not look at their list any more."""
    said = run(["python", "-c", HOOKS], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "1\nFalse\n"


APPLICATIONS = """
import gc
from flask import Flask
from greenline.flask.adoption import adopt_each
from greenline.hub import inherited
kept = Flask("kept")
inherited.freeze()
inherited.forget()
late = Flask("late")
for application in (kept, late, len):
    print(*(app.import_name for app, _ in adopt_each(application)))
"""


def test_applications_of_flask_are_found() -> None:
    """Those that were frozen and those that were made later, each once."""
    said = run(["python", "-c", APPLICATIONS], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "kept late\n" * 3
