"""A pymongo that is not as we know it is refused in one line."""

import tomllib

import pytest

from greenline.mongo import pymongo_compat
from tests.helpers.support import CHECKOUT, run

GONE = "import pymongo.synchronous.pool as pool; del pool.Pool._get_conn\n"
OTHER = "import pymongo; pymongo.MongoClient._select_server = lambda self, selector: None\n"
MORE = "import pymongo.synchronous.pool as p; p.Pool.connect = lambda self, handler, more=None: 0\n"
MOVED = "import sys, pymongo; sys.modules['pymongo.network_layer'] = None\n"
WRAPPED = (
    "import pymongo.synchronous.pool as pool\n"
    "inner = pool.Pool.connect\n"
    "pool.Pool.connect = lambda *args, **kwargs: inner(*args, **kwargs)\n"
)
# As an application does it; only the use of greenline.mongo needs pymongo.
IMPORT = "from greenline import mongo; mongo.open('mongodb://h', workers=1); print('imported')"


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        pytest.param(GONE, "(Pool._get_conn is gone)", id="a method is gone"),
        pytest.param(OTHER, "(MongoClient._select_server(self, selector))", id="other parameters"),
        pytest.param(MORE, "(Pool.connect(self, handler, more))", id="one more parameter"),
        pytest.param(MOVED, "pymongo.network_layer", id="a module is gone"),
        pytest.param(WRAPPED, "imported", id="wrapped by a monitoring agent"),
        pytest.param("", "imported", id="as it is"),
    ],
)
def test_a_pymongo_is_taken_or_refused_in_one_line(before: str, answer: str) -> None:
    """The line names the version, the reason and the versions that are supported."""
    done = run(["python", "-W", "ignore", "-c", before + IMPORT], {}, check=False)
    said = done.stdout if answer == "imported" else done.stderr
    assert answer in said
    # All that is printed: no traceback.
    assert (done.stdout + done.stderr).count("\n") == 1
    if answer != "imported":
        assert done.returncode == pymongo_compat.WORKER_BOOT_ERROR
        assert said.startswith("greenline: pymongo 4.")
        assert pymongo_compat.PYMONGO_SUPPORTED in said


def test_the_supported_range_is_the_extras_own() -> None:
    """pip refuses what the check would refuse."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert f"pymongo{pymongo_compat.PYMONGO_SUPPORTED}" in project["optional-dependencies"]["mongo"]
