"""What the suites import: installed once into ``var``, beside the environment of make test."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.support import CHECKOUT

PINS = Path(__file__).with_name("environment.txt")


def folder() -> Path:
    """Return the folder of the modules, for PYTHONPATH."""
    digest = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    target = CHECKOUT / "var" / f"flask-extensions-{digest}"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="flask-extensions-", dir=target.parent) as scratch:
            made = Path(scratch, "packages")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--disable-pip-version-check", "--only-binary", ":all:"]
            command += ["--requirement", str(PINS), "--target", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            if not target.exists():  # Another run may have been faster.
                os.replace(made, target)
    return target
