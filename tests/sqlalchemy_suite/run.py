"""
Run SQLAlchemy's tests in green mode: run.py CHECKOUT URL ARGUMENT..., in the sdist.

A process of its own: the suite's package is called ``test``.
"""

# ruff: noqa: E402  (patching comes first)

import os
import sys

CHECKOUT, URL, *ARGUMENTS = sys.argv[1:]
sys.path[0] = CHECKOUT

from greenline import patch

patch.patch_all()

sys.path[0] = os.getcwd()

import pytest
from sqlalchemy.dialects.postgresql import provision

# The embedded Postgres has no extensions, which the suite would make.
provision._extensions.clear()
arguments = ["-q", "-p", "no:cacheprovider", "--maxfail", "100", "--dburi", URL, *ARGUMENTS]
raise SystemExit(pytest.main(arguments))
