"""The wheel in an empty environment: each example as its head says, and what is missing by name."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from greenline.postgres import copying
from tests.helpers.forms import some
from tests.helpers.pages import PAGES, commands
from tests.helpers.support import (
    CHECKOUT,
    IS_LONG,
    START_LIMIT_S,
    Answer,
    Service,
    environ,
    free_port,
    wait_until,
)
from tests.helpers.wheel import Environment, build

EXAMPLES = CHECKOUT / "examples"
HELLO = """
import greenline

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [greenline.__file__.encode()]
"""
BEFORE = "  # before: "  # behind a line of an example
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """An environment after ``pip install greenline``."""
    return Environment(tmp_path_factory.mktemp("bare") / "venv", wheel, ["greenline"])


@dataclass
class Example:
    """An example, the environment that its head asks for, and the folder where it is typed."""

    lines: list[str]
    environment: Environment
    cwd: Path

    def run(self, more: dict[str, str]) -> str:
        """Run the commands before gunicorn, and return what they print."""
        printed = ""
        for line in self.lines:
            if "gunicorn " in line:
                break
            done = self.environment.run(line, more, self.cwd)
            assert (done.returncode, done.stderr) == (0, ""), f"{line}\n{done.stderr}"
            printed += done.stdout
        return printed

    @contextmanager
    def served(self, more: dict[str, str]) -> Iterator[Service]:
        """Run the command that starts gunicorn, on a port of the test's own."""
        (line,) = [line for line in self.lines if "gunicorn " in line]
        with serving(self.environment, line, more, self.cwd) as running:
            yield running

    def asked(self, running: Service) -> list[Answer]:
        """Ask what the lines that begin with curl ask."""
        return [ask(running, line) for line in self.lines if line.startswith("curl ")]


def ask(running: Service, line: str) -> Answer:
    """Do what curl would; the first request waits until the worker has started."""
    words = shlex.split(line)
    path = words[-1].removeprefix("http://127.0.0.1:8000")
    if words[1] == "-d":
        return running.ask("POST", path, words[2].encode(), FORM, timeout_s=START_LIMIT_S)
    assert len(words) == 2
    return running.get(path, timeout_s=START_LIMIT_S)


@contextmanager
def serving(
    environment: Environment, line: str, more: dict[str, str], cwd: Path
) -> Iterator[Service]:
    """Run *line*, a command that starts gunicorn, until it listens and has a worker."""
    port = free_port()
    log = cwd / "gunicorn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S602 - as it is typed
            f"exec env {line}",
            shell=True,
            cwd=cwd,
            env=environment.environ({**more, "PORT": str(port)}),
            stdout=output,
            stderr=output,
        )
    running = Service(process, port, log)
    try:
        wait_until(
            lambda: "Booting worker" in running.log or process.poll() is not None, "a worker"
        )
        assert process.poll() is None, running.log
        yield running
    finally:
        running.stop()


@pytest.fixture
def example(wheel: Path, tmp_path: Path) -> Callable[[str], Example]:
    """Return a function that makes an :class:`Example` by its name, away from the checkout."""

    def make(name: str) -> Example:
        folder = tmp_path / "examples"
        shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
        install, *lines = head(name)
        assert install.startswith("pip install ")
        # Typed in the checkout's folder, ".." is the checkout, of which the wheel was built.
        wanted = [re.sub(r"^\.\.(?=\[|$)", "greenline", word) for word in shlex.split(install)[2:]]
        assert wanted[0].startswith("greenline")
        environment = Environment(tmp_path / "venv", wheel, wanted)
        # Of the wheel, and not of the checkout.
        said = environment.run("python -c 'import greenline; print(greenline)'", {}, folder)
        assert str(environment.packages) in said.stdout
        return Example(lines, environment, folder)

    return make


def head(name: str) -> list[str]:
    """Return the commands in the docstring of an example."""
    said = ast.get_docstring(ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))) or ""
    return [line.strip() for line in said.splitlines() if line.startswith("    ")]


