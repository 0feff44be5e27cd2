"""flask documents on a server whose disk is full, a small tmpfs."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.mongo import Mongo
from tests.integration.app.documents.pair import Pair, call, error_of

COUNT = 30_000
LEFT_BYTES = 1 << 20

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk"),
    pytest.mark.skipif(shutil.which("mongod") is not None, reason="it ends when its disk is full"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]).returncode:
        pytest.skip("no mount here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_it_is_one_line_of_each_command(disk: Path, pair: Pair) -> None:
    """The source of a copy stays as it is."""
    pair.source.insert_one({"_id": 1})
    with Mongo(disk / "mongo", durable=False) as server:
        with (disk / "filler").open("wb") as file:
            file.write(bytes(shutil.disk_usage(disk).free - LEFT_BYTES))
        place = f"{server.url}d.products"
        for arguments in (["populate", place, str(COUNT)], ["copy", pair.places[0], place]):
            assert error_of(call(*arguments)) == f"{place}: internal server error; its log says why"
    assert pair.source.find_one() == {"_id": 1}
