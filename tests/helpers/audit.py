"""
Are there known vulnerabilities in what the service imports? ``python -m tests.helpers.audit`` asks.

Where it is unknown (no network, or a registry that keeps no advisories), it says so, which is no
failure; a finding is one.
"""

import json
import subprocess
import sys
from typing import Any

REQUIREMENTS = "requirements.txt"
ASK = ("-m", "pip_audit", "--requirement", REQUIREMENTS, "--no-deps", "--disable-pip")
QUIET = ("--progress-spinner", "off", "--timeout", "10", "--format", "json")
TIMEOUT_S = 60


def main() -> int:
    """Ask, tell, and return the exit status."""
    try:
        done = subprocess.run(
            [sys.executable, *ASK, *QUIET], capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return _skipped(f"no answer within {TIMEOUT_S} s")
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return _skipped((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return judged(packages)


def judged(packages: list[dict[str, Any]]) -> int:
    """Tell what pip-audit found of *packages*; return 1 where there is a vulnerability."""
    known = [package for package in packages if "vulns" in package]
    found = [(package, one) for package in known for one in package["vulns"]]
    for package, one in found:
        fixed = ", ".join(one["fix_versions"]) or "no version yet"
        print(f"audit: {package['name']} {package['version']}: {one['id']}, mended in {fixed}")
    if not known:
        return _skipped("the package registry here has no advisories")
    print(f"audit: {len(found)} known vulnerabilities in {len(known)} of {len(packages)} packages")
    return 1 if found else 0


def _skipped(why: str) -> int:
    print(f"audit: skipped: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
