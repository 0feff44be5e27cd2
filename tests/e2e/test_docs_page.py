"""
``/`` and ``/docs``: the pages over HTTP, and in a browser.

The browser is Debian's chromium with its chromium-driver; ``GREENLINE_LONG_TESTS=1`` starts it.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.helpers.browser import browser as browser_of_debian
from tests.helpers.support import IS_LONG, Databases, Service, run, service, wait_until

LOADED = ["docs/favicon-32x32.png", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js",
          "docs/docs.js"]  # fmt: skip


def test_the_page_loads_nothing_from_elsewhere(api: Service) -> None:
    """And runs no script and no style that stands in it."""
    page = api.get("/docs")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = page.body.decode()
    assert "//" not in text
    assert "<style" not in text
    assert text.count("<script") == text.count('<script src="docs/')
    assert "unsafe" not in page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert all(name in text for name in LOADED)


def test_the_root_leads_to_the_page(api: Service) -> None:
    """Without a key; each of its links and files is there, relative, and none is elsewhere."""
    root = api.get("/")
    assert (root.status, root.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = root.body.decode()
    assert "<h1>Greenline</h1>" in text
    links = re.findall(r'href="([^"]+)"', text)
    assert {"docs", "openapi.json"} < set(links)
    assert [link for link in links if api.get(f"/{link}").status != 200] == []
    assert "//" not in text
    assert "default-src 'none'" in root.headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", LOADED)
def test_a_file_of_the_page_is_sent_once(api: Service, name: str) -> None:
    """A browser keeps what comes from the package for a day, and asks whether ours is the same."""
    first = api.get(f"/{name}")
    assert first.status == 200
    assert first.body
    assert "max-age" in first.headers["Cache-Control"]
    again = api.get(f"/{name}", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert api.ask("HEAD", f"/{name}").headers["Content-Length"] == str(len(first.body))


@pytest.mark.parametrize(
    "path",
    ["/docs/", "/docs/docs.py", "/docs/../openapi.json", "/docs/..%2fproblems.py", "/docs/VERSION",
     "/docs/%2fetc%2fpasswd", "/docs/a/b"],
)  # fmt: skip
def test_there_is_no_other_file(api: Service, path: str) -> None:
    """Whatever the path makes of the folders."""
    assert api.get(path).status == 404


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """A headless Chromium, which says what goes wrong in a page."""
    if not IS_LONG:
        pytest.skip("GREENLINE_LONG_TESTS=1 starts a browser")
    with browser_of_debian() as running:
        yield running


@pytest.fixture(scope="module")
def key(databases: Databases) -> str:
    """An API key that may do everything."""
    command = ["flask", "keys", "create", "--name", "browser", "--scopes", "read,write,admin"]
    return run([*command, "--replace"], databases.environ).stdout.strip()


@pytest.fixture(scope="module")
def guarded(databases: Databases, key: str) -> Iterator[Service]:
    """The service as people have it: with keys."""
    with service({**databases.environ, "AUTH": "on"}) as running:
        yield running


class Page:
    """The docs page in a browser."""

    def __init__(self, browser: webdriver.Chrome, api: Service) -> None:
        self._browser = browser
        browser.get(f"http://127.0.0.1:{api.port}/docs")

    def find(self, selector: str) -> WebElement:
        """Return what has this CSS selector, as soon as it is there."""
        found = wait_until(
            lambda: self._browser.find_elements(By.CSS_SELECTOR, selector),
            f"{selector} on the page",
        )
        return found[0]

    def click(self, selector: str) -> None:
        self._browser.execute_script("arguments[0].click()", self.find(selector))

    def write(self, selector: str, text: str) -> None:
        """Write *text* as a person does, key by key, in the place of what stands there."""
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def authorize(self, key: str) -> None:
        """Say who asks, as the button at the head of the page lets one."""
        self.click(".auth-wrapper .authorize")
        self.write(".auth-container input", key)
        self.click(".auth-btn-wrapper .authorize")
        self.click(".auth-btn-wrapper .btn-done")

    def complaints(self) -> list[Any]:
        """Return what the browser has to say of the page."""
        said: list[Any] = self._browser.get_log("browser")
        return said


def block_of(tag: str, operation_id: str) -> str:
    """Return the selector of an operation's part of the page, whose id has a backslash in it."""
    quoted = operation_id.replace(".", "\\.")
    return f"[id={json.dumps(f'operations-{tag}-{quoted}')}]"


def test_the_page_renders_every_operation(browser: webdriver.Chrome, api: Service) -> None:
    """The browser finds nothing wrong: neither in the scripts nor with what the policy forbids."""
    page = Page(browser, api)
    document = api.get("/openapi.json").json
    assert page.find(".info .title").text.startswith(document["info"]["title"])
    for tag in document["tags"]:
        page.click(f"#operations-tag-{tag['name']}")
    for path, methods in document["paths"].items():
        for operation in methods.values():
            block = block_of(operation["tags"][0], operation["operationId"])
            shown = page.find(f"{block} .opblock-summary-path")
            assert shown.get_attribute("data-path") == path
    assert page.complaints() == []


def test_a_book_is_created_from_the_page(
    browser: webdriver.Chrome, guarded: Service, key: str
) -> None:
    """Authorize, try it out, with the body that is suggested and with one of one's own."""
    page = Page(browser, guarded)
    page.authorize(key)
    page.click("#operations-tag-books")
    block = block_of("books", "books.create")
    page.click(f"{block} .opblock-summary-control")
    title = "Written in a browser"
    for body in (None, {"title": title, "authors": ["Ada"], "published": "1843-07-10"}):
        if body is not None:
            page.write(f"{block} .body-param__text", json.dumps(body))
        page.click(f"{block} .execute")
        status = page.find(f"{block} .live-responses-table .response .response-col_status")
        wait_until(lambda shown=status: shown.text, "a status on the page")
        assert status.text.splitlines()[0] == "201"
        asked = page.find(f"{block} .curl-command").text
        assert f"Authorization: Bearer {key}" in asked
        page.click(f"{block} .btn-clear")
    bearer = {"Authorization": f"Bearer {key}"}
    found = guarded.get("/books?order=-id&limit=1", headers=bearer).json["items"][0]
    assert found["title"] == title
    assert page.complaints() == []
