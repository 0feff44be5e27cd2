"""The page about the doctor: its example, its table and its options."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from greenline.doctor.codes import CODES
from tests.helpers.forms import some
from tests.helpers.pages import blocks, read, write_example
from tests.helpers.support import BIN, CHECKOUT, environ

PAGE = "docs/doctor.md"
EXAMPLES = sorted(path.name for path in (CHECKOUT / "examples").glob("*.py"))


def run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [BIN / "greenline", "doctor", "shop:app", *options],
        cwd=folder, env=environ({"COLUMNS": "100"}), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_example_is_what_the_command_prints(tmp_path: Path) -> None:
    """Line by line; the exit status says that there is an error."""
    write_example(PAGE, "shop.py", tmp_path)
    done = run(tmp_path)
    assert done.returncode == 1, done.stderr
    (example,) = (
        each for each in blocks(read(PAGE), "") if each.startswith("$ greenline doctor shop")
    )
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert example.partition("\n")[2].strip() == printed.strip()


def test_the_example_that_runs_prints_the_same_kinds_of_figures(tmp_path: Path) -> None:
    """Line by line, with other figures."""
    write_example(PAGE, "wait.py", tmp_path)
    (log,) = (each for each in blocks(read(PAGE), "") if each.startswith("192.0.2.1"))
    (tmp_path / "access.log").write_text(log)
    (example,) = (each for each in blocks(read(PAGE), "") if "--replay access.log" in each)
    command, _, expected = example.partition("\n")
    done = subprocess.run(
        [BIN / "greenline", *shlex.split(command)[2:]],
        cwd=tmp_path, env=environ({"COLUMNS": "100"}), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    # A busy machine makes others block as well, for less time.
    printed = re.sub(r"(?m)^(Blocked [^;\n]*);.*", r"\1", done.stdout)
    assert without_figures(printed) == without_figures(expected)


def test_the_broken_examples() -> None:
    """Two mistakes in each of the four."""
    done = subprocess.run(
        [BIN / "greenline", "doctor", "examples/broken"],
        cwd=CHECKOUT, env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "\n1 error, 6 warnings, 1 remark, in " in done.stdout
    assert done.returncode == 1


def without_figures(text: str) -> list[str]:
    return [re.sub(r"\d+(\.\d+)?", "0", line).rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("form", some(["sarif", "json", "github"]))
def test_the_forms_have_the_same_findings(tmp_path: Path, form: str) -> None:
    """For programs: nothing else is printed."""
    write_example(PAGE, "shop.py", tmp_path)
    done = run(tmp_path, f"--{form}")
    if form == "github":
        *annotations, said = done.stdout.splitlines()
        found = [line.partition("title=")[2][:5] for line in annotations]
        assert said.startswith("::notice title=verdict::Ready after these 2 changes (GL201, GL213)")
    elif form == "sarif":
        found = [each["ruleId"] for each in json.loads(done.stdout)["runs"][0]["results"]]
    else:
        document = json.loads(done.stdout)
        found = [each["code"] for each in document["findings"]]
        assert document["import_s"] > 0
    assert (found, done.returncode) == (["GL201", "GL213"], 1)


def test_the_table_has_all_codes() -> None:
    """With their severities and pages."""
    rows = [line for line in read(PAGE).splitlines() if line.startswith("| [GL")]
    assert rows == [
        f"| [{each.code}](doctor/{each.code}.md) | {each.level} | {each.title} |" for each in CODES
    ]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no such folder", "neither a path nor a module:name"),
        ("../up:app", "neither a path nor a module:name"),
    ],
)
def test_a_wrong_target_is_named(tmp_path: Path, target: str, reason: str) -> None:
    """In one line, with exit status 2."""
    done = subprocess.run(
        [BIN / "greenline", "doctor", target],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_folder_is_read_and_not_imported(tmp_path: Path) -> None:
    """A blank in its name, and a file with a thousand operators in one line."""
    folder = tmp_path / "my shop"
    folder.mkdir()
    (folder / "app.py").write_text("raise SystemExit(9)\n")
    (folder / "long.py").write_text(f"x = {' + '.join(['1'] * 1500)}\n")
    done = subprocess.run(
        [BIN / "greenline", "doctor", "my shop"],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    numbers, said = done.stdout.splitlines()
    assert (numbers, done.returncode) == ("nothing found, in 2 lines", 0)
    assert said.startswith("Ready, as far as it was read.")


@pytest.mark.parametrize(
    ("options", "said"),
    some(
        [
            ([], "Not one line of the application was read"),
            (["--package", "flask"], "Ready, as far"),
        ]
    ),
    ids=some(["without", "with --package"]),
)
def test_an_installed_application_is_not_ready_unread(
    tmp_path: Path, options: list[str], said: str
) -> None:
    """There is not one line of it in the folder."""
    done = subprocess.run(
        [BIN / "greenline", "doctor", "flask.app:Flask", *options],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith(said)


@pytest.mark.parametrize("target", [*EXAMPLES, "."])
def test_an_example_is_ready(target: str) -> None:
    """Each alone, and the folder without the broken ones."""
    done = subprocess.run(
        [BIN / "greenline", "doctor", target],
        cwd=CHECKOUT / "examples", env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nothing found, in ")
    assert "\nReady, as far as it was read." in done.stdout


def test_preload_as_an_option_is_found(tmp_path: Path) -> None:
    """In the environment, as gunicorn reads it."""
    write_example(PAGE, "wait.py", tmp_path)
    done = subprocess.run(
        [BIN / "greenline", "doctor", "wait.py"],
        cwd=tmp_path, env=environ({"GUNICORN_CMD_ARGS": "--workers 2 --preload"}),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "GL206 warning preload_app\n  --preload in GUNICORN_CMD_ARGS" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    "value", some(["True", "bool(int('1'))"]), ids=some(["constant", "expression"])
)
def test_preload_app_is_found_once_and_seen_by_the_rules(tmp_path: Path, value: str) -> None:
    """Whether it is a constant or an expression: what is made before the fork is found as well."""
    write_example(PAGE, "wait.py", tmp_path)
    with (tmp_path / "wait.py").open("a") as file:
        file.write("from concurrent.futures import ProcessPoolExecutor\n")
        file.write("executor = ProcessPoolExecutor()\n")
    (tmp_path / "gunicorn.conf.py").write_text(f"preload_app = {value}\n")
    done = subprocess.run(
        [BIN / "greenline", "doctor", "wait:app", "--json"],
        cwd=tmp_path, env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = [each["code"] for each in json.loads(done.stdout)["findings"]]
    assert (found.count("GL206"), found.count("GL204")) == (1, 1)


def test_the_deployment_is_checked_as_well(tmp_path: Path) -> None:
    """As check-deploy does, where there is a gunicorn.conf.py."""
    write_example(PAGE, "wait.py", tmp_path)
    (tmp_path / "gunicorn.conf.py").write_text("timeout = 600\n")
    done = subprocess.run(
        [BIN / "greenline", "doctor", "wait:app"],
        cwd=tmp_path, env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    warning, remark, _ = done.stdout.split("GL306 ")[1:]
    assert warning.startswith("warning a deployment that contradicts itself")
    assert "timeout is 600 s [heartbeat]" in warning
    assert "REQUEST_TIMEOUT is not set [no-deadline]" in remark
    assert "\nReady after this change (GL306), as far" in done.stdout
