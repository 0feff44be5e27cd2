"""
Run psycopg2's tests in green mode: run.py CHECKOUT RESULT MODULE..., in a copy of the sdist.

Without a module: all. A process of its own: the suite turns warnings into errors, and its
package is called ``tests``.
"""

# ruff: noqa: E402  (patching comes first)

import json
import os
import sys
from pathlib import Path

CHECKOUT, RESULT, *MODULES = sys.argv[1:]
sys.path[0] = CHECKOUT

from greenline import patch

patch.patch_all()

sys.path[0] = os.getcwd()

import unittest

import tests

suite = (
    unittest.defaultTestLoader.loadTestsFromNames([f"tests.{module}" for module in MODULES])
    if MODULES
    else tests.test_suite()  # type: ignore[attr-defined]
)
outcomes: dict[str, str] = {}


class Recorder(unittest.TextTestResult):
    """Keeps each test's outcome."""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        outcomes[test.id()] = "passed"

    def addError(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        super().addError(test, err)  # type: ignore[arg-type]
        outcomes[test.id()] = "failed"

    def addFailure(self, test: unittest.TestCase, err: object) -> None:  # noqa: N802
        super().addFailure(test, err)  # type: ignore[arg-type]
        outcomes[test.id()] = "failed"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        outcomes[test.id()] = "skipped"


unittest.TextTestRunner(resultclass=Recorder).run(suite)
Path(RESULT).write_text(json.dumps(outcomes))
os._exit(0)  # without the warnings about what the suite leaves open
