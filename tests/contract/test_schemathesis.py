"""
Schemathesis against the live service: no server error, and no answer that is not in the document.

What it sends is the same each time, to the resources that differ most. With
``GREENLINE_LONG_TESTS=1`` it asks all of them, and more, and follows what one answer says of the
next request.
"""

import subprocess
from pathlib import Path

import pytest

from tests.helpers.support import BIN, CHECKOUT, IS_LONG, Databases, run, service

AMOUNT = (
    ["--phases=examples,coverage,fuzzing,stateful", "--max-examples=40"]
    if IS_LONG
    else [
        "--phases=examples,coverage,fuzzing",
        "--max-examples=2",
        "--include-tag=books",
    ]
)
# Who may do what is asked elsewhere; here everybody may do everything.
NOT_ASKED = "ignored_auth,missing_required_header"


@pytest.mark.timeout(600)  # some 4,000 requests, and the machine may be busy
def test_nothing_that_the_document_allows_or_forbids_is_answered_otherwise(
    empty_database: str, empty_mongo: str, tmp_path: Path
) -> None:
    """By its own checks, which schemathesis.toml adjusts."""
    databases = Databases(empty_database, empty_mongo)
    run(["flask", "db", "upgrade", "sample"], databases.environ)
    with service(databases.environ) as running:
        done = subprocess.run(
            [
                str(BIN / "schemathesis"),
                "--no-color",
                f"--config-file={CHECKOUT / 'tests/contract/schemathesis.toml'}",
                "run",
                f"http://127.0.0.1:{running.port}/openapi.json",
                f"--exclude-checks={NOT_ASKED}",
                *AMOUNT,
            ],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=1_000,
        )
        print(*done.stdout.splitlines()[-5:], sep="\n")
        assert done.returncode == 0, done.stdout
        assert "Traceback" not in running.log
