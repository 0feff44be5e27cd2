"""
Run Django's tests in green mode: run.py CHECKOUT LABEL..., in the folder ``tests`` of the sdist.

A process of its own: the suite's modules have names that others have too.
"""

# ruff: noqa: E402  (patching comes first)

import os
import runpy
import sys
from pathlib import Path

CHECKOUT, *LABELS = sys.argv[1:]
sys.path[0] = CHECKOUT

from greenline import patch

patch.patch_all()

sys.path[:1] = [os.getcwd(), CHECKOUT, str(Path(__file__).parent)]
sys.argv = ["runtests.py", "--settings=pooled", "--parallel=1", "--noinput", *LABELS]
runpy.run_path("runtests.py", run_name="__main__")
