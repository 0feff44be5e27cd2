"""greenline.doctor.examine: files that cannot be read, and gunicorn's configuration."""

import warnings
from pathlib import Path

import pytest

from greenline.deploy.findings import Level
from greenline.doctor.codes import BLOCKS, CONNECTS_AT_IMPORT
from greenline.doctor.examine import Examined, examine
from greenline.doctor.findings import Facts, Finding
from greenline.doctor.project import Project, load


def examined(folder: Path, **files: bytes | str) -> Examined:
    for name, text in files.items():
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"{name.replace('_conf', '.conf')}.py").write_bytes(data)
    return examine(Project(folder), Facts())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def index(:\n", "invalid syntax"),
        (b"# coding: no-such\nx = 1\n", "unknown encoding"),
        (b"x = 1\0\n", "null bytes"),
        ("x = " + "(" * 300 + ")" * 300, "too many nested parentheses"),
        ("x = 1" + " + 1" * 200_000, "nested too deeply"),
        (f"x = {'not ' * 20_000}1\n", "nested too deeply"),
    ],
    ids=["syntax", "encoding", "null bytes", "parentheses", "operators", "memory"],
)
def test_a_file_that_is_no_python_is_named(
    tmp_path: Path, source: bytes | str, reason: str
) -> None:
    """The others are read all the same."""
    found = examined(tmp_path, broken=source, other="import time\nwhile time.time(): pass\n")
    ((where, why),) = found.unreadable
    assert where.startswith("broken.py")
    assert reason in why
    assert found.lines == 2
    assert not Project(tmp_path, configuration="broken.py").preloads()


@pytest.mark.parametrize(
    ("path", "line", "is_ignored"),
    [("app.py", 2, True), ("app.py", 1, False), ("tests/test_app.py", 2, True), ("no.py", 2, False),
     ("no.conf", 2, False), ("", 0, False)],
    ids=["its line", "another line", "a test's line", "no file", "no Python", "in no file"],
)  # fmt: skip
def test_a_comment_ignores_what_an_import_or_a_run_has_found(
    tmp_path: Path, path: str, line: int, is_ignored: bool
) -> None:
    """As it ignores what is read, in a file that is not examined as well."""
    (tmp_path / "tests").mkdir()
    for name in ("app.py", "tests/test_app.py"):
        (tmp_path / name).write_text("import os\nos.wait()  # greenline: ignore[GL303, GL401]\n")
    (tmp_path / "no.conf").write_text("listen 80;\nserver  # greenline: ignore[GL303, GL401]\n")
    project = load(tmp_path)
    found = examine(project, Facts())
    found.add(project, [Finding(each, path, line, "") for each in (CONNECTS_AT_IMPORT, BLOCKS)])
    ignored = [(each.code.code, reason) for each, reason in found.ignored]
    expected = [("GL303", "a comment at the line"), ("GL401", "a comment at the line")]
    assert ignored == (expected if is_ignored else [])
    assert len(found.findings) == (0 if is_ignored else 2)


def test_python_gives_no_warnings_of_the_code(tmp_path: Path) -> None:
    """Neither of an invalid escape nor of ``is`` with a literal."""
    with warnings.catch_warnings(record=True, action="always") as warned:
        examined(tmp_path, shop="pattern = '\\d'\nknown = pattern is 'd'\n")
    assert warned == []


def test_unpatched_names_of_gunicorns_configuration(tmp_path: Path) -> None:
    """Names that the worker replaces, and does not rebind."""
    found = examined(tmp_path, gunicorn_conf="import os\nfrom os import environ, system\n").findings
    assert [(each.code.code, each.line, each.what) for each in found] == [
        ("GL205", 2, "from os import system"),
    ]


def test_patched_names_of_gunicorns_configuration(tmp_path: Path) -> None:
    """A module is patched in its place, and the worker rebinds names."""
    source = "import os\nfrom socket import socket\nfrom time import monotonic, sleep\n"
    source += "from os import environ\nfrom subprocess import run\n"
    assert examined(tmp_path, gunicorn_conf=source).findings == []


def test_preload_app(tmp_path: Path) -> None:
    """In gunicorn's configuration."""
    found = examined(tmp_path, gunicorn_conf="preload_app = True\n").findings
    assert [each.code.code for each in found] == ["GL206"]


