"""
Run kustomize, and build it first, in a long test: that takes two minutes.

The version is the one that `go.mod` in this folder pins; a short test makes do with kubectl's.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from bench import hey_build
from tests.helpers.support import CHECKOUT

FOLDER = CHECKOUT / "deploy/kubernetes"
MODULE, VERSION = "sigs.k8s.io/kustomize/kustomize/v5", "5.7.1"
PROGRAM = hey_build.VAR / "bin" / f"kustomize-{VERSION}"


class NotBuilt(Exception):
    """There is no kustomize."""


def build(folder: Path, *, may_compile: bool) -> list[dict[str, Any]]:
    """
    Return the objects that kustomize makes of *folder*.

    Raises:
        NotBuilt: there is no program for it, and none may be compiled.
    """
    if may_compile and not PROGRAM.exists():
        hey_build.install(MODULE, PROGRAM, program="kustomize", folder=Path(__file__).parent)
    if PROGRAM.exists():
        command = [str(PROGRAM), "build"]
    elif _kubectl_can():
        command = ["kubectl", "kustomize"]
    else:
        raise NotBuilt("there is no kustomize; make test-deploy builds it")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def _kubectl_can() -> bool:
    """Return whether there is a kubectl whose kustomize is of this generation."""
    if shutil.which("kubectl") is None:
        return False
    done = subprocess.run(
        ["kubectl", "version", "--client"], capture_output=True, text=True, check=False
    )
    return re.search(r"^Kustomize Version: v5", done.stdout, re.MULTILINE) is not None
