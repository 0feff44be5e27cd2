"""docs/secantusdb.md says how the embedded engine differs from a mongod: it still does."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from embedded.mongo import Mongo
from tests.helpers.support import CHECKOUT

PAGE = (CHECKOUT / "docs" / "secantusdb.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("mongod") is not None, reason="it is taken instead")
def test_each_block_prints_what_its_comment_says(mongo: Mongo) -> None:
    """Typed into Python; a version that mends a defect makes this fail, and its block goes."""
    typed = "".join(BLOCKS)
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=f"{typed}client.drop_database('defects')\n",
        env={**os.environ, "MONGODB_URI": mongo.url},
        text=True,
        capture_output=True,
        timeout=120,
    )
    said = re.findall(r"^# (.*)$", typed, re.MULTILINE)
    assert len(said) == len(BLOCKS) - 1
    assert done.stdout.splitlines() == said, done.stderr
