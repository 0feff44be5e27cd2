"""The page of the ops port, in a real browser."""

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import psycopg2
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from embedded.postgres import temporary
from greenline.postgres.connect import server_of
from greenline.slots import SlotTable
from greenline.slots import path as slot_table_path
from tests.e2e.hosting import hosting
from tests.helpers.browser import browser, complaints
from tests.helpers.processes import ops_process
from tests.helpers.support import Answer, Service, free_port, wait_until

APP = "tests.e2e.watched_databases:app"
PHONE = 390
POOL = "psycopg2 pool"
COLOURS = """return [...document.querySelectorAll(arguments[0])].map(
    one => getComputedStyle(one).backgroundColor)"""
EVIL = "<img src=x onerror=document.title='mine'>"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def running(port: int) -> Iterator[Service]:
    """Two workers and their page."""
    # Else what blocks would be interrupted between two pauses.
    settings = {"GREENLINE_OPS_BIND": f"127.0.0.1:{port}", "GREENLINE_SWITCH_INTERVAL_MS": "0"}
    with hosting(APP, "-w", "2", **settings) as service:
        yield service


@pytest.fixture(scope="module")
def page(port: int, running: Service) -> Iterator[webdriver.Chrome]:
    """The page, as it is shown after its first look."""
    with browser(PHONE, 844, dark=True) as chrome:
        show(chrome, port)
        yield chrome
        assert complaints(chrome) == []


def show(page: webdriver.Chrome, port: int) -> None:
    """Open the page, whose process begins to listen after the workers, and wait for its content."""
    wait_until(lambda: is_listening(port), "the process of the page")
    page.get(f"http://127.0.0.1:{port}/")
    wait_until(lambda: "workers" in text(page, "what"), "the first look")


