"""
The five applications of ``bench.migrate``, as the steps of docs/migrate.md name them, and an
environment for each that has what the application has, and nothing of Greenline.
"""

import shlex
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psycopg2

from bench import legacy_environments
from bench.migrate_lineup import APPLICATIONS, JSON, Application, Asked

# What the environments of the bench have for Greenline alone.
BROUGHT = (
    "gevent",
    "gunicorn_h1c",
    "msgspec",
    "psycogreen",
    "pymongo",
    "tenacity",
    "zope.event",
)
HELD_S = 3  # as /report of the page's application waits


@dataclass(frozen=True)
class Migrated:
    """
    An application, and what is its own in the steps.

    :param table: a table that the read needs; while it is locked the read waits.
    :param pins: what pip installs before step 1.
    :param warned: each warning of step 4: the modules that it names, and its reason.
    :param workers: how many the old server had, if it was a uWSGI, and the new one has.
    :param was: the arguments of a uWSGI that is the old server; None: it is gunicorn.
    """

    application: Application
    table: str
    pins: tuple[str, ...] = ()
    warned: tuple[tuple[str, str], ...] = ()
    workers: int = 2
    was: str | None = None

    @property
    def end(self) -> str:
        """What the old server logs as the last."""
        return "Shutting down" if self.was is None else "goodbye to uWSGI"

    def old(self, start: str) -> str:
        """Return the line of step 2 that starts the old server."""
        if self.was is None:
            return start
        _, redirected = start.split(" 2> ")
        return f"uwsgi --http-socket 127.0.0.1:8000 {self.was} 2> {redirected}"

    def counted(self, start: str) -> str:
        """Return the lines of step 3, with as many workers as there were."""
        return start.replace("WEB_CONCURRENCY=2", f"WEB_CONCURRENCY={self.workers}")

    def ended(self, end: str) -> str:
        """Return the line of step 10 that ends the old server: a uWSGI has a signal of its own."""
        return end if self.was is None else end.replace("kill", "kill -INT")

    def typed(self, text: str, names: Mapping[str, str]) -> str:
        """Return *text* of the page with this application in the place of the page's."""
        read, write = self.application.read, self.application.write
        reading, path = arguments(read, names), shlex.quote(read.path)
        count = shlex.quote(self.application.count)
        for old, new in (
            ("-X POST '127.0.0.1:8001/orders/{}'",
             f"{arguments(write, names)} 127.0.0.1:8001{shlex.quote(write.path)}"),
            ("127.0.0.1:$port/orders", f"{reading} 127.0.0.1:$port{path}"),
            ("127.0.0.1:$port/report", f"{reading} 127.0.0.1:$port{path}"),
            ("127.0.0.1:8000/orders", f"{reading} 127.0.0.1:8000{path}"),
            ("127.0.0.1:8001/orders", f"{reading} 127.0.0.1:8001{path}"),
            ("'select count(*) from orders'", count),
            ("orders:app", shlex.join(self.application.arguments)),
        ):  # fmt: skip
            text = text.replace(old, new)
        assert "orders:" not in text
        return text


def arguments(asked: Asked, names: Mapping[str, str]) -> str:
    """Return curl's arguments for the headers and the body of *asked*; xargs replaces ``{}``."""
    headers = dict(JSON) if asked.body else {}
    headers |= {name: value.format_map(names) for name, value in asked.headers.items()}
    words = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
    if asked.body:
        words += ["-d", asked.body.replace("{run}-", "").replace("{number}", "{}")]
    return shlex.join(words)


BY_NAME = {each.name: each for each in APPLICATIONS}
PASTED = "imported by gunicorn's configuration, before the worker was patched"
MIGRATED = (
    Migrated(BY_NAME["alerta"], "alerts"),
    Migrated(BY_NAME["ihatemoney"], "bill"),
    Migrated(
        BY_NAME["kinto"],
        "objects",
        # kinto.ini has a formatter of dockerflow, which imports them.
        warned=(("pyramid.config, pyramid.threadlocal, pyramid.view, transaction", PASTED),),
    ),
    Migrated(BY_NAME["mlflow"], "runs"),
    Migrated(
        BY_NAME["pretix"],
        "pretixbase_item",
        # The bench has the dnspython of pymongo, and pretix pins another.
        pins=("dnspython==2.8.*", "pyuwsgi==2.0.30.post1"),
        workers=4,
        was="--master --module pretix.wsgi --processes 4",
    ),
)


def make_environment(migrated: Migrated, folder: Path) -> None:
    """Make the virtual environment *folder* from a copy of the bench's, less Greenline's part."""
    installed = legacy_environments.find(migrated.application.name)
    venv.create(folder, symlinks=True)
    packages, copied = (
        Path(sysconfig.get_path("purelib", "venv", {"base": str(base)}))
        for base in (installed, folder)
    )
    shutil.copytree(packages, copied, dirs_exist_ok=True)
    shebang = f"#!{installed}/bin/python"
    for script in (installed / "bin").iterdir():
        text = b"" if script.is_symlink() else script.read_bytes()
        if text.startswith(shebang.encode()):
            target = folder / "bin" / script.name
            target.write_bytes(text.replace(shebang.encode(), f"#!{folder}/bin/python".encode(), 1))
            target.chmod(0o755)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    _run([*pip, "uninstall", "--quiet", "--yes", *BROUGHT])
    if migrated.pins:
        _run([*pip, "install", "--quiet", "--no-deps", *migrated.pins])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@contextmanager
def held(table: str, url: str) -> Iterator[None]:
    """
    Make each read of *table* wait for HELD_S, or until a block's end.

    The table is locked again as soon as the read that has waited is through.
    """
    over = Event()

    def hold() -> None:
        conn = psycopg2.connect(url)
        try:
            while not over.is_set():
                with conn, conn.cursor() as cursor:
                    cursor.execute(f"lock table {table}")
                    over.wait(HELD_S)
        finally:
            conn.close()

    holding = Thread(target=hold)
    holding.start()
    try:
        yield
    finally:
        over.set()
        holding.join()
