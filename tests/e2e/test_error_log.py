"""A worker's error log: no request waits for its reader, and nothing is lost."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.hosting import NO_CONFIG, WORKER, hosting
from tests.e2e.loud import LINE, SAY
from tests.helpers.forms import some
from tests.helpers.support import BIN, CHECKOUT, Service, environ, free_port, service, wait_until

TARGET = "tests.e2e.loud:app"
PIPE_BYTES = 65_536
TIMES = 3 * PIPE_BYTES // len(LINE)


class Pipe(Service):
    """A gunicorn whose output is a pipe that is not read until the end."""

    def read(self) -> str:
        """Stop it, and return all that it said."""
        said = ""

        def read() -> None:
            nonlocal said
            assert self.process.stdout is not None
            said = self.process.stdout.read().decode()

        reader = threading.Thread(target=read)
        reader.start()
        assert self.stop() == 0
        reader.join()
        return said


@contextmanager
def unread() -> Iterator[Pipe]:
    """Run gunicorn with the worker and an output that is not read."""
    port = free_port()
    command = [str(BIN / "gunicorn"), "-c", NO_CONFIG, "-b", f"127.0.0.1:{port}", *WORKER, TARGET]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=environ({}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    running = Pipe(process, port, Path(os.devnull))
    try:
        wait_until(running.is_alive, "the worker to serve")
        yield running
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", [way for way in SAY if way != "crash"])
def test_a_full_pipe_blocks_no_request_and_loses_nothing(way: str) -> None:
    """Three times what a pipe takes is logged while all are answered; it all arrives in the end."""
    with unread() as running:
        for _ in range(TIMES):
            assert running.get(f"/?{way}", timeout_s=5).status == 200
        said = running.read()
    assert said.count(LINE) == TIMES
    assert "Worker exiting" in said
    assert '"lost"' not in said


@pytest.mark.parametrize("signal_name", some(["TERM", "QUIT", "ABRT"]))
def test_the_last_lines_of_a_worker_are_written(signal_name: str) -> None:
    """Whichever signal ends it, what it has logged is there, gunicorn's own last line included."""
    with hosting(TARGET) as running:
        (worker,) = running.workers()
        assert running.get("/?root").status == 200
        os.kill(worker, signal.Signals[f"SIG{signal_name}"])
        wait_until(lambda: running.workers() not in ([], [worker]), "another worker")
        assert running.log.count(LINE) == 1
        assert f"Worker exiting (pid: {worker})" in running.log


def test_the_stack_of_a_worker_that_fails_is_written() -> None:
    """An error of the worker itself ends it, and is logged with its stack."""
    with hosting(TARGET) as running:
        (worker,) = running.workers()
        with pytest.raises(OSError):  # noqa: PT011
            running.get("/?crash")
        wait_until(lambda: running.workers() not in ([], [worker]), "another worker")
        assert "Exception in worker process" in running.log
        assert "SystemError: on purpose" in running.log


@pytest.mark.parametrize(
    ("way", "arguments"),
    some([("gunicorn", ()), ("wsgi.errors", ()), ("root", ("--capture-output",))]),
    ids=some(["gunicorn's", "wsgi.errors", "what is captured"]),
)
def test_usr1_reopens_the_error_log(tmp_path: Path, way: str, arguments: tuple[str, ...]) -> None:
    """After a rotation each line is in one of the two files, and new ones are in the new one."""
    log, rotated = tmp_path / "error.log", tmp_path / "error.log.1"
    with hosting(TARGET, "--error-logfile", str(log), *arguments) as running:
        for _ in range(20):
            assert running.get(f"/?{way}").status == 200
        wait_until(lambda: log.read_text().count(LINE) == 20, "the lines")
        log.rename(rotated)
        running.process.send_signal(signal.SIGUSR1)
        wait_until(log.exists, "a new file")
        asked = 0

        def is_reopened() -> bool:
            nonlocal asked
            asked += 1
            assert running.get(f"/?{way}").status == 200
            return LINE in log.read_text()

        wait_until(is_reopened, "a line in the new file")
        before = rotated.read_text().count(LINE)
        for _ in range(20):
            assert running.get(f"/?{way}").status == 200
    assert rotated.read_text().count(LINE) == before
    assert before + log.read_text().count(LINE) == 20 + asked + 20


def test_an_application_that_configures_logging_keeps_the_error_log(tmp_path: Path) -> None:
    """``dictConfig``, which Django calls, closes gunicorn's file: its next line opens it again."""
    (tmp_path / "configured.py").write_text(
        "import logging.config\n"
        "from tests.e2e.loud import app\n"
        "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': False})\n"
    )
    log_file = tmp_path / "errors"
    path = f"{tmp_path}{os.pathsep}{CHECKOUT}"
    with hosting("configured:app", "--error-logfile", str(log_file), PYTHONPATH=path) as running:
        assert running.stop() == 0
        assert "Logging error" not in running.log
    assert "Worker exiting" in log_file.read_text()


def test_what_fails_before_the_worker_serves_is_logged(tmp_path: Path) -> None:
    """Also while the handlers of its log are being replaced: a worker without a word ends again."""
    (tmp_path / "stubborn.py").write_text(
        "import logging, sys\n"
        "from tests.e2e.loud import app\n"
        "class Stubborn(logging.StreamHandler):\n"
        "    def setStream(self, stream):\n"
        "        raise ValueError('this stream stays')\n"
        "logging.getLogger('stubborn').addHandler(Stubborn(sys.stderr))\n"
    )
    path = f"{tmp_path}{os.pathsep}{CHECKOUT}"
    with service(
        {"PYTHONPATH": path}, *WORKER, target="stubborn:app", config=NO_CONFIG, wait=False
    ) as running:
        wait_until(lambda: "exited with code" in running.log, "the worker's end")
        assert "ValueError: this stream stays" in running.log
