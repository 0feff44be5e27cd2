"""GREENLINE_FAST_FLASK=1: the worker serves the Flask objects of an application as ours are."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.hosting import hosting
from tests.helpers.pages import blocks, read, write_example
from tests.helpers.support import BIN, Service, environ, wait_until

TARGET, OURS = "tests.e2e.adopted:app", "greenline.flask.app"
LINE = (
    "greenline.flask: adopted admin, shop; left to Flask: odd: its class Odd cannot be combined "
    "with ours: its metaclass is Meta"
)


def is_ours(running: Service, path: str) -> bool:
    return OURS in running.get(path).json["modules"]


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["loaded late", "preload"])
def test_all_applications_of_the_process_are_adopted(options: tuple[str, ...]) -> None:
    """Behind middlewares too, with one line in the log, and again by a worker after a reload."""
    with hosting(TARGET, *options, GREENLINE_FAST_FLASK="1") as running:
        assert is_ours(running, "/")
        assert is_ours(running, "/admin/")
        assert not is_ours(running, "/odd/")
        # The first worker writes it, and the other one may have answered before.
        wait_until(lambda: LINE in running.log, "the line")
        assert running.log.count("greenline.flask: ") == running.log.count(LINE) == 1
        first = running.workers()
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not {*first} & {*running.workers()}, "another worker")
        assert is_ours(running, "/")
        assert running.log.count(LINE) == 1


def test_the_worker_after_max_requests_adopts_as_well() -> None:
    """Each answer is of a worker of its own."""
    with hosting(TARGET, "--max-requests", "1", GREENLINE_FAST_FLASK="1") as running:
        first = running.workers()
        assert is_ours(running, "/")
        wait_until(lambda: not {*first} & {*running.workers()}, "another worker")
        wait_until(lambda: _answers(running), "the other worker to serve")


def _answers(running: Service) -> bool:
    try:
        return is_ours(running, "/")
    except OSError:
        return False


def test_an_application_that_is_made_later_is_flasks() -> None:
    """The worker adopts what there is when it has loaded the application."""
    with hosting(TARGET, GREENLINE_FAST_FLASK="1") as running:
        assert is_ours(running, "/late") is False


def test_without_the_setting_nothing_is_adopted() -> None:
    """Flask's objects are served by Flask."""
    with hosting(TARGET) as running:
        assert not is_ours(running, "/")
        assert "greenline.flask" not in running.log


def test_an_application_without_flask_is_not_looked_at() -> None:
    """Flask is not imported for it."""
    with hosting("wsgiref.simple_server:demo_app", GREENLINE_FAST_FLASK="1") as running:
        assert running.get("/").status == 200
        assert "greenline.flask" not in running.log


def routes(folder: Path, target: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [BIN / "greenline", "routes", target],
        cwd=folder, env=environ({}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_example_of_the_page_is_what_the_command_prints(tmp_path: Path) -> None:
    """Line by line."""
    page = "docs/hosting.md"
    write_example(page, "shop.py", tmp_path)
    done = routes(tmp_path, "shop:app")
    (example,) = (each for each in blocks(read(page), "") if "$ greenline routes" in each)
    assert (done.stderr, done.stdout) == ("", example.partition("\n")[2])


FACTORY = """
import flask

class Meta(type):
    pass

class Odd(flask.Flask, metaclass=Meta):
    pass

def create(name):
    app = flask.Flask(name, subdomain_matching=True)
    app.add_url_rule("/", "index", lambda: "x", methods=["GET", "PUT"])
    app.odd = Odd("odd")
    return app
"""


def test_routes_are_shown_of_all_applications_as_gunicorn_loads_them(tmp_path: Path) -> None:
    """By a factory, with gunicorn's configuration; a reason for the application is each route's."""
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "gunicorn.conf.py").write_text(f"chdir = {str(tmp_path)!r}\n")
    done = routes(tmp_path, "factory:create('shop')")
    odd, shop, *left, head, static, index = done.stdout.splitlines()
    assert odd.startswith("odd: left to Flask: its class Odd cannot be combined with ours: ")
    assert shop == "shop: adopted"
    assert "a URL adapter is made for each request (subdomain_matching is set)" in "".join(left)
    assert head.split() == ["rule", "methods", "endpoint", "found"]
    for line in (static, index):
        assert line.endswith("by Werkzeug: subdomain_matching is set")
    assert index.split()[:4] == ["/", "GET,", "PUT", "index"]


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("shop:app", "Error: shop:app: ModuleNotFoundError: No module named 'shop'"),
        ("wsgiref.simple_server:demo_app", "there is no Flask application in the process"),
    ],
    ids=["no module", "no Flask"],
)
def test_what_cannot_be_shown_is_one_line(tmp_path: Path, target: str, line: str) -> None:
    """With the exit status 1."""
    done = routes(tmp_path, target)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.strip().endswith(line)
    assert done.stderr.count("\n") == 1
