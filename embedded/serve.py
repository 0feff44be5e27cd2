"""
``make serve``: run the service and its servers on this machine until Ctrl-C.

Each step is logged before it begins, with its usual duration. Ctrl-C and SIGTERM end the run with
status 0, a child that ends by itself with status 1. An error that a setting can correct is one
line, which names the variable and says what to do.
"""

import argparse
import errno
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

from embedded import checks, report, signals
from embedded.lock import FolderLock
from embedded.mongo import Mongo, is_available
from embedded.postgres import Postgres
from embedded.process import Child, run, wait_until
from embedded.settings import CHECKOUT, data_folder
from greenline.errors import ConfigError
from greenline.settings import OFF, OPS_BIND
from greenline.telemetry.console import has_colours

# The format of gunicorn's lines.
FORMAT = "[%(asctime)s] [%(process)d] [%(levelname)s] %(name)s: %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S %z"
READY_TIMEOUT_S = 30
STEPS = ("db", "upgrade", "sample")
KEY = "development"
NEW_KEY = ("keys", "create", "--name", KEY, "--scopes", "read,write,admin", "--replace")
GRACEFUL_TIMEOUT_S = 30
WATCH_S = 0.2
# The workers write their logs from threads: what they have logged so far precedes the banner.
LOGS_S = 0.3
# Seconds of each step, measured on two cores; the first start makes the data.
POSTGRES_S, FIRST_POSTGRES_S = 1, 3
MONGODB_S, FIRST_MONGODB_S = 2, 4
DATA_S, FIRST_DATA_S = 3, 5
GUNICORN_S = 4
NO_MONGODB = "none: SecantusDB has no wheel for this platform and Python; install mongod"


log = logging.getLogger("serve")