def test_a_legacy_flask_application(example: Callable[[str], Example], empty_database: str) -> None:
    """Fifty requests that wait a second each do not wait for each other."""
    legacy = example("flask_legacy.py")
    with legacy.served({"DATABASE_URL": empty_database}) as running:
        assert [answer.json for answer in legacy.asked(running)] == [{"answer": 42}]
        with ThreadPoolExecutor(50) as clients:
            began = time.monotonic()
            answers = list(clients.map(running.get, ["/slow"] * 50))
        assert [answer.status for answer in answers] == [200] * 50, running.log
        assert time.monotonic() - began < 25


@pytest.mark.parametrize("server", ["Postgres", "sqlite"])
def test_a_django_catalogue(
    example: Callable[[str], Example], empty_database: str, server: str
) -> None:
    """Its table is made once, by a command that may be repeated."""
    more = {"DATABASE_URL": empty_database} if server == "Postgres" else {}
    catalogue = example("django_catalogue.py")
    catalogue.run(more)
    catalogue.run(more)
    with catalogue.served(more) as running:
        answers = catalogue.asked(running)
    assert [answer.json for answer in answers] == [{"titles": ["Tehanu"]}] * 2
    assert (catalogue.cwd / "catalogue.sqlite3").exists() == (server == "sqlite")


def test_a_report_with_sqlalchemy(example: Callable[[str], Example], empty_database: str) -> None:
    """Forty requests at once on two workers stay within what each of them may have."""
    report = example("sqlalchemy_report.py")
    with report.served({"DATABASE_URL": empty_database, "POSTGRES_POOL_SIZE": "3"}) as running:
        (answer,) = report.asked(running)
        assert answer.json["connections"] >= 1
        with ThreadPoolExecutor(40) as clients:
            answers = list(clients.map(running.get, ["/report"] * 40))
    assert [answer.status for answer in answers] == [200] * 40, running.log
    # And a connection for questions in each worker.
    assert max(each.json["connections"] for each in answers) <= 2 * (3 + 1)


@pytest.mark.parametrize("name", ["flask_legacy.py", "django_catalogue.py", "sqlalchemy_report.py"])
def test_a_program_before_differs_by_a_line_at_most(
    example: Callable[[str], Example], empty_database: str, name: str
) -> None:
    """It ran on gunicorn's threads, as its head says, and gives the same answers."""
    after = example(name)
    program = after.cwd / name
    text = program.read_text(encoding="utf-8")
    changed = [line for line in text.splitlines() if BEFORE in line]
    assert len(changed) <= 1
    for line in changed:
        text = text.replace(line, line.partition(BEFORE)[2])
    program.write_text(text, encoding="utf-8")
    (line,) = re.findall(r"``(gunicorn .+)``", text)
    more = {"DATABASE_URL": empty_database}
    after.run(more)
    with serving(after.environment, line, more, after.cwd) as running:
        answers = after.asked(running)
    assert [answer.status for answer in answers] == [200] * len(answers)
    assert "Using worker: gthread" in running.log


def test_a_script(example: Callable[[str], Example], empty_database: str, empty_mongo: str) -> None:
    """It prints the sum that went through both databases."""
    script = example("script.py")
    said = script.run({"DATABASE_URL": empty_database, "MONGODB_URI": empty_mongo})
    assert f"sum: {sum(n * n for n in range(200))}\nat most " in said


INSTALLS = {
    # What each line brings, and nothing else of the page needs.
    "pip install . flask psycopg2-binary": "greenline, flask, psycopg2",
    "pip install ../greenline": "greenline.patch",
    'pip install "../greenline[postgres,mongo]"': "greenline.postgres.pool, greenline.mongo.client",
    'pip install "../greenline[doctor]"': "greenline.doctor.report",
    'pip install "../greenline[cache,flask]"': "greenline.cache.cache, greenline.flask.cached",
    'pip install "../greenline[log]"': "greenline.telemetry.json_lines",
    'pip install "../greenline[ops]"': "greenline.ops.metrics",
    'pip install "../greenline[otel]"': (
        "greenline.telemetry.tracer_provider, opentelemetry.exporter.otlp.proto.http.trace_exporter"
    ),
    'pip install "../greenline[tune]"': "greenline.tune.report, greenline.tune.generator, lmfit",
    'pip install "sentry-sdk[flask]"': "sentry_sdk.integrations.flask",
    "pip install limits[redis]": "limits, redis",
}


