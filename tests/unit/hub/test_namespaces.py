"""greenline.hub.namespaces: the globals of modules that answer by code of their own."""

from tests.helpers.support import run

PROGRAM = """
import sys, types

class Alias(types.ModuleType):  # as py's are
    def __getattribute__(self, name):
        return None

class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        raise ImportError(f"{name} makes it import")

sys.modules["alias"], sys.modules["lazy"] = Alias("alias"), Lazy("lazy")
if PATCHED_FIRST:
    from greenline.patch import patch_all
    patch_all()
from greenline.hub.namespaces import namespaces
assert {"alias", "lazy"} <= {name for name, _ in namespaces()}
if not PATCHED_FIRST:
    from greenline.patch import patch_all
    patch_all()
import sqlite3
from greenline.hub import patching
from greenline.offload import advice, sqlite
patching.require_patched()
assert sqlite3.connect is sqlite.connect
assert advice("no such file", "name") is None
"""


def test_a_module_that_answers_with_none_or_an_error_prevents_no_patch() -> None:
    """Imported before or after: the application boots, and its sqlite3 yields."""
    for is_first in (True, False):
        run(["python", "-c", PROGRAM.replace("PATCHED_FIRST", str(is_first))], {})
