"""The lines of docs/api.md work as typed, and can be typed again."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.helpers.pages import blocks, read
from tests.helpers.support import Databases, Service, run, service

PAGE = read("docs/api.md")
BEGIN, EXAMPLES = blocks(PAGE, "sh")
# It is found before the real curl, and adds the status of each answer to a file.
CURL = """#!/bin/sh
exec {curl} -w '%{{stderr}}%{{http_code}}\\n' "$@" 2>>"$STATUS"
"""


def type_lines(folder: Path, port: int, key: str) -> tuple[list[str], str]:
    """Type the page into a shell; return the status of each answer, and what was printed."""
    curl = folder / "curl"
    curl.write_text(CURL.format(curl=shutil.which("curl")))
    curl.chmod(0o755)
    status = folder / "status"
    status.write_text("")
    begin, count = re.subn("^KEY=.*$", f"KEY={key}", BEGIN, flags=re.MULTILINE)
    assert count == 1
    done = subprocess.run(
        ["sh", "-eu"],
        input=begin.replace(":8000", f":{port}") + EXAMPLES,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "STATUS": str(status)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return status.read_text().split(), done.stdout


def test_each_line_is_answered_and_can_be_typed_again(
    empty_database: str, empty_mongo: str, tmp_path: Path
) -> None:
    """Twice in a row, with a key, on the sample; no line is refused."""
    environ = {**Databases(empty_database, empty_mongo).environ, "AUTH": "on"}
    run(["flask", "db", "upgrade", "sample"], environ)
    command = ["flask", "keys", "create", "--name", "page", "--scopes", "read,write,admin"]
    key = run(command, environ).stdout.strip()
    lines = EXAMPLES.count("api ")
    with service(environ) as running:
        for _ in range(2):
            statuses, printed = type_lines(tmp_path, running.port, key)
            assert len(statuses) == lines > 30
            assert set(statuses) <= {"200", "201", "204", "304"}, printed
            assert statuses.count("304") == 1


def test_every_resource_and_every_kind_of_operation_has_a_line() -> None:
    """A page that lost its lines would otherwise pass."""
    names = "books authors genres agents tasks keys states messages products"
    assert [name for name in names.split() if f"$at/{name}" not in EXAMPLES] == []
    parts = "-XPUT -XPATCH -XDELETE /batch /batch-get /by-name/ order= page= after="
    parts += " total=true /rotate If-Match If-None-Match Idempotency-Key x-ndjson"
    assert [part for part in parts.split() if part not in EXAMPLES.replace("-X ", "-X")] == []


def test_every_route_of_the_page_exists(api: Service) -> None:
    """The table's routes answer something else than 404 or 405."""
    rows = re.findall(r"^\| (`GET .*?) \|", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        for path in re.findall(r"GET (/[a-z./]*)", row):
            assert "GET" in api.ask("OPTIONS", path).headers["Allow"], path
