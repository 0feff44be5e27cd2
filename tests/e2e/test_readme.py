"""What the README tells to type works as it stands there."""

import re
import shlex

from tests.helpers.support import CHECKOUT, Answer, Databases, Service, run, service

SECTION = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("## The API")[2]
SECTION = SECTION.partition("\n## ")[0]
BEGIN, EXAMPLES = (block for block in SECTION.split("```")[1::2])
LINES = [line for line in EXAMPLES.strip().splitlines() if not line.startswith("#")]
STATUS = {"POST": (200, 201), "DELETE": (200, 204), "GET": (200, 304)}
STATUS |= {"PUT": (200,), "PATCH": (200,)}


def ask(api: Service, key: str, line: str) -> tuple[str, Answer]:
    """Do what a shell and curl would; return the method and the answer."""
    headers = dict([head.split(": ", 1) for head in re.findall(r"-H ['\"](.*?)['\"]", BEGIN)])
    headers["Authorization"] = headers["Authorization"].replace("$KEY", key)
    command, *words = shlex.split(line)
    assert command == "api"
    method, body, path = "", None, ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-X":
            method = words.pop(0)
        elif word == "-d":
            body = words.pop(0).encode()
        elif word != "-i":  # curl shows the status
            assert word.startswith("$at/")
            path = word.removeprefix("$at")
    method = method or ("POST" if body else "GET")
    return method, api.ask(method, path, body, headers)


def test_each_line_of_the_api_section_is_answered(empty_database: str, empty_mongo: str) -> None:
    """In their order, as later ones build on earlier ones; with a key, on the sample."""
    environ = {**Databases(empty_database, empty_mongo).environ, "AUTH": "on"}
    run(["flask", "db", "upgrade", "sample"], environ)
    command = ["flask", "keys", "create", "--name", "readme", "--scopes", "read,write,admin"]
    key = run(command, environ).stdout.strip()
    with service(environ) as running:
        cursor = ""
        for line in LINES:
            inner = re.match(r"next=\$\((api .*) \| sed .*\)$", line)
            method, answer = ask(running, key, inner[1] if inner else line.replace("$next", cursor))
            assert answer.status in STATUS[method], (line, answer.body)
            if inner:
                cursor = answer.json["next"]
        assert cursor


def test_every_resource_and_every_kind_of_operation_has_a_line() -> None:
    """A section that lost its lines would otherwise pass."""
    text = "\n".join(LINES)
    names = "books authors genres agents tasks keys states messages products"
    assert [name for name in names.split() if f"$at/{name}" not in text] == []
    parts = "-XPUT -XPATCH -XDELETE /batch /batch-get /by-name/ order= page= after="
    parts += " total=true /rotate If-Match If-None-Match Idempotency-Key"
    assert [part for part in parts.split() if part not in text.replace("-X ", "-X")] == []


def test_every_route_of_the_readme_exists(api: Service) -> None:
    """The table's routes answer something else than 404 or 405."""
    rows = re.findall(r"^\| (`GET .*?) \|", SECTION, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        for path in re.findall(r"GET (/[a-z./]+)", row):
            assert "GET" in api.ask("OPTIONS", path).headers["Allow"], path
