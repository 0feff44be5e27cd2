"""
``make clean``: remove what the other targets made, with the standard library alone.

1. It refuses while a run holds the data: on ``var`` or on the folder in ``GREENLINE_DATA``.
2. In a folder that ``GREENLINE_DATA`` names only our own parts are removed: it may hold others.
"""

import shutil
import sys
from pathlib import Path

from embedded import store
from embedded.lock import FolderLock
from embedded.settings import CHECKOUT, VAR, data_folder
from greenline.errors import ConfigError

OURS = ("postgres", "mongo")
CACHES = (".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache", ".hypothesis")
VENVS = (".venv", ".venv-canary", ".venv-canary-oldest")
COMPILED = "greenline/postgres/_copying.abi3.so"
BUILT = (*VENVS, "build", "dist", "greenline.egg-info", COMPILED, "bench/results", ".coverage")


def main() -> int:
    """Clean, or say why not; return the exit status."""
    data = data_folder()
    locks = [FolderLock(each) for each in {VAR, data} if each.is_dir()]
    try:
        for lock in locks:
            lock.take()
        clean(data)
    except (ConfigError, OSError) as error:
        print(f"clean: {error}", file=sys.stderr)
        return 1
    finally:
        for lock in locks:
            lock.release()
    return 0


def clean(data: Path) -> None:
    """Remove the data, what was built, the caches, and what root's Postgres needed elsewhere."""
    store.remove_under(CHECKOUT, data)
    for path in [data / name for name in OURS] + [CHECKOUT / name for name in BUILT + CACHES]:
        _remove(path)
    if data.is_dir() and data != VAR and not any(data.iterdir()):
        data.rmdir()
    _remove(VAR)
    for path in list(CHECKOUT.rglob("__pycache__")):
        _remove(path)
    store.remove_orphans()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
