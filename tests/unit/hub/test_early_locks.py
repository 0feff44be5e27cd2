"""greenline.hub.early_locks: what stays as it is; tests/e2e/test_early_imports.py has the rest."""

from tests.helpers.support import CHECKOUT, run

KINDS = """
import threading
class Kept: pass
class Other: pass
Kept.__module__ = "greenline.example"
kept, other, both = Kept(), Other(), threading.Lock()
vars(kept), vars(other)  # now each has a dict of its own
kept.lock, other.lock, other.same, other.held = threading.Lock(), both, both, threading.Lock()
other.of_kept = kept.lock
other.held.acquire()
from greenline.patch import patch_all; patch_all()
print(*(type(each).__module__ for each in (kept.lock, other.lock, other.held)))
print(other.lock is other.same is both, other.of_kept is kept.lock)
"""


def test_what_is_held_and_what_is_ours_stays_as_it_is() -> None:
    """A lock that is exchanged is the same one everywhere."""
    said = run(["python", "-c", KINDS], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "_thread greenline.hub.thread_locks _thread\nTrue True\n"


def test_nothing_is_exchanged_beside_another_thread() -> None:
    """It may be about to acquire the lock."""
    program = KINDS.replace(
        "from greenline",
        "threading.Thread(target=other.held.acquire, daemon=True).start()\nfrom greenline",
    )
    said = run(["python", "-c", program], {"PYTHONPATH": str(CHECKOUT)}).stdout
    assert said == "_thread _thread _thread\nTrue True\n"