def test_preload_app_that_is_off_or_in_another_file(tmp_path: Path) -> None:
    """Gunicorn does not preload then."""
    text, other = "preload_app = False\n", "preload_app = True\n"
    assert examined(tmp_path, gunicorn_conf=text, other=other).findings == []


def test_the_configuration_that_an_option_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In GUNICORN_CMD_ARGS, outside of the folder as well; the application's rules are not its."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (tmp_path / "server.py").write_text("from os import system\n\npreload_app = True\n")
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--config ../server.py")
    project = load(folder)
    found = examine(project, Facts()).findings
    assert [(each.code.code, each.path, each.line) for each in found] == [
        ("GL205", "../server.py", 1), ("GL206", "../server.py", 3),
    ]  # fmt: skip
    assert project.preloads()


@pytest.mark.parametrize(
    ("path", "count"),
    [("shop/tasks.py", 0), ("shop/jobs/mail.py", 0), ("bin/sync.py", 0), ("db_drivers/x.py", 0),
     ("shop/multitasks.py", 1), ("shop/mail.py", 1)],
)  # fmt: skip
def test_no_request_runs_a_job(tmp_path: Path, path: str, count: int) -> None:
    """By the names of its folder and its file; what its import does counts in any case."""
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "import psycopg2, requests\nconn = psycopg2.connect('')\n\n\n"
        "def send(url):\n    requests.post(url)\n\n\ndef use():\n    conn.cursor()\n"
    )
    codes = [each.code.code for each in examine(load(tmp_path), Facts()).findings]
    assert codes.count("GL213") == count
    assert codes.count("GL203") == 1


PLAIN_CALL = "import requests\n\n\ndef send(url):\n    requests.post(url)\n"
CALL = PLAIN_CALL.replace("def", "@listens\ndef")
ROUTE = "import flask\n\nbp = flask.Blueprint('x', __name__)\n\n\n"
ROUTE += "@bp.get('/')\ndef show():\n    return send(flask.request.url)\n"
FIXTURE = "import pytest\n\n\n@pytest.fixture\ndef shop(request):\n    return str(request)\n"
VIEW = "import flask\nfrom . import mail\n"


@pytest.mark.parametrize(
    ("files", "level"),
    [({"shop/views.py": "import flask\n", "shop/mail.py": CALL}, Level.REMARK),
     ({"shop/views.py": VIEW, "shop/mail.py": CALL}, Level.WARNING),
     ({"shop/views.py": "from flask import current_app\n", "shop/mail.py": CALL}, Level.WARNING),
     ({"shop/views.py": "import flask\n", "shop/signals.py": CALL}, Level.WARNING),
     ({"shop/views.py": "import flask\n", "shop/signals.py": "from .mail import send\n",
       "shop/mail.py": CALL}, Level.WARNING),
     ({"views.py": "import flask\nLAZY = 'shop.mail:send'\n", "shop/mail.py": CALL},
      Level.WARNING),
     ({"views.py": "import flask\nURLS = 'shop.mail'\n", "shop/mail.py": CALL}, Level.WARNING),
     ({"views.py": "import flask\nPAGES = 'shop.mail.html', 'mail'\n", "shop/mail.py": CALL,
       "mail.py": ""}, Level.REMARK)],
    ids=["no import", "a view's import", "no view", "a name that is loaded", "what that imports",
         "a function by its name", "a file by its name", "another name"],
)  # fmt: skip
def test_what_no_file_of_requests_imports_is_a_remark(
    tmp_path: Path, files: dict[str, str], level: Level
) -> None:
    """Unless frameworks load it by its name, or nothing is known to serve requests."""
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = examine(load(tmp_path), Facts()).findings
    assert [each.level for each in found if each.code.code == "GL213"] == [level]


