"""Each command and each program on the README and the pages of docs/ is run by a test."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.helpers.pages import PAGES, blocks, commands, read
from tests.helpers.support import BIN, CHECKOUT, Databases, environ

KINDS = {
    "",
    "python",
    "sh",
    "text",
    "toml",
}  # without a kind, or text: a picture, or what is printed
OURS = (
    "greenline budget",
    "python -m greenline budget",
    ".venv/bin/greenline budget",
    ".venv/bin/greenline check-deploy",
)
SERVICE = (
    "flask db upgrade",
    "flask keys create --name first --scopes read,write,admin --replace",
    "flask keys list",
    "flask keys revoke NAME",
    "gunicorn -c gunicorn.conf.py app.wsgi:app",
)
SHELL = (". .venv/bin/activate", "export MONGODB_URI=...", "set -a; . /etc/greenline/env")
# Parts of commands that other tests run.
NAMES = ("flask db", "flask documents", "flask documents copy", "flask documents populate",
         "flask books export")  # fmt: skip
COMPILER = "apt-get install libpq-dev gcc python3-dev"
MAKE, EXAMPLES = "tests/e2e/test_make.py", "tests/e2e/test_examples.py"
API = "tests/e2e/test_api_page.py"
GUIDE = "tests/e2e/test_migrate_page.py::test_each_step_prints_what_the_page_says"
INDEXES = "tests/integration/app/test_indexes.py"
PLAN = "tests/unit/budget/test_plan_page.py::test_a_worked_example_is_what_the_command_prints"
FILES = "tests/e2e/test_files_page.py::test_each_line_of_the_page_works"
BULK = "tests/e2e/test_documents_page.py::test_each_command_runs_as_typed"
HOSTED = "tests/e2e/test_pages.py::test_a_legacy_application_runs_side_by_side"
POOLS = "tests/e2e/test_pages.py::test_a_script_of_the_page_about_pools_runs"
CACHE = "tests/e2e/test_cache_page.py::test_the_program_prints_what_the_page_says"
CACHED = "tests/e2e/test_cache_page.py::test_each_line_answers_as_the_page_says"
SERVED = "tests/e2e/test_readme.py::test_the_service_starts_by_the_three_lines"
TUNER = "tests/integration/tune/test_tuner.py"
DOCTOR = "tests/e2e/test_doctor_page.py"
ROUTES = "tests/e2e/test_fast_flask.py::test_the_example_of_the_page_is_what_the_command_prints"
RUNS = "test_the_example_that_runs_prints_the_same_kinds_of_figures"
DEPLOY = "tests/deploy/test_deploy_page.py::test_the_example_is_what_the_command_prints"

# The test that runs a command, by its page ("*": any page) and text. The asterisk at the end of a
# text stands where the test takes all such commands from the page.
RUNNERS = {
    "*": {
        "make": "tests/test_house.py::test_the_help_is_grouped_and_aligned",
        "make help": "tests/test_house.py::test_every_target_of_the_makefile_is_in_its_help",
        "make clean": f"{MAKE}::test_clean_removes_what_was_made_and_nothing_else",
        "make dev": "tests/e2e/test_serve.py::test_dev_runs_one_worker",
        "make docs": f"{MAKE}::test_the_site_of_the_pages_is_built",
        "make serve": "tests/e2e/test_serve.py::test_make_serve_passes_the_signal_on",
        "GREENLINE_CACHE_BYTES=64000000 make serve": "tests/e2e/test_serve.py::"
        "test_make_serve_passes_the_signal_on",
        # They run for minutes, or are this run.
        "make *": f"{MAKE}::test_a_target_on_a_page_starts_programs_that_exist",
        "pip *": f"{EXAMPLES}::test_a_line_of_a_page_installs_what_it_says",
        "python -m bench.costs": "bench/tests/test_costs.py::test_each_promise_has_a_cost",
        "python -m bench.request_costs": "bench/tests/test_request_costs.py::"
        "test_each_part_has_a_cost_and_all_of_them_are_summed_up",
        "flask indexes ensure": f"{INDEXES}::test_what_is_declared_is_made_and_dropped",
        "greenline check-deploy": "tests/deploy/test_check_deploy.py::"
        "test_the_command_reads_the_working_directory",
        "greenline doctor": f"{DOCTOR}::test_the_example_is_what_the_command_prints",
        "greenline doctor shop:app": f"{DOCTOR}::test_the_example_is_what_the_command_prints",
        "greenline doctor examples/broken": f"{DOCTOR}::test_the_broken_examples",
        "greenline doctor wait:app --*": f"{DOCTOR}::{RUNS}",
        "greenline doctor shop:app --*": f"{DOCTOR}::test_the_forms_have_the_same_findings",
        "docker build --target dev .": "tests/deploy/test_image.py::"
        "test_the_image_for_development_reloads",
        COMPILER: "tests/test_commands.py::test_the_packages_to_build_psycopg2_are_the_image_s",
        **dict.fromkeys(OURS, "tests/test_commands.py::test_a_command_of_greenline_runs"),
        **dict.fromkeys(SERVICE, SERVED),
        **dict.fromkeys(
            [
                "greenline stacks all",
                "greenline top",
                "greenline top --once --json",
                "greenline top http://127.0.0.1:9191",
            ],
            "tests/e2e/test_top.py::test_each_command_of_the_page_runs_as_typed",
        ),
        **dict.fromkeys(SHELL, "tests/test_commands.py::test_a_line_for_the_shell_runs"),
        **dict.fromkeys(NAMES, "tests/test_docs.py::test_each_command_on_a_page_exists"),
    },
    "README.md": {
        "# report.py": "tests/e2e/test_readme.py::test_the_parts_serve_a_script",
        "(cd examples && gunicorn -k greenline.worker.GreenWorker"
        " -b 127.0.0.1:8001 flask_legacy:app)": (
            "tests/e2e/test_readme.py::test_gunicorn_hosts_the_example_by_the_line"
        ),
        "greenline budget --max-connections 200 --workers 8 --hosts 3": (
            "tests/e2e/test_readme.py::test_the_budget_is_printed_without_a_server"
        ),
        "greenline doctor myapp:app": f"{DOCTOR}::test_the_example_is_what_the_command_prints",
    },
    "api.md": {
        "*": "tests/e2e/test_api_page.py::test_each_line_is_answered_and_can_be_typed_again"
    },
    "budget.md": {"greenline budget --*": PLAN},
    "cache.md": {
        "# stock.py": CACHE,
        "# shelf.py": "tests/e2e/test_cache_page.py::test_the_program_with_postgres_sees_its_write",
        "# books.py": CACHED,
        "gunicorn *": CACHED,
        "curl *": CACHED,
    },
    "deploy.md": {
        "greenline check-deploy --nginx /etc/nginx/nginx.conf": DEPLOY,
        "greenline check-deploy --nginx /etc/nginx/nginx.conf --gunicorn gunicorn.conf.py": DEPLOY,
    },
    "doctor.md": {
        "# shop.py": f"{DOCTOR}::test_the_example_is_what_the_command_prints",
        "# wait.py": f"{DOCTOR}::{RUNS}",
    },
    "documents.md": {
        "flask documents populate *": BULK,
        "flask documents copy *": BULK,
        "flask documents compare *": BULK,
        "flask documents export *": FILES,
        "flask documents import *": FILES,
        "flask books *": FILES,
    },
    "hosting.md": {
        "# legacy.py": HOSTED,
        "# catalogue.py": HOSTED,
        "# shop.py": ROUTES,
        "greenline routes": ROUTES,
        "greenline routes shop:app": ROUTES,
        "gunicorn -k greenline.worker.GreenWorker legacy:app": HOSTED,
        "gunicorn -k greenline.worker.GreenWorker mysite.wsgi": HOSTED,
    },
    "migrate.md": {"# orders.py": GUIDE, "*": GUIDE},
    "pools.md": {
        "# report.py": POOLS,
        "# engine.py": POOLS,
        "# titles.py": POOLS,
        "GREENLINE_POOL=1 gunicorn -k greenline.worker.GreenWorker legacy:app": HOSTED,
    },
    "secantusdb.md": {
        "*": "tests/integration/embedded/test_secantusdb_page.py::"
        "test_each_block_prints_what_its_comment_says"
    },
    "tune.md": {
        "greenline tune myapp:app *": f"{TUNER}::test_what_is_recommended_was_measured",
        "greenline tune --url *": f"{TUNER}::test_a_server_that_runs_is_asked_alone",
        "greenline tune --compare *": f"{TUNER}::test_a_server_that_runs_is_asked_alone",
        "greenline capacity*": "tests/unit/tune/test_capacity_page.py::"
        "test_the_example_is_what_the_command_prints",
    },
    "watch.md": {
        "# shop.py": "tests/e2e/test_sentry.py::test_errors_arrive_with_their_own_tags",
        "# orders.py": "tests/e2e/test_traces.py::test_an_application_passes_the_trace_on_itself",
        "# counts.py": "tests/e2e/test_pages.py::test_a_route_shows_the_counts",
        "curl *": "tests/e2e/test_metrics.py::test_the_page_names_each_metric",
    },
}


def runner(page: str, command: str) -> str | None:
    """Return the test that runs *command* of *page*."""
    for runners in (RUNNERS.get(page, {}), RUNNERS["*"]):
        for text, test in runners.items():
            if is_of(command, text):
                return test
    return None


def is_of(command: str, text: str) -> bool:
    """Return whether *command* is the one of a row, or one that its asterisk stands for."""
    return command.startswith(text[:-1]) if text.endswith("*") else command == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_and_each_program_of_a_page_is_run_by_a_test(page: Path) -> None:
    """One more of them needs a test more."""
    text = page.read_text(encoding="utf-8")
    fences = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    assert {fence.info for fence in fences} <= KINDS
    programs = [block.partition("\n")[0] for block in blocks(text, "python")]
    missing = [each for each in (*commands(page), *programs) if runner(page.name, each) is None]
    assert missing == []


def test_each_runner_is_a_test_and_is_needed() -> None:
    """A test that was renamed, or a command that left the pages, leaves the table too."""
    for test in {test for runners in RUNNERS.values() for test in runners.values()}:
        path, name = test.split("::")
        assert f"\ndef {name}(" in (CHECKOUT / path).read_text(encoding="utf-8"), test
    typed = {
        each
        for page in PAGES
        for each in (*commands(page), *re.findall(r"^# \w+\.py$", read_page(page), re.MULTILINE))
    }
    needless = [
        text
        for runners in RUNNERS.values()
        for text in runners
        if not any(is_of(each, text) for each in typed)
    ]
    assert needless == []


def read_page(page: Path) -> str:
    """Return the text of one of ``PAGES``."""
    return read(str(page.relative_to(CHECKOUT)))


def shell(line: str, more: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Type *line* in the checkout, in its virtual environment."""
    return subprocess.run(
        ["sh", "-ec", line],
        cwd=CHECKOUT,
        env=environ({**more, "PATH": f"{BIN}:{os.environ['PATH']}"}),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_command_of_greenline_runs(databases: Databases) -> None:
    """The three spellings of a command print the same."""
    said = {}
    for line in OURS:
        done = shell(line, databases.environ)
        # check-deploy reports by its status what is wrong here.
        assert "check-deploy" in line or done.returncode == 0, (line, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        said[line] = done.stdout
    assert len({said[line] for line in OURS if line.endswith(" budget")}) == 1


@pytest.mark.parametrize("line", SHELL)
def test_a_line_for_the_shell_runs(tmp_path: Path, line: str) -> None:
    """What it sets is there for the next command."""
    file = tmp_path / "env"
    file.write_text('MONGODB_URI="..."\n')
    typed = line.replace("/etc/greenline/env", str(file))
    done = shell(f"{typed}; command -v greenline; echo MONGODB_URI=$MONGODB_URI", {})
    assert done.returncode == 0, done.stderr
    command, variable = done.stdout.splitlines()
    assert command.endswith("bin/greenline")
    assert ("..." in variable) == ("activate" not in line)


def test_the_packages_to_build_psycopg2_are_the_image_s() -> None:
    """The Dockerfile installs them, and builds psycopg2 from its sources."""
    packages = COMPILER.split()[2:]
    assert [name for name in packages if name not in read("Dockerfile").split("FROM")[1]] == []
