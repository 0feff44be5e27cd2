"""Small applications: each has the findings that its comments expect, and no others."""

import re
from collections import Counter
from pathlib import Path

import pytest

from greenline.doctor.codes import CODES
from greenline.doctor.examine import examine
from greenline.doctor.findings import Facts
from greenline.doctor.project import Project
from tests.helpers.support import CHECKOUT

CORPUS = Path(__file__).parent / "corpus"
APPLICATIONS = sorted(CORPUS.glob("*.py"))
EXAMPLES = sorted((CHECKOUT / "examples").glob("*.py"))
EXPECT = re.compile(r"# expect: (GL\d+)")
FACTS = {
    "": Facts(),
    "preload": Facts(is_preloaded=True),
    "pgbouncer": Facts(is_pooled_by_transaction=True),
    "redis 8": Facts(has_redis_timeout=True),
}


def expected(source: str) -> list[tuple[int, str]]:
    return [
        (number, code)
        for number, line in enumerate(source.splitlines(), 1)
        for code in EXPECT.findall(line)
    ]


@pytest.mark.parametrize("path", APPLICATIONS, ids=lambda path: path.stem)
def test_each_has_its_findings_and_no_others(path: Path, tmp_path: Path) -> None:
    """At the lines where they are expected."""
    source = path.read_text()
    (tmp_path / "app.py").write_text(source)
    first = source.partition("\n")[0]
    facts = FACTS[first.removeprefix("# facts: ") if first.startswith("# facts: ") else ""]
    examined = examine(Project(tmp_path), facts)
    assert sorted((each.line, each.code.code) for each in examined.findings) == expected(source)
    assert not examined.unreadable


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_none_and_its_broken_twin_has_two(path: Path, tmp_path: Path) -> None:
    """The twin says which, at the lines of its mistakes."""
    for twin in (path, path.parent / "broken" / path.name):
        (tmp_path / path.name).write_text(twin.read_text())
        examined = examine(Project(tmp_path), Facts())
        found = sorted((each.line, each.code.code) for each in examined.findings)
        assert found == expected(twin.read_text())
        assert len(found) == (0 if twin == path else 2)


def test_the_service_has_none() -> None:
    """None at all."""
    examined = examine(Project(CHECKOUT / "app"), Facts())
    assert (examined.findings, examined.unreadable) == ([], [])
    assert examined.lines


def test_each_code_is_expected_somewhere() -> None:
    """Of those that are found in the code; and most applications have none of them."""
    found = Counter(code for path in APPLICATIONS for _, code in expected(path.read_text()))
    of_files = {"GL205", "GL206"}  # of gunicorn's configuration
    of_code = {each.code for each in CODES if each.code.startswith("GL2")}
    assert set(found) >= of_code - of_files
    assert len(APPLICATIONS) >= 60