def test_each_line_that_installs_is_known() -> None:
    """A line more on a page is a row more."""
    lines = {line for page in PAGES for line in commands(page) if line.startswith("pip install ")}
    assert lines == set(INSTALLS)


@pytest.mark.parametrize("line", some(list(INSTALLS), 4))
def test_a_line_of_a_page_installs_what_it_says(wheel: Path, tmp_path: Path, line: str) -> None:
    """Of the checkout, or of a folder beside it, with the wheel in the place of its sources."""
    # A path with its extras is the checkout's; the network is not needed.
    wanted = [
        re.sub(r"^(\.|\.\./greenline)(?=\[|$)", "greenline", one) for one in shlex.split(line)[2:]
    ]
    environment = Environment(tmp_path / "venv", wheel, wanted)
    done = environment.run(f"python -c 'import {INSTALLS[line]}'", {}, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not IS_LONG, reason="GREENLINE_LONG_TESTS=1 installs from the network")
@pytest.mark.parametrize("line", [line for line in INSTALLS if "postgres" not in line])
def test_pip_installs_a_line_of_a_page(tmp_path: Path, line: str) -> None:
    """As typed, by pip itself, in an empty environment; psycopg2 would need a C compiler."""
    source = tmp_path / "greenline"
    ignore = shutil.ignore_patterns(".git", ".venv*", "var", "__pycache__")
    shutil.copytree(CHECKOUT, source, ignore=ignore, symlinks=True)
    venv.create(tmp_path / "venv", with_pip=True)
    program = tmp_path / "venv" / "bin"
    typed = subprocess.run(
        [program / "python", "-m", *shlex.split(line)],
        cwd=source, env=environ({}), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert typed.returncode == 0, typed.stderr
    subprocess.run(
        [program / "python", "-c", f"import {INSTALLS[line]}"],
        cwd=tmp_path / "venv", env=environ({}), check=True,
    )  # fmt: skip


def test_each_example_is_short_and_is_run_here() -> None:
    """Of 60 lines at most."""
    source = Path(__file__).read_text(encoding="utf-8")
    examples = sorted(EXAMPLES.glob("*.py"))
    assert len(examples) == 4
    for path in examples:
        assert f'example("{path.name}")' in source, path.name
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, path.name


def test_the_worker_needs_no_extra(bare: Environment, tmp_path: Path) -> None:
    """It serves what is installed from the wheel; greenline's own command is there as well."""
    (tmp_path / "hello.py").write_text(HELLO)
    line = "gunicorn -k greenline.worker.GreenWorker hello:app"
    with serving(bare, line, {}, tmp_path) as running:
        answer = ask(running, "curl http://127.0.0.1:8000/")
    assert answer.body.decode() == str(bare.packages / "greenline" / "__init__.py")
    said = bare.run("greenline budget --max-connections 100 --json", {}, tmp_path)
    assert json.loads(said.stdout)["postgres"]["host"] > 0
    assert bare.run("greenline capacity --rate 100", {}, tmp_path).returncode == 0


@pytest.mark.parametrize(
    "program",
    [
        "import greenline; greenline.hub.deadline.limit(2.0); greenline.patch.patch_all",
        "import greenline; greenline.telemetry.counters.totals; greenline.errors.ConfigError",
        "import greenline; greenline.worker.GreenWorker; greenline.postgres; greenline.mongo",
        "from greenline import *; errors, hub, lifecycle.Resources, mongo, patch, postgres, worker",
        "import greenline; greenline.budget.Plan; greenline.lifecycle.Health",
    ],
)
def test_the_public_names_need_no_import_of_their_own(
    bare: Environment, tmp_path: Path, program: str
) -> None:
    """As ``help(greenline)`` writes them, and by the star import, without an extra."""
    done = bare.run(f"python -c '{program}'", {}, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        pytest.param(
            "python -c 'import greenline; greenline.postgres.open()'",
            "greenline.postgres needs psycopg2: pip install 'greenline[postgres]', or "
            "psycopg2-binary",
            id="greenline.postgres",
        ),
        pytest.param(
            "python -c 'import greenline; greenline.flask.Flask'",
            "greenline.flask needs flask: pip install 'greenline[flask]'",
            id="greenline.flask",
        ),
        pytest.param(
            "python -c 'from greenline import postgres; postgres.open()'",
            "greenline.postgres needs psycopg2: pip install 'greenline[postgres]', or "
            "psycopg2-binary",
            id="postgres",
        ),
        pytest.param(
            "python -c 'from greenline import mongo; mongo.open()'",
            "greenline.mongo needs pymongo: pip install 'greenline[mongo]'",
            id="mongo",
        ),
        pytest.param(
            "python -c 'from greenline.flask import Flask'",
            "greenline.flask needs flask: pip install 'greenline[flask]'",
            id="flask",
        ),
        pytest.param(
            "touch n; greenline check-deploy --nginx n --gunicorn n",
            "greenline.deploy needs crossplane: pip install 'greenline[deploy]'",
            id="deploy",
        ),
        pytest.param(
            "greenline doctor .",
            "greenline.doctor needs rich: pip install 'greenline[doctor]'",
            id="doctor",
        ),
        pytest.param(
            "greenline tune shop:app --load /",
            "greenline.tune needs aiohttp: pip install 'greenline[tune]'",
            id="tune",
        ),
        pytest.param(
            "DATABASE_URL=postgresql://h/d greenline budget",
            "DATABASE_URL: greenline.postgres needs psycopg2: pip install 'greenline[postgres]', "
            "or psycopg2-binary",
            id="greenline budget",
        ),
    ],
)
def test_a_missing_extra_is_one_line(
    bare: Environment, tmp_path: Path, command: str, missing: str
) -> None:
    """The last line names what to install, and no other line has an error."""
    done = bare.run(command, {}, tmp_path)
    assert done.returncode != 0
    *_, last = done.stderr.splitlines()
    assert last.removeprefix("ModuleNotFoundError: ").removeprefix("Error: ") == missing
    assert done.stderr.count("Error: ") == 1


