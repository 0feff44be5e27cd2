"""Read a gunicorn.conf.py as gunicorn does: run it, then apply ``GUNICORN_CMD_ARGS``."""

import ast
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from gunicorn import util
from gunicorn.app.base import Application
from gunicorn.config import Config
from gunicorn.workers import SUPPORTED_WORKERS

from greenline.deploy.facts import Gunicorn, Sourced
from greenline.errors import ConfigError

GREEN = "greenline.worker.GreenWorker"
CMD_ARGS = "GUNICORN_CMD_ARGS"
# For a shell without the service's settings.
NOT_SET = re.compile(r"\b([A-Z][A-Z0-9_]+): not set(?:, for example (\S+))?$")
HINT = (
    "; run check-deploy with the environment of the service, for example after "
    "`set -a; . /etc/greenline/env; set +a`{example}; `greenline check-deploy --help` says more"
)


def read(file: str) -> tuple[Gunicorn, Mapping[str, Any]]:
    """
    Return the settings in *file*, and the names that it defines.

    :raises ConfigError: gunicorn would not start with it; the text is one line.
    """
    if not os.path.exists(file):
        raise ConfigError(f"{file}: no such file")
    output = io.StringIO()
    try:
        # The output of the configuration must not mix with the findings, which may be JSON.
        with redirect_stdout(output), redirect_stderr(output):
            loaded = _Loaded(file)
            # `raw_env` stays set, as for the workers: the service's settings are read afterwards.
            os.environ.update(loaded.cfg.env)
            return _facts(file, loaded), loaded.names
    except SystemExit as error:
        # gunicorn prints the reason to stderr and exits.
        found = error.code if isinstance(error.code, str) else _last_line(output.getvalue())
        raise ConfigError(f"{file}: {_with_hint(found) or 'the file calls exit'}") from None
    except Exception as error:
        raise ConfigError(f"{file}: {error}") from error


def _with_hint(found: str) -> str:
    """Return *found* with what to do about a variable that is not set, if it names one."""
    if not (missing := NOT_SET.search(found)):
        return found
    name, example = missing.groups()
    # check-deploy connects to no server, so any address will do.
    hint = HINT.format(example=f", or set {name}={example}" if example else "")
    return f"{found[: missing.start()]}{name}: not set{hint}"


class _Loaded(Application):  # type: ignore[misc]
    """Load a configuration by gunicorn's own code, without a command line."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.from_env: frozenset[str] = frozenset()
        self.names: Mapping[str, Any] = {}
        super().__init__(prog=CMD_ARGS)

    def init(self, parser: Any, opts: Any, args: Any) -> None:
        """Return no settings of an application."""

    def load(self) -> None:
        """Load no application."""

    def load_config(self) -> None:
        cfg: Config = self.cfg
        # gunicorn's own method also parses sys.argv, which is check-deploy's.
        given = vars(cfg.parser().parse_args(cfg.get_cmd_args_from_env()))
        self.chdir()
        self.names = self.load_config_from_file(self._file)
        found = {name: value for name, value in given.items() if value is not None}
        # Neither is a setting: positional arguments, and the path of the configuration.
        self.from_env = frozenset(found) - {"args", "config"}
        for name in self.from_env:
            cfg.set(name, found[name])


def _facts(file: str, loaded: _Loaded) -> Gunicorn:
    cfg = loaded.cfg
    lines = _lines(file)

    def found(name: str, value: Any) -> Sourced[Any]:
        if name in loaded.from_env:
            return Sourced(value, f"{CMD_ARGS} ({name})")
        if name in lines:
            return Sourced(value, f"{file}:{lines[name]}")
        # Set by an import or in a block, which has no line here; or not set at all.
        return Sourced(value, file, name in loaded.names)

    worker_class = cfg.settings["worker_class"].get()
    name = worker_class if isinstance(worker_class, str) else _name(worker_class)
    return Gunicorn(
        file=file,
        bind=found("bind", tuple(cfg.address)),
        worker_class=found("worker_class", name),
        is_green=_is_green(worker_class),
        workers=found("workers", cfg.workers),
        worker_connections=found("worker_connections", cfg.worker_connections),
        keepalive_s=found("keepalive", float(cfg.keepalive)),
        graceful_timeout_s=found("graceful_timeout", float(cfg.graceful_timeout)),
        timeout_s=found("timeout", float(cfg.timeout)),
        preload_app=found("preload_app", cfg.preload_app),
        forwarded_allow_ips=found("forwarded_allow_ips", tuple(cfg.forwarded_allow_ips)),
        worker_tmp_dir=found("worker_tmp_dir", cfg.worker_tmp_dir),
        umask=found("umask", cfg.umask),
        open_sockets=tuple(_open_sockets(cfg)),
        max_requests=found("max_requests", cfg.max_requests),
        max_requests_jitter=found("max_requests_jitter", cfg.max_requests_jitter),
    )


def _open_sockets(cfg: Config) -> Iterator[str]:
    # To connect, a user needs the right to write the socket, and to enter the folders above it.
    for path in (one for one in cfg.address if isinstance(one, str)):
        # A folder that is not there yet, or that this user may not see, does not count.
        folders = [one for one in Path(path).absolute().parents if os.path.exists(one)]
        is_closed = any(not one.stat().st_mode & stat.S_IXOTH for one in folders)
        if not is_closed and not cfg.umask & stat.S_IWOTH:
            yield path


def _is_green(worker_class: Any) -> bool:
    # The two usual cases need no import of a worker, which may patch this process.
    if worker_class == GREEN:
        return True
    if worker_class in SUPPORTED_WORKERS:
        return False
    try:
        # A custom class. Not `cfg.worker_class`, which also calls the class's setup().
        found = util.load_class(worker_class)
    except (RuntimeError, AttributeError) as error:
        raise ConfigError(f"worker_class: {worker_class} cannot be imported") from error
    return any(_name(base) == GREEN for base in found.__mro__)


def _name(found: type) -> str:
    return f"{found.__module__}.{found.__qualname__}"


def _lines(file: str) -> dict[str, int]:
    """Return the line in which each name is last assigned; empty if *file* is not Python source."""
    try:
        # Bytes, as the source may declare its encoding.
        tree = ast.parse(Path(file).read_bytes())
    except (SyntaxError, ValueError):
        return {}
    return {
        target.id: node.lineno
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
