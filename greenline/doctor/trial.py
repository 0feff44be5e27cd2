"""
Run an application's own tests, or serve it, and collect what happens.

An access log is replayed from :data:`CLIENTS` clients, each over one connection, on gunicorn's sync
and gthread workers and on ours, in turn: with one worker process, in a closed loop. Only what a log
has of GET is asked, because it may be asked again, and an answer counts if its status is the log's.
"""

import http.client
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from greenline.doctor.imports import ROOT
from greenline.doctor.observations import FOLDER, Observations
from greenline.doctor.serving import ANSWER_LIMIT_S, TrialError, address, free_port, serving

OURS, GTHREAD, SYNC = "greenline", "gthread, 8 threads", "sync"
WORKERS = {
    SYNC: ["-k", "sync", "--threads", "1"],  # with more, gunicorn takes gthread in its place
    GTHREAD: ["-k", "gthread", "--threads", "8"],
    OURS: ["-k", "greenline.doctor.observer.ObservedWorker"],
}
CLIENTS, SECONDS = 20, 10.0
WARM_UP_S = 1.0
MIN_GAIN = 0.9  # of the answers of gthread: with fewer, it is clearly slower
# What the server has failed to answer, or nginx has not waited for (499), says nothing.
GET = re.compile(r'"GET (/\S*) HTTP/[\d.]+" (?!499)([1-4]\d\d)\b')
# It is asked without the condition or the range that the client had.
UNCONDITIONAL = {304: 200, 206: 200}
# Python imports it at its start; one of the environment, which it shadows, is executed as well.
SITECUSTOMIZE = """\
import sys
sys.path.append({root!r})
from greenline.doctor import observer
observer.start_in_script()
sys.path.remove({folder!r})
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
if spec := PathFinder.find_spec("sitecustomize"):
    spec.loader.exec_module(module_from_spec(spec))
"""


class Request(NamedTuple):
    """
    A GET of an access log.

    :param path: its path, str.
    :param status: the status of its answer, int.
    """

    path: str
    status: int


@dataclass
class Load:
    """
    The answers to a load.

    :param seconds: how long it took, float.
    :param statuses: the number of answers by the log's status and their own; 0: no answer.
    """

    seconds: float
    statuses: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def different(self) -> Counter[tuple[int, int]]:
        """The answers whose status is not that of the log."""
        return Counter({each: count for each, count in self.statuses.items() if each[0] != each[1]})

    @property
    def answers_s(self) -> float:
        """The answers with the status of the log, for each second."""
        return (self.statuses.total() - self.different.total()) / self.seconds

    @property
    def failed(self) -> int:
        """How many requests have had no answer, or one of 500 and above."""
        return sum(count for (_, own), count in self.statuses.items() if not 0 < own < 500)


@dataclass
class Trial:
    """
    What happened.

    :param observed: what was seen in each process on our worker, or in each process of the tests.
    :param loads: the load of each worker, by its name.
    :param tests: the exit status and the seconds of the tests, without patching and with it.
    """

    observed: list[Observations] = field(default_factory=list)
    loads: dict[str, Load] = field(default_factory=dict)
    tests: list[tuple[int, float]] = field(default_factory=list)


def run(command: str, folder: Path) -> Trial:
    """
    Run *command* twice in *folder*: as it is, and with each Python that it starts patched.

    :param command: such as ``pytest -x``, str.
    :raises TrialError: there is no such program.
    """
    trial, words = Trial(), shlex.split(command)
    with tempfile.TemporaryDirectory(prefix="greenline-doctor-") as name:
        text = SITECUSTOMIZE.format(root=ROOT, folder=name)
        (Path(name) / "sitecustomize.py").write_text(text)
        path = os.pathsep.join(filter(None, [name, os.environ.get("PYTHONPATH")]))
        for more in ({}, {FOLDER: name, "PYTHONPATH": path}):
            begun_s = monotonic()
            try:
                # Its output goes to stderr: stdout is the doctor's.
                done = subprocess.run(
                    words, cwd=folder, env={**os.environ, **more}, stdout=sys.stderr, check=False
                )
            except OSError as error:
                raise TrialError(f"{words[0]}: {error.strerror}") from error
            trial.tests.append((done.returncode, monotonic() - begun_s))
        trial.observed = _read(Path(name))
    return trial