@pytest.mark.parametrize(
    ("name", "value", "missing"),
    [
        ("GREENLINE_PG_WAIT", "psycogreen", "psycogreen is not installed: pip install psycogreen"),
        (
            "GREENLINE_LOG",
            "json",
            "python-json-logger is not installed: pip install 'greenline[log]'",
        ),
    ],
)
def test_what_a_setting_needs_is_named(
    bare: Environment, tmp_path: Path, name: str, value: str, missing: str
) -> None:
    """The worker does not start, and says in one line what to install."""
    line = "gunicorn -k greenline.worker.GreenWorker hello:app"
    done = bare.run(line, {name: value}, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"greenline: {name}: {missing}"


def test_the_wheel_describes_itself(wheel: Path) -> None:
    """Types, a description, and an extra that is all the others."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = message_from_bytes(archive.read(metadata))
    assert {"greenline/py.typed", "greenline/tune/report.html"} <= set(names)
    if copying.compiled_rows is not None:  # there is a C compiler
        assert "greenline/postgres/_copying.abi3.so" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"greenline"}
    extras = set(said.get_all("Provides-Extra", []))
    assert extras == {
        "all", "cache", "deploy", "doctor", "flask", "log", "mongo", "ops", "otel", "postgres",
        "tune",
    }  # fmt: skip
    named = ",".join(sorted(extras - {"all"}))
    required = said.get_all("Requires-Dist", [])
    assert f'greenline[{named}]; extra == "all"' in required
    assert "psycogreen" not in "".join(required)
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload().startswith("# Greenline")  # type: ignore[union-attr]
