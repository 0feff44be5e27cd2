"""flask documents copy of more than fits in memory, and of what cannot be decoded."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from app.documents import ids
from tests.helpers.support import CHECKOUT, IS_LONG, environ, run
from tests.integration.app.documents.generated import BROKEN, document
from tests.integration.app.documents.pair import Pair, call, contents

COUNT = 1_800_000 if IS_LONG else 51_000
MAX_MB = 150


@contextmanager
def generated(size: int) -> Iterator[str]:
    """Run the server that makes its documents; see there."""
    command = [sys.executable, "-m", "tests.integration.app.documents.generated", str(size)]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=environ({}), text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"mongodb://127.0.0.1:{process.stdout.readline().strip()}/d"
    finally:
        process.kill()
        process.communicate()


def peak_mb(pid: int) -> float:
    """Return the most memory that the process has had, in MB; 0 when it has just ended."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = [line for line in text.splitlines() if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) / 1024 if found else 0.0


def test_memory_is_bounded_and_nothing_is_decoded() -> None:
    """Each document arrives once, as it is: some are no UTF-8, or have a name twice."""
    with generated(COUNT) as uri:
        command = [sys.executable, "-m", "flask", "documents", "copy"]
        process = subprocess.Popen(
            [*command, f"{uri}.source", f"{uri}.target"],
            cwd=CHECKOUT,
            env=environ({}),
            text=True,
            stdout=subprocess.PIPE,
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, peak_mb(process.pid))
            time.sleep(0.05)
        said, _ = process.communicate()
        assert process.returncode == 0
        print(said, f"{peak:.0f} MB at the most")
        assert f"{COUNT:,} documents copied" in said
        assert f"equal: {COUNT:,} documents on both sides" in said
        with MongoClient[Any](uri) as client:
            status = client.d.command("status")
        assert (status["written"], status["twice"], status["wrong"]) == (COUNT, 0, 0)
        assert peak < MAX_MB


def test_a_transform_is_not_given_what_cannot_be_decoded(tmp_path: Path) -> None:
    """Such documents are in the file, with the reason, and the others in the target."""
    failed = tmp_path / "failed"
    with generated(70) as uri:
        places = [f"{uri}.source", f"{uri}.target"]
        transform = ["--transform", "copy:copy", "--failed", str(failed), "--max-errors", "20"]
        done = run(["flask", "documents", "copy", *places, *transform], {}, check=False)
    assert done.returncode == 1
    assert "50 documents copied, 20 failed" in done.stdout
    lines = failed.read_text().splitlines()
    assert sum('"bson"' in line and "UTF-8" in line.upper() for line in lines) == 10
    assert sum('"bson"' in line and "a name that is there twice" in line for line in lines) == 10


def test_no_document_is_lost_that_the_target_cannot_keep(pair: Pair) -> None:
    """mongod stores what cannot be decoded; other servers refuse it, or change it."""
    with generated(70) as uri:
        given = [f"{uri}.source", pair.places[1], "--failed", str(pair.failed)]
        done = call("copy", *given, "--max-errors", "10")
    stored = {ids.value_of(ids.id_of(one) or b""): one for one in contents(pair.target)}
    failed = len(pair.failed.read_text().splitlines()) if pair.failed.exists() else 0
    assert len(stored) + failed == 70
    changed = [number for number, one in stored.items() if one != document(number)]
    assert all(number % BROKEN == 1 for number in changed)
    if changed or failed:
        assert done.exit_code == 1
        assert "different: 70 documents in the source" in done.stdout
    else:
        assert done.exit_code == 0, done.output
