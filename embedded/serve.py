"""
``make serve``: the whole service on this machine, with its servers, for as long as it runs.

1. Whatever is started is registered to be stopped before it starts; stopping goes backwards.
2. Ctrl-C and SIGTERM end it with status 0; a child that ends by itself ends it with status 1.
3. What a person can mend is one line, which names the variable and says what to do.
"""

import argparse
import errno
import os
import re
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

from config.env import OFF
from embedded import checks, report, signals
from embedded.lock import FolderLock
from embedded.mongo import Mongo, is_available
from embedded.postgres import Postgres
from embedded.process import Child, run, wait_until
from embedded.settings import CHECKOUT, data_folder
from greenline.errors import ConfigError

READY_TIMEOUT_S = 30
STEPS = ("db", "upgrade", "sample")
KEY = "development"
NEW_KEY = ("keys", "create", "--name", KEY, "--scopes", "read,write,admin", "--replace")
GRACEFUL_TIMEOUT_S = 30
WATCH_S = 0.2
NO_MONGODB = "none: SecantusDB has no wheel for this platform and Python; install mongod"


class Serve:
    """The steps of a start, in order; *stop* takes them back."""

    def __init__(self, dev: bool) -> None:
        self.dev = dev
        self.port = 0
        self.env = {**os.environ, **({"WEB_CONCURRENCY": "1"} if dev else {})}
        self.children: list[Child | Postgres | Mongo] = []
        self.told: list[str] = []
        self.key: str | None = None
        self._stack = ExitStack()
        self.stop = self._stack.close

    def start(self) -> None:
        """Do the steps; each raises ConfigError when it cannot be done."""
        self.take_data_folder()
        self.port = checks.port()
        self.env["PORT"] = str(self.port)
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
            self._adopt(server)
            self.env["DATABASE_URL"] = server.url
            self.told.append(f"Postgres  {checks.postgres(server.url)}, embedded")
            self.told.append(f"          {report.psql(server.url)}")
            self.told.append(f"          export DATABASE_URL='{server.url}'")
        else:
            version = checks.postgres(self.env["DATABASE_URL"])
            self.told.append(f"Postgres  {version}, yours (DATABASE_URL)")
            self.told.append('          psql "$DATABASE_URL"')

    def have_mongo(self) -> None:
        """Start MongoDB, or ask the one in ``MONGODB_URI``."""
        uri = self.env.get("MONGODB_URI")
        if uri == OFF:
            self.told.append("MongoDB   none (MONGODB_URI=off)")
        elif uri:
            self.told.append(f"MongoDB   {checks.mongodb(uri)}, yours (MONGODB_URI)")
        elif not is_available():
            self.env["MONGODB_URI"] = OFF
            self.told.append(f"MongoDB   {NO_MONGODB}")
        else:
            server = Mongo(self.folder / "mongo")
            self._adopt(server)
            self.env["MONGODB_URI"] = server.url
            self.told.append(f"MongoDB   {server.version}, embedded")
            self.told.append(f"          export MONGODB_URI='{server.url}'")

    def prepare_databases(self) -> None:
        """Apply the schema and add the sample data."""
        self.told += self._flask(*STEPS).splitlines()

    def make_key(self) -> None:
        """Make a key for this run, in the place of the last one's; it is printed and not kept."""
        if self.env.get("AUTH", "").strip().lower() == "off":
            self.told.append("API key   none is asked for (AUTH=off)")
            return
        self.key = self._flask(*NEW_KEY)
        self.told.append(f"API key   {KEY}, made anew at each start")

    def start_gunicorn(self) -> None:
        """Start the service itself."""
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

    def dead(self) -> str | None:
        """Say which child has ended by itself and where it told why; None while all run."""
        for child in self.children:
            if not child.alive():
                told = "above" if isinstance(child, Child) else f"in {child.log}"
                return f"{child.name}: ended by itself; what it said is {told}"
        return None

    def _adopt(self, server: Postgres | Mongo) -> None:
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
    """Serve until we are told to stop; return the exit status."""
    parser = argparse.ArgumentParser(prog="serve", description="Run the service and its servers.")
    parser.add_argument("--dev", action="store_true", help="one worker, which reloads on a change")
    serve = Serve(parser.parse_args().dev)
    signals.raise_stopped()
    try:
        serve.start()
        print(
            report.started(serve.port, serve.told, serve.key, serve.env["MONGODB_URI"] != OFF),
            flush=True,
        )
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


def _fail(line: str) -> int:
    print(f"serve: {line}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
