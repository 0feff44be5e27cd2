"""greenline.offload.imports: an action is done as soon as its module is imported."""

from pathlib import Path

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


def test_a_finder_that_is_old_is_passed_over() -> None:
    """As bottle adds one, which has ``find_module`` only; a module that is nowhere is missing."""
    script = """
import sys
from greenline.offload.imports import after_import

class Old:
    def find_module(self, fullname, path=None):
        return None

sys.meta_path.insert(0, Old())
sys.meta_path.append(Old())
after_import("colorsys", lambda module: print("acted"))
after_import("is_nowhere", print)
import colorsys
try:
    import is_nowhere
except ModuleNotFoundError:
    print("missing")
"""
    done = run(["python", "-W", "ignore::ImportWarning", "-c", script], {})
    assert (done.stderr, done.stdout) == ("", "acted\nmissing\n")


def test_a_folder_with_the_name_of_a_module_is_imported(tmp_path: Path) -> None:
    """It has no loader that executes anything, and no action is done for it."""
    (tmp_path / "is_a_folder").mkdir()
    script = f"""
import sys
from greenline.offload.imports import after_import

sys.path.insert(0, {str(tmp_path)!r})
after_import("is_a_folder", print)
import is_a_folder
print(is_a_folder.__name__)
"""
    done = run(["python", "-c", script], {})
    assert (done.stderr, done.stdout) == ("", "is_a_folder\n")