def serve(target: str, folder: Path, bind: str) -> Trial:
    """Serve *target* on our worker until Ctrl-C, and return what was seen."""
    with tempfile.TemporaryDirectory(prefix="greenline-doctor-") as name:
        with _served(OURS, target, folder, bind, Path(name)) as child, suppress(KeyboardInterrupt):
            print(f"serving on http://{bind}; Ctrl-C ends it", file=sys.stderr, flush=True)
            child.wait()
        return Trial(_read(Path(name)))


def replay(
    log: Path, target: str, folder: Path, seconds: float, clients: int, host: str | None = None
) -> Trial:
    """
    Serve *target* on each worker in turn, and replay *log*.

    :param log: an access log in the common or the combined format.
    :param seconds: how long each worker is asked, float.
    :param clients: how many ask at once, int.
    :param host: the name of the server that is asked for, str. Default: its address.
    :raises TrialError: the log has no GET, or gunicorn does not serve the application.
    """
    requests = read_log(log.read_text(errors="replace"))
    if not requests:
        raise TrialError(f"{log}: no line has a GET that was answered, in the common log format")
    trial = Trial()
    with tempfile.TemporaryDirectory(prefix="greenline-doctor-") as name:

        def measure(worker: str) -> Load:
            bind = f"127.0.0.1:{free_port()}"
            with _served(worker, target, folder, bind, Path(name)):
                ask(bind, requests, WARM_UP_S, clients, host)
                return ask(bind, requests, seconds, clients, host)

        trial.loads = {worker: measure(worker) for worker in WORKERS}
        # On a busy machine one of them may look slow: both have a second turn, the better counts.
        if trial.loads[OURS].answers_s < MIN_GAIN * trial.loads[GTHREAD].answers_s:
            for worker in (GTHREAD, OURS):
                loads = trial.loads[worker], measure(worker)
                trial.loads[worker] = max(loads, key=attrgetter("answers_s"))
        trial.observed = _read(Path(name))
    return trial


def read_log(text: str) -> list[Request]:
    """Return what is replayed of an access log."""
    found = ((path, int(status)) for path, status in GET.findall(text))
    return [Request(path, UNCONDITIONAL.get(status, status)) for path, status in found]


def ask(
    bind: str, requests: Sequence[Request], seconds: float, clients: int, host: str | None = None
) -> Load:
    """Ask the server on *bind* for *requests* in turn, and return its answers."""
    load, begun_s = Load(seconds), monotonic()
    turns = cycle(requests)
    headers = {} if host is None else {"Host": host}

    def client() -> None:
        conn = http.client.HTTPConnection(*address(bind), timeout=ANSWER_LIMIT_S)
        while monotonic() < begun_s + seconds:
            request = next(turns)
            try:
                conn.request("GET", request.path, headers=headers)
                response = conn.getresponse()
                response.read()
                load.statuses[request.status, response.status] += 1
            except (OSError, http.client.HTTPException):
                load.statuses[request.status, 0] += 1
                conn.close()
        conn.close()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    load.seconds = monotonic() - begun_s
    return load


def _served(
    worker: str, target: str, folder: Path, bind: str, reports: Path
) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    """Serve *target* on one process of a worker, which writes its observations to *reports*."""
    arguments = [*WORKERS[worker], "-w", "1", "--graceful-timeout", "5"]
    return serving(target, folder, bind, arguments, {FOLDER: str(reports)})


def _read(folder: Path) -> list[Observations]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise TrialError("nothing was observed: no Python process has come to its orderly end")
    return [msgspec.json.decode(path.read_bytes(), type=Observations) for path in paths]
