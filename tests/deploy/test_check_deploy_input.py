"""greenline check-deploy reports what it cannot read in one line, with the status of wrong use."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenline.cli import main
from tests.deploy.checking import OURS, check, check_files
from tests.deploy.configurations import GOOD

UNREADABLE = {
    "a file that is not there": ({"nginx.conf": "include other.conf;\n"}, "",
        r"nginx\.conf:1: .*No such file.*other\.conf"),
    "a directive without its end": ({"nginx.conf": "http {\n server_tokens off\n gzip on;\n}"}, "",
        r'nginx\.conf:2: .*"server_tokens"'),
    "a brace too few": ({"nginx.conf": "http {\n server {\n }\n"}, "",
        r'nginx\.conf:3: .*expecting "}"'),
    "an end in mid-directive": ({"nginx.conf": "http {}\nuser www"}, "",
        r"nginx\.conf: the file ends in the middle"),
    "a file that includes itself": ({"nginx.conf": "include nginx.co*f;\n"}, "",
        r"nginx\.conf: the file includes itself"),
    "nothing that proxies": ({"nginx.conf": "http { server { root /srv; } }"}, "",
        r"nginx\.conf: no location has a proxy_pass"),
    "nothing but a server that a variable names": ({"nginx.conf":
        "http { server { location / { proxy_pass http://$u; } } }"}, "",
        r"nginx\.conf: no location has a proxy_pass"),
    "a time that is none": ({"nginx.conf":
        "http { server { proxy_read_timeout soon; location / { proxy_pass http://a; } } }"}, "",
        r"nginx\.conf:1: 'soon' is not a time"),
    "a gunicorn.conf.py that raises": ({}, "import os\nos.environ['NOT_SET']\n",
        r"gunicorn\.conf\.py: KeyError: 'NOT_SET'"),
    "one that exits": ({}, "import sys\nsys.exit('greenline: PORT: no')\n",
        r"gunicorn\.conf\.py: greenline: PORT: no"),
    "one that is no Python": ({}, "workers = \n",
        r"gunicorn\.conf\.py: SyntaxError: invalid syntax"),
    "a value that gunicorn refuses": ({}, "workers = 'many'\n",
        r"gunicorn\.conf\.py: Error: invalid literal .* 'many'"),
    "a worker that cannot be imported": ({}, "worker_class = 'missing.worker.It'\n",
        r"gunicorn\.conf\.py: .*missing\.worker\.It"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_reported_in_one_line(name: str, tmp_path: Path) -> None:
    """With the status of wrong use, and without a traceback."""
    nginx, gunicorn, pattern = UNREADABLE[name]
    good = GOOD["one host"]
    configuration = replace(good, nginx=nginx or good.nginx, gunicorn=gunicorn or good.gunicorn)
    done = check_files(configuration, tmp_path)
    assert done.exit_code == 2
    assert done.stdout == ""
    *_, said = done.stderr.strip().splitlines()
    assert said.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert re.search(pattern, said), said


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        pytest.param({"DRAIN_DELAY": "soon"}, "DRAIN_DELAY: 'soon'", id="of the worker"),
        pytest.param({"REQUEST_TIMEOUT": "0"}, "REQUEST_TIMEOUT: '0'", id="of the service"),
        pytest.param({"GUNICORN_CMD_ARGS": "--no-such"}, "--no-such", id="gunicorn's"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], said: str, tmp_path: Path) -> None:
    """As gunicorn or the worker would at the start."""
    good = GOOD["one host"]
    done = check_files(replace(good, environ={**good.environ, **environ}), tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("said", "has_hint"),
    [
        pytest.param("greenline: DATABASE_URL: not set", True, id="a variable"),
        pytest.param("greenline: the plan is not set", False, id="anything else"),
    ],
)
def test_a_variable_that_is_not_set_has_a_hint(said: str, has_hint: bool, tmp_path: Path) -> None:
    """The shell has not the environment of the service."""
    good = GOOD["one host"]
    done = check_files(replace(good, gunicorn=f"import sys\nsys.exit({said!r})\n"), tmp_path)
    line = done.stderr.splitlines()[-1]
    assert said in line
    assert ("; run check-deploy with the environment of the service" in line) == has_hint


def test_our_own_gunicorn_conf_py_has_the_hint() -> None:
    """In a shell that sets nothing."""
    line = check(*OURS, MONGODB_URI="off").stderr.splitlines()[-1]
    assert "greenline: DATABASE_URL: not set; run check-deploy with the environment" in line
    example = re.search(r" or set DATABASE_URL=([^;]+); `(greenline .+ --help)` says more$", line)
    assert example
    done = check(*OURS, MONGODB_URI="off", DATABASE_URL=example[1])
    assert "DATABASE_URL" not in done.stderr
    shown = CliRunner().invoke(main, shlex.split(example[2])[1:]).output
    assert "DATABASE_URL=postgresql://" in shown


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    """Also the one that is taken by default."""
    done = check("--nginx", tmp_path / "none.conf")
    assert (done.exit_code, "none.conf' does not exist" in done.stderr) == (2, True)


def test_without_the_parser_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has none: the package asks for it with an extra only."""
    monkeypatch.setitem(sys.modules, "crossplane", None)
    done = check_files(GOOD["one host"], tmp_path)
    assert done.exit_code == 2
    assert "pip install 'greenline[deploy]'" in done.stderr