@pytest.mark.parametrize(
    ("files", "target", "count"),
    [({"tasks.py": ROUTE + CALL}, "", 1),
     ({"jobs/web.py": ROUTE + CALL}, "", 1),
     ({"jobs/web.py": ROUTE, "jobs/mail.py": CALL}, "", 1),
     ({"jobs/web.py": ROUTE, "jobs/tasks.py": CALL}, "", 0),
     ({"web/jobs.py": ROUTE, "jobs/mail.py": CALL}, "", 0),
     ({"web.py": ROUTE, "pytest_plugin.py": FIXTURE + CALL}, "", 0),
     ({"web.py": ROUTE, "tasks.py": CALL}, "tasks.py", 1),
     ({"web.py": ROUTE, "tasks.py": CALL}, "web.py", 0)],
    ids=["a file", "a folder", "beside a view", "a job beside a view", "another folder",
         "a fixture", "the application's own", "another one's"],
)  # fmt: skip
def test_what_has_a_view_is_no_job(
    tmp_path: Path, files: dict[str, str], target: str, count: int
) -> None:
    """Whatever its name and that of its folder; nor is the file that has the application."""
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    facts = Facts(loaded=frozenset(files) if target else frozenset(), target=target)
    codes = [each.code.code for each in examine(load(tmp_path), facts).findings]
    assert codes.count("GL213") == count


@pytest.mark.parametrize(
    ("files", "loaded", "levels"),
    [({"app": "from . import mail\n"}, ["app", "mail"], [Level.WARNING]),
     ({}, ["app", "mail"], [Level.WARNING]),
     ({}, ["app"], [Level.REMARK]),
     ({"other": "from . import mail\n"}, ["app", "mail"], [Level.REMARK]),
     ({"web": VIEW}, ["app", "web", "mail"], [Level.WARNING]),
     ({"app": "def look():\n    from . import mail\n"}, ["app"], [Level.WARNING]),
     ({"signals": "from . import mail\n"}, ["app"], [Level.WARNING]),
     ({"signals": "from . import mail\n", "tasks": "from . import mail\n"}, ["app"],
      [Level.WARNING]),
     ({"other": VIEW}, ["app"], [Level.REMARK]),
     ({"other": VIEW, "tasks": "from . import mail\n"}, ["app"], [])],
    ids=["its import", "loaded by a name", "not loaded", "loaded, and imported", "a view's import",
         "a later import", "a name that is loaded", "that and a job", "another program",
         "another program and a job"],
)  # fmt: skip
def test_what_the_application_loads_serves_requests(
    tmp_path: Path, files: dict[str, str], loaded: list[str], levels: list[Level]
) -> None:
    """And not what another program of the project imports, although that serves requests too."""
    (tmp_path / "shop").mkdir()
    for name, text in {"app": "", "mail": CALL, **files}.items():
        (tmp_path / f"shop/{name}.py").write_text(text)
    facts = Facts(loaded=frozenset(f"shop/{name}.py" for name in loaded), target="shop/app.py")
    found = examine(load(tmp_path), facts).findings
    assert [each.level for each in found if each.code.code == "GL213"] == levels


