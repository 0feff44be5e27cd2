"""greenline.hub.blocking: what blocks is named, what yields is not."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from greenline.hub import blocking
from tests.helpers.support import run

LATE = "import gevent.monkey\ngevent.monkey.patch_all()\n"
TELL = (
    "from greenline.hub import blocking\nfor name, why in blocking.found(): print(name, '|', why)\n"
)


def said(script: str) -> list[str]:
    """Return the names that a process finds after *script*."""
    done = run(["python", "-W", "ignore", "-c", script + TELL], {})
    return [line.partition(" | ")[0] for line in done.stdout.splitlines()]


def test_an_application_of_ours_has_nothing_to_warn_of() -> None:
    """The service itself, and all it imports, yields."""
    assert said("from greenline.patch import patch_all\npatch_all()\nimport app.factory\n") == []


def test_names_a_psycopg2_without_a_hook() -> None:
    """Imported and not hooked it is named; hooked, or not imported, it is not."""
    assert said(f"{LATE}import psycopg2\n") == ["psycopg2"]
    hook = "from greenline.patch import hook_psycopg2\nhook_psycopg2()\n"
    assert said(f"{LATE}import psycopg2\n{hook}") == []
    assert said(LATE) == []


@pytest.mark.parametrize(
    "begin",
    [
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1, thread_name_prefix='mail')\npool.submit(int)\n",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), name='mail', daemon=True).start()\n",
    ],
    ids=["pool", "thread"],
)
def test_names_a_thread_that_is_older_than_patching(begin: str) -> None:
    """A thread pool made before is named by its thread; one made after is made of greenlets."""
    before = said(f"{begin}{LATE}")
    assert len(before) == 1
    assert before[0].startswith("thread 'mail")
    assert said(f"{LATE}{begin}") == []


def test_does_not_take_our_own_threads_for_the_applications() -> None:
    """The watchdog's and the log's native threads are meant to be."""
    ours = (
        "from greenline.telemetry.access_log import lost\n"
        "from greenline.telemetry.log_writer import LineWriter, open_log\n"
        "from greenline.hub.watchdog import Watchdog\n"
        "Watchdog().start()\n"
        "LineWriter(open_log('-'), lost)\n"
    )
    assert said(f"{LATE}{ours}") == []


def test_the_workers_own_modules_may_be_imported_before_patching() -> None:
    """gunicorn's arbiter imports the worker's class, and all it needs, unpatched."""
    early = "import greenline.worker.worker\nimport greenline.hub.watchdog\n"
    prove = "from greenline.hub.patching import require_patched\nrequire_patched()\n"
    assert said(f"{early}{LATE}{prove}") == []


def test_names_uvloop_when_it_makes_asyncios_loops() -> None:
    """Its loops wait below Python, where nothing is patched."""
    assert said(f"{LATE}import uvloop\nuvloop.install()\n") == ["uvloop"]
    assert said(f"{LATE}import uvloop\nimport asyncio\n") == []


def test_names_a_loop_that_runs_already() -> None:
    """Importing the application inside of a running loop warns of what will fail."""
    tell = "import asyncio\nasync def main():\n"
    tell += "".join(f"    {line}\n" for line in TELL.splitlines())
    assert said(f"{LATE}{tell}asyncio.run(main())\nimport sys\nsys.exit()\n") == ["asyncio"]


# What the drivers' modules look like, blocking and not; the real ones are not installed here.
SWITCHES: dict[str, tuple[str, SimpleNamespace, SimpleNamespace]] = {
    "psycopg": (
        "psycopg.waiting",
        SimpleNamespace(wait_c=len, wait=len),
        SimpleNamespace(wait_c=len, wait=max),
    ),
    "oracledb": (
        "oracledb",
        SimpleNamespace(is_thin_mode=lambda: False),
        SimpleNamespace(is_thin_mode=lambda: True),
    ),
}


def put(monkeypatch: pytest.MonkeyPatch, name: str, content: SimpleNamespace) -> None:
    module = ModuleType(name)
    vars(module).update(vars(content))
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", SWITCHES)
def test_names_a_driver_that_was_not_made_to_yield(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The driver's own switch decides."""
    module, stuck, yielding = SWITCHES[name]
    put(monkeypatch, module, stuck)
    assert [found for found, _ in blocking.found()] == [name]
    put(monkeypatch, module, yielding)
    assert blocking.found() == []


@pytest.mark.parametrize("module", blocking.BLOCKING_DRIVERS)
def test_names_each_driver_that_cannot_yield(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """With what to use instead."""
    put(monkeypatch, module, SimpleNamespace())
    name, instead = blocking.BLOCKING_DRIVERS[module]
    ((found, why),) = blocking.found()
    assert found == name
    assert why.endswith(f"use {instead}")
