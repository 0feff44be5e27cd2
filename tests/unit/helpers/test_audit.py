"""tests.helpers.audit: what is said of what pip-audit found."""

import pytest

from tests.helpers.audit import judged

FOUND = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1", "2"]}]}
FINE = {"name": "b", "version": "1", "vulns": []}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "status", "said"),
    [
        ([FINE], 0, "0 known vulnerabilities in 1 of 1 packages"),
        ([FINE, UNKNOWN], 0, "0 known vulnerabilities in 1 of 2 packages"),
        ([FINE, FOUND], 1, "audit: a 1: CVE-1, mended in 1.1, 2"),
        ([UNKNOWN, UNKNOWN], 0, "skipped: the package registry here has no advisories"),
    ],
    ids=["fine", "one is not known", "one is found", "none is known"],
)
def test_only_a_finding_fails(
    packages: list[object], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A registry without advisories is no proof, and is not reported as one."""
    assert judged(packages) == status
    assert said in capsys.readouterr().out