@pytest.mark.parametrize(
    ("view", "level"), [("send(5)", Level.ERROR), ("pass", Level.WARNING)], ids=["called", "not"]
)
def test_an_error_in_a_function_that_no_request_mentions(
    tmp_path: Path, view: str, level: Level
) -> None:
    """It is a warning, as a warning is a remark."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/app.py").write_text(f"{IN_VIEW}{view}\n")
    (tmp_path / "shop/mail.py").write_text("import signal\ndef send(s):\n    signal.alarm(s)\n")
    (finding,) = examine(load(tmp_path), Facts()).findings
    assert (finding.code.code, finding.level) == ("GL208", level)


WEB = "import flask\nfrom .mail import send, queued\nfrom . import mail\n\n\n"
IN_VIEW = f"{WEB}@listens\ndef show():\n    "
A_CLASS = "import requests\n\n\nclass Mail(Base):\n"
A_METHOD = "    def send(self, url):\n        requests.post(url)\n"
SPECIAL = (A_CLASS + A_METHOD).replace("(Base)", "").replace("send", "__call__")
OF_CLASS = f"class Mail:\n{A_METHOD}"
OF_ITSELF = f"import requests\n\n\n{OF_CLASS}"
A_THREAD = "import threading\n\n\ndef watch():\n    send('x')\n\n\n"
MAKES = "import requests\ndef made():\n    def inner(url):\n        requests.get(url)\n"
MORE = f"{PLAIN_CALL}\n\ndef queued(url):\n    send(url)\n"


@pytest.mark.parametrize(
    ("view", "mail", "level"),
    [(f"{IN_VIEW}send('x')\n", PLAIN_CALL, Level.WARNING),
     (f"{IN_VIEW}queued('x')\n", MORE, Level.WARNING),
     (f"{IN_VIEW}mail.send('x')\n", PLAIN_CALL, Level.WARNING),
     (f"{IN_VIEW}getattr(mail, 'send')\n", PLAIN_CALL, Level.WARNING),
     (f"{WEB}VIEWS = ['shop.mail.send']\n", PLAIN_CALL, Level.WARNING),
     (WEB, f"{PLAIN_CALL}\n\nHANDLERS = [send]\n", Level.WARNING),
     (f"{WEB}def show(do=send):\n    do('x')\n", PLAIN_CALL, Level.WARNING),
     (WEB, CALL, Level.WARNING),
     (f"{WEB}mail.Mail()\n", SPECIAL, Level.WARNING),
     (WEB, SPECIAL, Level.REMARK),
     (WEB, A_CLASS + A_METHOD, Level.WARNING),
     (WEB, (A_CLASS + A_METHOD).replace("(Base)", "(object)"), Level.REMARK),
     (WEB, f"{A_CLASS}{A_METHOD}\n\nclass Base(Generic[T]):\n    pass\n", Level.REMARK),
     (WEB, f"{A_CLASS}{A_METHOD}\n\nclass Base(Other):\n    pass\n", Level.WARNING),
     (f"{WEB}class Items:\n    def on_get(self, req, resp):\n        send('x')\n", PLAIN_CALL,
      Level.WARNING),
     (f"{WEB}def show():\n    send('x')\n", PLAIN_CALL, Level.REMARK),
     (WEB, f"{A_THREAD}threading.Thread(target=watch)\n\n\n{PLAIN_CALL}", Level.REMARK),
     (WEB, f"{A_THREAD}scheduler.add_job(watch)\n\n\n{PLAIN_CALL}", Level.REMARK),
     (WEB, f"{A_THREAD}watch()\n\n\n{PLAIN_CALL}", Level.WARNING),
     (WEB, PLAIN_CALL, Level.REMARK),
     (WEB, MORE, Level.REMARK),
     (WEB, f"__all__ = ['send']\n{PLAIN_CALL}", Level.REMARK),
     (WEB, PLAIN_CALL.replace("def", "@cache\ndef"), Level.REMARK),
     (f"{IN_VIEW}('to send')\n", PLAIN_CALL, Level.REMARK),
     (f"{IN_VIEW}made()\n", MAKES, Level.REMARK),
     (WEB, MAKES.replace("def inner", "@listens\n    def inner"), Level.WARNING),
     (f"{IN_VIEW}made()\n", f"{PLAIN_CALL}\n\ndef made():\n    def inner():\n        send('x')\n",
      Level.REMARK),
     (f"{IN_VIEW}made()\n", f"{MAKES}    return inner\n", Level.WARNING),
     (f"{IN_VIEW}other.send('x')\n", OF_ITSELF, Level.REMARK),
     (f"{IN_VIEW}mail.Mail().send('x')\n", OF_ITSELF, Level.WARNING),
     (f"{IN_VIEW}mail.Mail(send)\n", OF_ITSELF, Level.REMARK),
     (f"{IN_VIEW}other.send('x')\n", f"import requests\n@known\n{OF_CLASS}", Level.WARNING),
     (f"{WEB}@listens\ndef show(mail: Mail):\n    mail.send('x')\n", OF_ITSELF, Level.WARNING)],
    ids=["a call", "through another", "of its module", "getattr", "a string", "at import",
         "a default", "a decorator", "a special method", "of another class", "a class with a base",
         "object", "a base of the project", "a base of another one", "a method of Falcon's",
         "a view that is not mentioned", "a thread", "a scheduler", "no thread", "only imports",
         "only one that is not mentioned", "__all__", "a plain decorator", "another string",
         "inside, unused", "inside one that is not mentioned",
         "through an unused one inside", "inside, used", "a method of another class",
         "a method", "a name without a dot", "a class with a decorator", "an annotation"],
)  # fmt: skip
def test_what_is_mentioned_by_no_code_of_requests_is_a_remark(
    tmp_path: Path, view: str, mail: str, level: Level
) -> None:
    """Although the file is imported; and a job mentions it, which is none of requests."""
    (tmp_path / "shop").mkdir()
    for name, text in {"views": view, "mail": mail, "tasks": f"{IN_VIEW}send('x')\n"}.items():
        (tmp_path / f"shop/{name}.py").write_text(text)
    found = examine(load(tmp_path), Facts()).findings
    assert [each.level for each in found if each.code.code == "GL213"] == [level]


@pytest.mark.parametrize(
    ("files", "count"),
    [({"shop/views.py": "import flask\n", "shop/tasks.py": "from shop.mail import send\n"}, 0),
     ({"shop/views.py": "import flask\n",
       "shop/management/commands/x.py": "from ... import mail\n"}, 0),
     ({"other/views.py": VIEW, "shop/tasks.py": "from .mail import send\n"}, 0),
     ({"shop/views.py": VIEW, "shop/tasks.py": "from shop.mail import send\n"}, 1),
     ({"shop/views.py": "import flask\n"}, 1),
     ({"shop/tasks.py": "from shop.mail import send\n"}, 1),
     ({"shop/__init__.py": "from shop.mail import send\n",
       "shop/tasks.py": "from shop import mail\n",
       "shop/views.py": "import flask, shop\nshop.send('x')\n"}, 1),
     ({"shop/__init__.py": "from shop.mail import send\n",
       "shop/tasks.py": "from shop import mail\n",
       "shop/views.py": "import flask, shop\nprint(shop.NAME)\n"}, 0),
     ({"shop/__init__.py": "from .mail import send\nfrom .other import NAME\n",
       "shop/other.py": "NAME = 1\n", "shop/tasks.py": "from shop import mail\n",
       "views.py": "import flask\nfrom shop import NAME\n"}, 0),
     ({"shop/__init__.py": "from .mail import send\nNAME = 1\n",
       "shop/tasks.py": "from shop import mail\n",
       "views.py": "import flask\nfrom shop import NAME\n"}, 1),
     ({"shop/__init__.py": "from ..shop.in_between import send\n",
       "shop/in_between.py": "from .mail import send\n", "shop/tasks.py": "from shop import mail\n",
       "views.py": "import flask\nfrom shop import send\n"}, 1),
     ({"shop/__init__.py": "from other import x\n", "other/__init__.py": "from shop import x\n",
       "shop/tasks.py": "from shop import mail\n",
       "views.py": "import flask\nfrom shop import x\n"}, 0),
     ({"src/shop/mail.py": CALL, "src/shop/views.py": "import flask\n",
       "src/shop/tasks.py": "from shop import mail\n"}, 1),  # of shop/mail.py
     ({"other.py": "import flask\n",
       "shop/serve.py": "from shop import mail\ndef app(environ, start_response): mail.send('x')\n",
       "shop/cli.py": "from shop import mail\n"}, 1)],
    ids=["a job", "a command", "another package's view", "a view too", "none", "no view",
         "a package", "a package's other name", "another file of a package", "a package's own name",
         "through two", "in a circle", "src", "WSGI"],
)  # fmt: skip
def test_what_only_a_job_imports_is_of_the_job(
    tmp_path: Path, files: dict[str, str], count: int
) -> None:
    """Unless nothing is known to serve requests, as in a library."""
    for path, text in {**files, "shop/mail.py": CALL}.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    codes = [each.code.code for each in examine(load(tmp_path), Facts()).findings]
    assert codes.count("GL213") == count


def test_what_settings_name_is_run_by_requests_where_there_is_a_manage_py(tmp_path: Path) -> None:
    """Although a command names the settings, too: so does the file of the application."""
    (tmp_path / "shop").mkdir()
    files = {
        "manage.py": "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\n",
        "shop/wsgi.py": "import os\nfrom django.core.wsgi import get_wsgi_application\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\n"
        "application = get_wsgi_application()\n",
        "shop/settings.py": "MIDDLEWARE = ['shop.middleware.Limit']\n",
        "shop/middleware.py": "import signal\n\n\nclass Limit:\n"
        "    def __call__(self, request):\n        signal.alarm(10)\n",
    }
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    (finding,) = examine(load(tmp_path), Facts()).findings
    assert (finding.code.code, finding.path) == ("GL208", "shop/middleware.py")
    assert finding.level == Level.ERROR
