"""The README and the pages of docs/: their links lead somewhere, their numbers are the code's."""

import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import click
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from app.commands import create_app
from bench import (
    api,
    article,
    cache,
    cache_latency,
    contenders,
    copy,
    documents,
    held,
    hot_worker,
    http,
    http_memory,
    http_workers,
    legacy_lineup,
    limit,
    metrics,
    offload,
    overload,
    postgres,
    slow_clients,
    turns,
)
from greenline import cli
from tests.helpers.pages import PAGES, read
from tests.helpers.support import CHECKOUT

MAX_README_LINES = 180
MARKDOWN = MarkdownIt("commonmark").enable("table")


def inline(path: Path) -> Iterator[Token]:
    """Return what stands in the paragraphs, headings and cells of a page."""
    for token in MARKDOWN.parse(path.read_text(encoding="utf-8")):
        yield from token.children or ()


def links(path: Path) -> list[str]:
    """Return the targets of the links and pictures of a page."""
    found = [token.attrGet("href") or token.attrGet("src") for token in inline(path)]
    return [str(target) for target in found if target]


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, by the rule of both GitHub and mkdocs."""
    tokens = MARKDOWN.parse(path.read_text(encoding="utf-8"))
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def typed(page: Path, program: str) -> list[list[str]]:
    """Return the words after *program* wherever a page has such a command, in code or a block."""
    tokens = MARKDOWN.parse(page.read_text(encoding="utf-8"))
    codes = [token.content for token in tokens if token.type == "fence"]
    codes += [token.content for token in inline(page) if token.type == "code_inline"]
    # Without a comment, and without the command behind a pipe.
    lines = [re.split(r" [#|] ", line)[0] for code in codes for line in code.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith(f"{program} ")]


@pytest.mark.parametrize(
    ("program", "group"), [("flask", create_app().cli), ("greenline", cli.main)]
)
def test_each_command_on_a_page_exists(program: str, group: click.Group) -> None:
    """Wherever it stands, and with options that it has."""
    commands = [words for page in PAGES for words in typed(page, program)]
    assert len(commands) > 5
    for words in commands:
        command: click.Command = group
        while isinstance(command, click.Group) and words:
            found = command.get_command(click.Context(command), words[0])
            assert found is not None, words
            command = found
            words.pop(0)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Those within the checkout; others are not asked."""
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = page.parent / name if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_each_page_is_in_the_readme_the_index_and_the_site() -> None:
    """A page that no link leads to is not read."""
    names = {page.name for page in PAGES if page.parent == CHECKOUT / "docs"}
    assert {f"docs/{name}" for name in names - {"index.md"}} <= set(links(CHECKOUT / "README.md"))
    assert names - {"index.md"} <= set(links(CHECKOUT / "docs" / "index.md"))
    site = yaml.safe_load(read("mkdocs.yml"))
    assert sorted(name for entry in site["nav"] for name in entry.values()) == sorted(names)


def test_the_readme_is_short() -> None:
    """What is more belongs into docs/."""
    assert len(read("README.md").splitlines()) <= MAX_README_LINES


ASYNC_FLOORS, FLOORS = sorted(set(api.ASYNC_FLOORS.values())), documents.FLOORS
PSYCOGREEN = [article.FLOORS[work, contenders.PSYCOGREEN] for work in ("one", "actors")]
(PGBOUNCER,) = {floor for (_, who), floor in article.FLOORS.items() if who == contenders.PGBOUNCER}
REQUIRED = {
    "bench-article": [article.ROUNDS_FACTOR, *PSYCOGREEN, PGBOUNCER],
    "bench-held": [held.MIN_RATIO, held.MAX_WAIT_S],
    "bench-http": [
        http.FLOOR,
        http.ADOPTED_FLOOR,
        http.STREAM_FLOOR,
        http.P99_LIMIT,
        http_memory.MAX_IDLE,
        http_memory.MAX_REST,
        http_workers.MAX_RATIO,
    ],
    "bench-cache": [
        *cache.FLOORS.values(),
        cache.MAX_STAMPEDE,
        cache_latency.MAX_LATENCY_MS,
        cache.MAX_WRITERS_COST,
        cache.MAX_HIT,
        cache.MAX_MEMORY,
    ],
    "bench-postgres": [
        postgres.BY_ID,
        postgres.BY_ID_OF_MANY,
        postgres.LIST,
        postgres.LARGE,
        postgres.MIN_CPU,
        postgres.MIN_SQLALCHEMY,
    ],
    "bench-metrics": [metrics.MIN_RATIO, metrics.MAX_PAGE, metrics.MAX_CPU],
    "bench-overload": [overload.MIN_GOODPUT],
    "bench-limit": [limit.MIN_RATIO, limit.MAX_SLEEP_S, limit.MAX_AGAIN_S],
    "bench-hot-worker": [hot_worker.MIN_RATIO],
    "bench-slow-clients": [slow_clients.MAX_RATIO],
    "bench-legacy": [*legacy_lineup.WAITS.values(), legacy_lineup.BUSY],
    "bench-offload": [offload.MIN_RATIO],
    "bench-turns": [
        turns.MAX_P50,
        turns.MAX_P99,
        turns.MIN_RATIO,
        turns.MAX_P50_IN_C,
        turns.MIN_RATIO_IN_C,
    ],
    "bench-documents": [FLOORS[documents.SEQUENCE], FLOORS[documents.ASYNCIO]],
    "bench-copy": [copy.MIN_RATIO, copy.MIN_OUT_WITHOUT, copy.MAX_LATE_MS],
    "bench-api": [*reversed(ASYNC_FLOORS), api.THREADS_FLOOR],
}


def test_the_required_ratios_are_those_of_the_benches() -> None:
    """docs/benchmarks.md has all of them, the README some."""
    row = r"^\| `make (bench-[a-z-]+)` \|.*\| at (?:least|most) ([\d.]+) \|$"
    found: dict[str, list[float]] = {}
    for bench, number in re.findall(row, read("docs/benchmarks.md"), re.MULTILINE):
        found.setdefault(bench, []).append(float(number))
    assert found == REQUIRED
    row = r"\| at (?:least|most) ([\d.]+) \| `make (bench-[a-z-]+)` \|$"
    shown = re.findall(row, read("README.md"), re.MULTILINE)
    assert len(shown) > 4
    assert [bench for number, bench in shown if float(number) not in REQUIRED[bench]] == []


def test_each_bench_of_the_makefile_is_on_its_page() -> None:
    """And each on the page is a target."""
    page, makefile = read("docs/benchmarks.md"), read("Makefile")
    described = set(re.findall(r"^- `make (bench-[a-z-]+)`", page, re.MULTILINE))
    assert described == set(re.findall(r"^(bench-[a-z-]+):", makefile, re.MULTILINE))


def test_the_extras_on_the_page_are_those_of_the_package() -> None:
    """docs/hosting.md says what each of them is for."""
    table = read("docs/hosting.md").partition("| extra |")[2].partition("\n\n")[0]
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        project["optional-dependencies"]
    )
