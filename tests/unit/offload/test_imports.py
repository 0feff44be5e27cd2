"""greenline.offload.imports: an action is done as soon as its module is imported."""

from greenline.offload.imports import after_import
from tests.helpers.support import run

SCRIPT = """
import sys
from greenline.offload.imports import after_import

after_import("colorsys", lambda module: print(module.__name__, module.rgb_to_hsv.__name__))
assert "colorsys" not in sys.modules
print("before")
import colorsys
print("after")
"""


def test_a_module_that_is_imported_already_is_acted_on_at_once() -> None:
    """And one that is built in, which has no loader of its own."""
    seen: list[str] = []
    for name in ("json", "_thread"):
        after_import(name, lambda module: seen.append(module.__name__))
    assert seen == ["json", "_thread"]


def test_another_one_right_after_its_import() -> None:
    """It is executed by then, and not imported before."""
    done = run(["python", "-c", SCRIPT], {})
    assert (done.stderr, done.stdout) == ("", "before\ncolorsys rgb_to_hsv\nafter\n")
