"""What the README tells to type works as it stands there."""

import re
import shlex

import pytest

from tests.support import CHECKOUT, Service

SECTION = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("## What to try")[2]
LINES = SECTION.partition("```\n")[2].partition("```")[0].replace("\\\n", "").strip().splitlines()
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.parametrize("line", LINES)
def test_each_curl_line_of_the_readme_is_answered(api: Service, line: str) -> None:
    """Read as a shell and curl would, and sent to the running service."""
    command, *words = shlex.split(line)
    assert command == "curl"
    headers, body, path = {}, None, ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = words.pop(0).encode()
        else:
            assert word.startswith(ADDRESS)
            path = word.removeprefix(ADDRESS)
    answer = api.ask("POST" if body else "GET", path, body, headers)
    assert answer.status == (201 if body else 200), answer.body


def test_there_are_lines_to_try() -> None:
    """A README whose section was renamed would otherwise pass without a line."""
    assert len(LINES) == 6
    assert re.search("limit=3", LINES[0])


def test_every_route_of_the_readme_exists(api: Service) -> None:
    """The table's routes answer something else than 404 or 405."""
    rows = re.findall(r"^\| (`(?:GET|POST)[` ].*?) \|", SECTION, re.MULTILINE)
    assert len(rows) == 8
    for row in rows:
        for methods, path in re.findall(r"((?:`?[A-Z]+`?,? ?)+)`?(/[a-z]+(?:/[a-z{}]+)?)", row):
            target = path.replace("{id}", "1" if "books" in path else "0" * 23 + "1")
            for method in re.findall("[A-Z]+", methods):
                answer = api.ask("OPTIONS", target)
                assert method in answer.headers["Allow"], (method, target)