def is_listening(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def text(page: webdriver.Chrome, name: str) -> str:
    return page.find_element(By.ID, name).text


def card(page: webdriver.Chrome, name: str) -> float:
    """Return the number of a card."""
    for each in text(page, "cards").split(name)[1:]:
        return float(each.split()[0].replace(",", ""))
    raise AssertionError(name)


def test_it_shows_what_happens(page: webdriver.Chrome, running: Service) -> None:
    """Requests a second, the workers, the routes; and that all is well."""
    with ThreadPoolExecutor(8) as clients:
        asked = clients.map(running.get, ["/count"] * 400)
        wait_until(lambda: card(page, "requests a second") > 0, "the requests")
        assert {each.status for each in asked} == {200}
    wait_until(lambda: "/count" in text(page, "routes"), "the route")
    workers = text(page, "workers")
    assert workers.count("/ 1000") == 2
    # Or that it waits for a processor, on a busy machine.
    wait_until(lambda: text(page, "verdict"), "the verdict")


def test_failed_and_slow_requests_are_listed_as_text(
    page: webdriver.Chrome, running: Service, tmp_path: Path
) -> None:
    """Whatever their paths say: nothing of a client's becomes HTML."""
    assert running.get(f"/{quote(EVIL)}").status == 500
    wait_until(lambda: EVIL in text(page, "requests"), "the request that failed")
    assert page.title == "Greenline"


def test_a_blocked_hub_is_shown_with_its_stack(
    page: webdriver.Chrome, running: Service, tmp_path: Path
) -> None:
    """While it is blocked, and afterwards in the list."""
    file = tmp_path / "go"
    with ThreadPoolExecutor() as clients:
        blocked = clients.submit(running.get, f"/block?file={file}")
        wait_until(lambda: "now: worker" in text(page, "blocks"), "the block")
        assert "has been blocked for" in text(page, "verdict")
        # At once: each second the page puts others in the place of these elements.
        page.execute_script("document.querySelector('#blocks summary').click()")
        wait_until(lambda: "in until_allowed" in text(page, "blocks"), "the stack")
        file.touch()
        assert blocked.result().status == 200
    wait_until(lambda: "in watched_databases.until_allowed" in text(page, "blocks"), "the entry")


def test_pools_slots_and_their_plan_are_shown() -> None:
    """A square for each slot: those of the workers, of another process, orphans and free ones."""
    port = free_port()
    with ExitStack() as stack:
        server = stack.enter_context(temporary(30))
        running = stack.enter_context(
            hosting(
                APP, "-w", "2", URL=server.url, DATABASE_URL=server.url, GREENLINE_POOL="1",
                POSTGRES_POOL_SIZE="8", GREENLINE_OPS_BIND=f"127.0.0.1:{port}",
            )
        )  # fmt: skip
        clients = stack.enter_context(ThreadPoolExecutor(60))
        path = slot_table_path(server_of(server.url))
        other = stack.enter_context(closing(SlotTable(path, floor=0)))

        def state() -> Any:
            with urlopen(f"http://127.0.0.1:{port}/state") as answer:
                return json.load(answer)

        def ask(path: str, number: int = 1) -> list[Future[Answer]]:
            return [clients.submit(running.get, path) for _ in range(number)]

        chrome = stack.enter_context(browser())
        show(chrome, port)
        (first,) = ask("/postgres/books?s=0")
        assert first.result().status == 200
        wait_until(lambda: f"{POOL}: " in text(chrome, "pools"), "the slots")
        # All that no worker has reserved: each is left with its control connection and one more.
        other.resize(state()["slots"][POOL]["capacity"], reserved=8)
        shared = 0
        while other.take() is not None:
            shared += 1
        # A pool keeps its last connections for nested checkouts until it has seen many without.
        for each in ask("/postgres/books?s=0", 300):
            assert each.result().status == 200
        # While this is held a request holds its connection; it is released first.
        lock = stack.enter_context(closing(psycopg2.connect(server.url)))
        lock.cursor().execute("SELECT pg_advisory_xact_lock(1)")

        # The state is at most a second old, and its values a tenth of a second.
        locked_s = time.time() + 0.2

        def all_have_requests() -> Any:
            ask("/postgres/books")
            now = state()
            workers = now["workers"]
            has_all = all(w["in_progress"] > 3 and _held(w) > 1 for w in workers)
            return workers if has_all and now["time"] > locked_s else None

        victim = wait_until(all_have_requests, "requests in both workers")[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "by killed processes" in text(chrome, "pools"), "the orphans")
        named = re.compile(r"; waiting for one: (worker \d+(?:, worker \d+)*)$", re.M)
        wait_until(lambda: named.search(text(chrome, "pools")), "the wait")

        def is_shown() -> Any:
            now = state()
            pool, slots = now["pools"][POOL], now["slots"][POOL]["text"]
            row = f"{POOL}\n{pool['active']} / {pool['max_size']}\n"
            is_picture = _squares(chrome) == _expected(now)
            shown = text(chrome, "pools")
            is_text = row in shown and f"{POOL}: {slots}" in shown
            is_plan = text(chrome, "plans") == now["plans"][POOL]
            return now if is_picture and is_text and is_plan else None

        now = wait_until(is_shown, "the picture to be up to date")
        expected = _expected(now)
        assert sum(expected.values()) == now["slots"][POOL]["capacity"]
        assert expected["orphan"] > 0
        assert expected["another process of the host"] == shared > 0
        workers = [str(each["pid"]) for each in now["workers"]]
        waiting = named.search(now["slots"][POOL]["text"])
        assert waiting is not None
        assert set(re.findall(r"\d+", waiting[1])) <= set(workers)
        assert str(victim) not in workers
        # Of the same colour as in the table of the workers.
        keys = chrome.execute_script(COLOURS, "#workers .key")
        for pid, key in zip(workers, keys, strict=True):
            squares = f"#pools i[title='worker {pid}']"
            assert set(chrome.execute_script(COLOURS, squares)) <= {key}
        assert "a worker's pool" in now["plans"][POOL]
        assert complaints(chrome) == []


def _held(worker: Any) -> int:
    return int(worker["slots"].get(POOL, {"held": 0})["held"])


def _expected(state: Any) -> Counter[str]:
    """Return how many slots of the host there are by their holder."""
    slots = state["slots"][POOL]
    found = Counter({f"worker {each['pid']}": _held(each) for each in state["workers"]})
    found["another process of the host"] = slots["held"] - slots["orphans"] - found.total()
    found["orphan"] = slots["orphans"]
    found["free"] = slots["capacity"] - slots["held"]
    return found


def _squares(page: webdriver.Chrome) -> Counter[str]:
    titles = "return [...document.querySelectorAll('#pools .slots i')].map(one => one.title)"
    return Counter(page.execute_script(titles))


def test_it_says_that_it_is_not_up_to_date(port: int, running: Service) -> None:
    """When nothing comes any more, and until something does."""
    process = ops_process(running.process.pid)
    assert process is not None
    with browser() as chrome:
        show(chrome, port)
        # A connection that is open is no sign of life.
        os.kill(process, signal.SIGSTOP)
        wait_until(lambda: "Nothing has come" in text(chrome, "verdict"), "the silence")
        os.kill(process, signal.SIGCONT)
        wait_until(lambda: "Nothing has come" not in text(chrome, "verdict"), "what comes")
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: "No connection" in text(chrome, "verdict"), "the loss")
        # The arbiter starts another process.
        wait_until(lambda: "No connection" not in text(chrome, "verdict"), "the next look")


def test_it_fits_a_phone_and_is_dark(page: webdriver.Chrome) -> None:
    """No scrolling sideways but in the tables, and light text on dark ground."""
    script = "return [document.documentElement.scrollWidth, innerWidth]"
    wide, inner = page.execute_script(script)
    assert wide <= inner
    ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(21, 24, 27)"
