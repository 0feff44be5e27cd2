"""Small applications: each has the findings that its comments expect, and no others."""

import ast
import re
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
REFUSE = re.compile(r"# not: (GL\d+)")  # at the line of a counterexample
DEPENDENCIES = "unit/doctor/test_dependencies.py"
EXAMINE = "unit/doctor/test_examine.py"
IMPORTS = "integration/doctor/test_imports.py"
DEPLOYMENT = "integration/doctor/test_deployment.py"
TRIAL = "integration/doctor/test_trial.py"
VERDICT = "unit/doctor/test_verdict.py"
RIGHT = f"{TRIAL}::test_requests_that_do_nothing_wrong"
IMPORT_OF_A_DEPENDENCY = (
    f"{DEPENDENCIES}::test_an_import_is_found",
    f"{DEPENDENCIES}::test_an_import_is_not_found_where_it_yields_or_no_request_runs_it",
)
LIMIT_OF_REQUESTS = (
    f"{VERDICT}::test_requests_beyond_a_limit",
    f"{VERDICT}::test_requests_below_each_limit",
)
# What the corpus cannot have, because it is not in one file of code: the tests that find it, and
# that do not.
TESTS = {
    "GL101": IMPORT_OF_A_DEPENDENCY,
    "GL102": (
        f"{DEPENDENCIES}::test_what_breaks_is_a_warning",
        f"{DEPENDENCIES}::test_what_runs_in_threads_does_not_break",
    ),
    "GL103": IMPORT_OF_A_DEPENDENCY,
    "GL104": (
        f"{DEPENDENCIES}::test_extensions_without_a_verdict_are_named_in_one_finding",
        f"{DEPENDENCIES}::test_no_extension_that_is_unused_or_has_a_verdict_is_named",
    ),
    "GL105": (
        f"{DEPENDENCIES}::test_an_older_version_than_was_tried_is_a_remark",
        f"{DEPENDENCIES}::test_an_import_is_not_found_where_it_yields_or_no_request_runs_it",
    ),
    "GL205": (
        f"{EXAMINE}::test_unpatched_names_of_gunicorns_configuration",
        f"{EXAMINE}::test_patched_names_of_gunicorns_configuration",
    ),
    "GL206": (
        f"{EXAMINE}::test_preload_app",
        f"{EXAMINE}::test_preload_app_that_is_off_or_in_another_file",
    ),
    "GL301": (
        f"{IMPORTS}::test_one_that_cannot_be_imported",
        f"{IMPORTS}::test_a_factory_in_a_folder_with_a_blank",
    ),
    "GL302": (
        f"{IMPORTS}::test_what_gunicorns_configuration_imports",
        f"{IMPORTS}::test_what_is_no_finding_of_an_import",
    ),
    "GL303": (
        f"{IMPORTS}::test_what_an_import_does",
        f"{IMPORTS}::test_what_is_no_finding_of_an_import",
    ),
    "GL304": (
        f"{IMPORTS}::test_a_file_that_the_import_leaves_open_for_writing",
        f"{IMPORTS}::test_what_is_no_finding_of_an_import",
    ),
    "GL305": (
        f"{IMPORTS}::test_an_import_that_takes_long",
        f"{IMPORTS}::test_an_import_that_does_not_take_long",
    ),
    "GL306": (
        f"{DEPLOYMENT}::test_nginx_and_gunicorn_are_checked_against_each_other",
        f"{DEPLOYMENT}::test_a_good_one_has_none",
    ),
    "GL307": (
        f"{DEPLOYMENT}::test_one_that_cannot_be_checked",
        f"{DEPLOYMENT}::test_a_good_one_has_none",
    ),
    "GL401": (
        f"{TRIAL}::test_a_replay_finds_what_happens",
        f"{TRIAL}::test_waits_that_yield_are_ready",
    ),
    "GL402": (
        f"{VERDICT}::test_blocks_are_found_at_the_applications_line",
        f"{VERDICT}::test_what_tests_compute_is_not_the_applications",
    ),
    "GL403": (f"{TRIAL}::test_a_replay_finds_what_happens", RIGHT),
    "GL404": (f"{TRIAL}::test_a_replay_finds_what_happens", RIGHT),
    "GL405": (f"{TRIAL}::test_the_requests_of_test_clients_are_observed", RIGHT),
    "GL406": (f"{TRIAL}::test_a_replay_finds_what_happens", RIGHT),
    "GL407": (f"{TRIAL}::test_a_replay_finds_what_happens", RIGHT),
    "GL408": LIMIT_OF_REQUESTS,
    "GL409": LIMIT_OF_REQUESTS,
    "GL410": (f"{TRIAL}::test_tests_run_twice", RIGHT),
    "GL411": (f"{TRIAL}::test_what_cannot_run_is_one_finding", RIGHT),
}
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
    # What is installed here may be older than what was tried, which is no matter of the sample.
    found = [each for each in examined.findings if each.code.code != "GL105"]
    assert sorted((each.line, each.code.code) for each in found) == expected(source)
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


def test_each_code_has_an_example_and_a_counterexample() -> None:
    """In the corpus, or in the tests of TESTS: something that it must find, and must not."""
    sources = [path.read_text() for path in APPLICATIONS]
    finds = {code for source in sources for _, code in expected(source)}
    does_not = {code for source in sources for code in REFUSE.findall(source)}
    for code, (found, not_found) in TESTS.items():
        assert code in source_of(found), f"{found} does not name {code}"
        assert found != not_found
        finds.add(code)
        does_not |= {code} if source_of(not_found) else set()
    assert sorted(finds) == [each.code for each in CODES]
    assert sorted(does_not) == [each.code for each in CODES]
    assert len(APPLICATIONS) >= 60


def source_of(test: str) -> str:
    """Return the source of a test, with its parameters."""
    path, name = test.split("::")
    source = (CHECKOUT / "tests" / path).read_text()
    (found,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    first = min(node.lineno for node in (found, *found.decorator_list))
    return "\n".join(source.splitlines()[first - 1 : found.end_lineno])