class Serve:
    """The steps of a start, in order; *stop* takes them back."""

    def __init__(self, dev: bool) -> None:
        self.dev = dev
        self.port = 0
        self.env = {**os.environ, **({"WEB_CONCURRENCY": "1"} if dev else {})}
        self.children: list[Child | Postgres | Mongo] = []
        self.notes: list[str] = []
        self.is_first = False
        self.key: str | None = None
        self._stack = ExitStack()
        self.stop = self._stack.close

    def start(self) -> None:
        """Do the steps; each raises ConfigError when it cannot be done."""
        self.take_data_folder()
        self.port = checks.port()
        self.env["PORT"] = str(self.port)
        if not self.env.get(OPS_BIND.name, "").strip():
            port, self._claim = checks.metrics_port()
            self.env[OPS_BIND.name] = f"127.0.0.1:{port}"
        self.have_postgres()
        self.have_mongo()
        self.prepare_databases()
        self.make_key()
        self.start_gunicorn()
        self.wait_until_ready()

    def take_data_folder(self) -> None:
        """Make the data folder and hold it, so that no second run uses it."""
        self.folder = data_folder()
        checks.folder(self.folder)
        lock = FolderLock(self.folder)
        lock.take()
        self._stack.callback(lock.release)

    def have_postgres(self) -> None:
        """Start Postgres, or ask the one in ``DATABASE_URL``."""
        if not self.env.get("DATABASE_URL"):
            for name in [name for name in os.environ if name.startswith("PG")]:
                # libpq's defaults are about another server.
                del os.environ[name]
                self.env.pop(name, None)
            server = Postgres(self.folder / "postgres")
            self._adopt(server, POSTGRES_S, FIRST_POSTGRES_S)
            self.env["DATABASE_URL"] = server.url
            self.notes.append(f"Postgres  {checks.postgres(server.url)}, embedded")
            self.notes.append(f"          {report.psql(server.url)}")
            self.notes.append(f"          export DATABASE_URL='{server.url}'")
        else:
            version = checks.postgres(self.env["DATABASE_URL"])
            self.notes.append(f"Postgres  {version}, yours (DATABASE_URL)")
            self.notes.append('          psql "$DATABASE_URL"')

    def have_mongo(self) -> None:
        """Start MongoDB, or ask the one in ``MONGODB_URI``."""
        uri = self.env.get("MONGODB_URI")
        if uri == OFF:
            self.notes.append("MongoDB   none (MONGODB_URI=off)")
        elif uri:
            self.notes.append(f"MongoDB   {checks.mongodb(uri)}, yours (MONGODB_URI)")
        elif not is_available():
            self.env["MONGODB_URI"] = OFF
            self.notes.append(f"MongoDB   {NO_MONGODB}")
        else:
            server = Mongo(self.folder / "mongo")
            self._adopt(server, MONGODB_S, FIRST_MONGODB_S)
            self.env["MONGODB_URI"] = server.url
            self.notes.append(f"MongoDB   {server.version}, embedded")
            self.notes.append(f"          export MONGODB_URI='{server.url}'")

    def prepare_databases(self) -> None:
        """Apply the schema and add the sample data."""
        _announce(
            "adding the schema, the sample data and an API key",
            FIRST_DATA_S if self.is_first else DATA_S,
        )
        self.notes += self._flask(*STEPS).splitlines()

    def make_key(self) -> None:
        """Make a key for this run, in place of the last run's; it is printed and not stored."""
        if self.env.get("AUTH", "").strip().lower() == "off":
            self.notes.append("API key   not required (AUTH=off)")
            return
        self.key = self._flask(*NEW_KEY)
        self.notes.append(f"API key   {KEY}, made anew at each start")

    def start_gunicorn(self) -> None:
        """Start the service itself."""
        _announce("starting gunicorn", GUNICORN_S)
        command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py"]
        command += ["--bind", f"127.0.0.1:{self.port}"]
        command += ["--workers", "1", "--reload"] if self.dev else []
        gunicorn = Child("gunicorn")
        self._stack.callback(gunicorn.stop, GRACEFUL_TIMEOUT_S)
        gunicorn.start([*command, "app.wsgi:app"], env=self.env, cwd=CHECKOUT)
        self.children.append(gunicorn)

    def wait_until_ready(self) -> None:
        """Wait for ``/readyz``: a service that answers nobody is not started."""
        if not wait_until(lambda: self._ready() or self.dead(), READY_TIMEOUT_S):
            raise ConfigError(
                f"gunicorn: /readyz is not 200 after {READY_TIMEOUT_S} s; its log above says why"
            )
        if self.dead():
            raise ConfigError(str(self.dead()))
        time.sleep(LOGS_S)

    def dead(self) -> str | None:
        """Return which child has ended by itself and where its log is; None while all run."""
        for child in self.children:
            if not child.alive():
                place = "above" if isinstance(child, Child) else f"in {child.log}"
                return f"{child.name}: ended by itself; its log is {place}"
        return None

    def _adopt(self, server: Postgres | Mongo, seconds: int, first_seconds: int) -> None:
        is_first = not server.folder.exists()
        self.is_first |= is_first
        _announce(f"starting {server.name}", first_seconds if is_first else seconds)
        # Before it starts: a signal during the start must stop it, too.
        self._stack.callback(server.stop)
        server.start()
        self.children.append(server)

    def _flask(self, *command: str) -> str:
        """Run a command of ``flask`` and return what it printed."""
        done = run(
            [sys.executable, "-m", "flask", "--app", "app.commands", *command],
            env={**self.env, "FLASK_SKIP_DOTENV": "1"},
            cwd=CHECKOUT,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"flask {command[0]}: it said nothing"]
            raise self._failed(said[-1].removeprefix("Error: "))
        return done.stdout.strip()

    def _failed(self, why: str) -> ConfigError:
        """A full disk under our own servers is not the fault of their addresses."""
        ours = any(isinstance(child, Postgres | Mongo) for child in self.children)
        if ours and re.search("no space left|disk is full", why, re.IGNORECASE):
            advice = "free some, or set GREENLINE_DATA to another folder"
            return ConfigError(
                f"GREENLINE_DATA: no space left on device under {self.folder}; {advice}"
            )
        return ConfigError(why)

    def _ready(self) -> bool:
        try:
            # Whatever proxy the person's environment names is not asked about 127.0.0.1.
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"http://127.0.0.1:{self.port}/readyz", timeout=10):
                return True
        except OSError:
            return False


def main() -> int:
    """Serve until a signal; return the exit status."""
    parser = argparse.ArgumentParser(prog="serve", description="Run the service and its servers.")
    parser.add_argument("--dev", action="store_true", help="one worker, which reloads on a change")
    serve = Serve(parser.parse_args().dev)
    logging.basicConfig(level=logging.INFO, format=FORMAT, datefmt=DATE_FORMAT)
    signals.raise_stopped()
    try:
        serve.start()
        banner = report.banner(
            serve.port,
            serve.notes,
            serve.key,
            metrics=serve.env[OPS_BIND.name],
            has_mongo=serve.env["MONGODB_URI"] != OFF,
            in_colour=has_colours(sys.stdout),
        )
        print(banner, flush=True)
        while not serve.dead():
            time.sleep(WATCH_S)
        return _fail(f"{serve.dead()}; the others are being stopped")
    except ConfigError as error:
        return _fail(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        return _fail(f"GREENLINE_DATA: {error}; set GREENLINE_DATA to another folder")
    except signals.Stopped:
        return 0
    finally:
        signals.only_answer()
        serve.stop()


def _announce(step: str, seconds: int) -> None:
    log.info("%s, about %d s", step, seconds)


def _fail(line: str) -> int:
    print(f"serve: {line}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
