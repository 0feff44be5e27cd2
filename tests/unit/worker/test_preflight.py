"""greenline.worker.preflight: what the child that asks for the budget answers, or does not."""

import logging
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from greenline import cli
from greenline.worker import preflight

SERVER: Any = SimpleNamespace(
    log=logging.getLogger("test of preflight"),
    cfg=SimpleNamespace(env={}, workers=3, uid=os.geteuid(), gid=os.getegid(), initgroups=False),
)


def said(answer: str, error: str, status: int) -> Callable[..., None]:
    """Return a command that prints and ends."""

    def main(*_: object, **__: object) -> None:
        print(answer.format(workers=os.environ["WEB_CONCURRENCY"]))
        print(error, file=sys.stderr)
        sys.exit(status)

    return main


def crash(*_: object, **__: object) -> None:
    """Fail as no command should."""
    raise LookupError("no such table")


def end(*_: object, **__: object) -> None:
    """End without a word, as after a crash in C."""
    os._exit(1)


def hang(*_: object, **__: object) -> None:
    """Do not end."""
    time.sleep(600)


def shown(monkeypatch: pytest.MonkeyPatch, command: Callable[..., None]) -> None:
    """Let the arbiter show what the command says, and check that its child is gone."""
    children = []
    ask = preflight._ask
    monkeypatch.setattr(cli, "main", command)
    monkeypatch.setattr(preflight, "_ask", lambda cfg: children.append(ask(cfg)) or children[0])
    try:
        with preflight.budget_shown(SERVER):
            pass
    finally:
        with pytest.raises(ChildProcessError):
            os.waitpid(children[0].child, 0)


@pytest.mark.parametrize(
    ("command", "logged"),
    [
        (said("Postgres: for {workers}\nits sums", "", 0), ["INFO Postgres: for 3; the sums: "]),
        (
            said("MongoDB: no plan", "Error: deaf", 3),
            ["INFO MongoDB: no plan", "WARNING connection budget: deaf"],
        ),
        (crash, ["WARNING connection budget: LookupError: no such table"]),
        (end, []),
    ],
    ids=["it fits", "a server cannot be asked", "an error of the command", "no answer"],
)
def test_the_start_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: Callable[..., None],
    logged: list[str],
) -> None:
    """With what the command says in the log."""
    caplog.set_level("INFO")
    shown(monkeypatch, command)
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    assert len(lines) == len(logged)
    assert all(line.startswith(begin) for line, begin in zip(lines, logged, strict=True))


def test_a_plan_that_does_not_fit_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command's error."""
    with pytest.raises(SystemExit, match="greenline: Postgres: 9 of 5"):
        shown(monkeypatch, said("", "Error: Postgres: 9 of 5", 1))


def test_a_command_that_hangs_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After its time."""
    monkeypatch.setattr(preflight, "BUDGET_TIMEOUT_S", 0.1)
    shown(monkeypatch, hang)
    assert caplog.messages == ["connection budget: no answer within 0 s"]
