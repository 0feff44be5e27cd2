"""greenline.doctor.command: what a DATABASE_URL shows, and forms for GitHub."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenline.cli import main
from greenline.doctor.command import leads_to_pgbouncer


@pytest.mark.parametrize(
    ("url", "is_pgbouncer"),
    [
        ("postgresql://shop@db:6432/shop", True),
        ("postgresql://shop@db:6432", True),
        ("postgresql://shop@pgbouncer.internal:5432/shop", True),
        ("postgresql://my-pgbouncer/shop", True),
        ("postgresql://shop@db:5432/shop?pgbouncer=true", True),
        ("host=pgbouncer dbname=shop", True),
        ("host=db port=6432", True),
        ("postgresql://pgbouncer:6432@db:5432/shop", False),
        ("postgresql://shop@db:64321/pgbouncer", False),
        ("", False),
    ],
)
def test_a_pgbouncer_is_known_by_its_host_or_port(url: str, is_pgbouncer: bool) -> None:
    """Not by the user, the password or the name of the database."""
    assert leads_to_pgbouncer(url) is is_pgbouncer


@pytest.mark.parametrize(
    ("target", "names", "anchor"),
    [
        ("shop:app", ["shop.py", "gunicorn.conf.py"], "shop.py"),
        ("shop.wsgi:app", ["shop/wsgi/__init__.py", "pyproject.toml"], "shop/wsgi/__init__.py"),
        (".", ["a.py", "pyproject.toml", "gunicorn.conf.py"], "gunicorn.conf.py"),
        (".", ["b.py", "a.py"], "a.py"),
        ("b.py", ["b.py", "pyproject.toml"], "b.py"),
        (".", ["notes.txt"], "pyproject.toml"),
    ],
    ids=["module", "package", "configuration", "first file", "file", "nothing"],
)
def test_what_is_in_no_file_has_one_for_code_scanning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, names: list[str], anchor: str
) -> None:
    """The target's, or one that configures it: here for a library that is declared."""
    for name in (*names, "requirements.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("cx_Oracle\n" if name == "requirements.txt" else "")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["doctor", target, "--sarif"])
    results = json.loads(done.stdout)["runs"][0]["results"]
    places = [each["locations"][0]["physicalLocation"] for each in results]
    assert {"artifactLocation": {"uri": anchor}} in places


@pytest.mark.parametrize(
    ("variable", "value", "is_found"),
    [
        ("DATABASE_URL", "postgresql://shop@db:6432/shop", True),
        ("PGBOUNCER_POOL_SIZE", "20", True),
        ("DATABASE_URL", "postgresql://shop@db:5432/shop", False),
    ],
)
def test_session_state_is_found_behind_a_pgbouncer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, is_found: bool
) -> None:
    """The environment says that there is one."""
    (tmp_path / "app.py").write_text("def view(cursor):\n    cursor.execute('set role shop')\n")
    monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(main, ["doctor", str(tmp_path / "app.py"), "--json"])
    codes = [each["code"] for each in json.loads(done.stdout)["findings"]]
    assert codes == (["GL216"] if is_found else [])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--run", ""], '--run needs a command, such as "pytest -x"'),
        (["--run", "pytest '"], '--run: "pytest \'": No closing quotation'),
        (["--run", "true", "--serve"], "there is one of --run, --serve and --replay"),
        (["--json", "--sarif"], "there is one of --json, --sarif and --github"),
    ],
)
def test_wrong_options_are_one_clear_line(options: list[str], reason: str) -> None:
    """And nothing runs."""
    done = CliRunner().invoke(main, ["doctor", "shop:app", *options])
    assert done.exit_code == 2
    assert reason in done.output
