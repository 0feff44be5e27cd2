"""The page of the ops port, in a real browser."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.e2e.hosting import hosting
from tests.helpers.browser import browser, complaints
from tests.helpers.processes import ops_process
from tests.helpers.support import Service, free_port, wait_until

APP = "tests.e2e.watched_databases:app"
PHONE = 390
EVIL = "<img src=x onerror=document.title='mine'>"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def running(port: int) -> Iterator[Service]:
    """Two workers and their page."""
    with hosting(APP, "-w", "2", GREENLINE_OPS_BIND=f"127.0.0.1:{port}") as service:
        yield service


@pytest.fixture(scope="module")
def page(port: int, running: Service) -> Iterator[webdriver.Chrome]:
    """The page, as it is shown after its first look."""
    with browser(PHONE, 844, dark=True) as chrome:
        chrome.get(f"http://127.0.0.1:{port}/")
        wait_until(lambda: "workers" in text(chrome, "what"), "the first look")
        yield chrome
        assert complaints(chrome) == []


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
        page.find_element(By.CSS_SELECTOR, "#blocks summary").click()
        wait_until(lambda: "in until_allowed" in text(page, "blocks"), "the stack")
        file.touch()
        assert blocked.result().status == 200
    wait_until(lambda: "in watched_databases.until_allowed" in text(page, "blocks"), "the entry")


def test_it_says_that_it_is_not_up_to_date(port: int, running: Service) -> None:
    """When nothing comes any more, and until something does."""
    process = ops_process(running.process.pid)
    assert process is not None
    with browser() as chrome:
        chrome.get(f"http://127.0.0.1:{port}/")
        wait_until(lambda: "workers" in text(chrome, "what"), "the first look")
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
