"""Print findings: for people, as JSON, as SARIF 2.1.0 and as GitHub's annotations."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from greenline import __version__
from greenline.deploy.findings import Level, counted
from greenline.doctor.codes import CODES
from greenline.doctor.examine import BY_COMMENT, Examined
from greenline.doctor.findings import Block, Finding

LEVELS = list(Level)
MAX_SHOWN = 3  # frames of a stack, for people
MAX_LIBRARIES = 5  # that have blocked the hub, for people
STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.REMARK: "cyan"}
OF_SARIF = {Level.ERROR: "error", Level.WARNING: "warning", Level.REMARK: "note"}
OF_GITHUB = {Level.ERROR: "error", Level.WARNING: "warning", Level.REMARK: "notice"}
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return *findings*, the most severe first, then by file and line."""
    return sorted(findings, key=lambda each: (LEVELS.index(each.level), *each[1:3], each.code.code))


def where(finding: Finding) -> str:
    """Return the file and the line of a finding."""
    return f"{finding.path}:{finding.line}" if finding.line else finding.path


def print_text(examined: Examined, console: Console) -> None:
    """Print for people: each kind of finding once with its reason, and the places below it."""
    found = ordered(examined.findings)
    for code in dict.fromkeys((each.level, each.code) for each in found):
        level, kind = code
        console.print(
            Text.assemble((f"{kind.code} ", "bold"), (level, STYLES[level]), f" {kind.title}")
        )
        for each in found:
            if (each.level, each.code) == code:
                place = Text(where(each), style="bold") if each.path else Text("")
                line = Text.assemble("  ", place, ": " if each.path else "", each.what)
                console.print(line, soft_wrap=True)
                # A finding itself names the first and the last of two.
                for path, number, function in each.stack[-MAX_SHOWN:] if each.stack[2:] else ():
                    text = f"    {path}:{number} in {function}"
                    console.print(Text(text, style="dim"), soft_wrap=True)
        for title, text in (("why: ", kind.why), ("do:  ", kind.fix), ("see: ", kind.page)):
            console.print(Text(f"  {title}{text}", style="dim"), soft_wrap=True)
        console.print()
    for path, reason in examined.unreadable:
        console.print(Text(f"{path} was not read: {reason}"), soft_wrap=True)
    if examined.note:
        console.print(Text(examined.note), soft_wrap=True)
    console.print(summary(examined))
    if examined.blocks:
        console.print(Text(by_library(examined.blocks)), soft_wrap=True)
    if examined.verdict:
        console.print(Text(examined.verdict, style="bold"), soft_wrap=True)


def summary(examined: Examined) -> str:
    """Return the numbers, in one line."""
    numbers = [
        counted(count, level)
        for level in LEVELS
        if (count := sum(each.level == level for each in examined.findings))
    ]
    if examined.ignored:
        numbers.append(f"{len(examined.ignored)} ignored")
    lines = f"{examined.lines:,} line{'s' * (examined.lines != 1)}"
    return f"{', '.join(numbers) or 'nothing found'}, in {lines}"


def by_library(blocks: Iterable[Block]) -> str:
    """Return which libraries have blocked the hub, how often and how long, in one line."""
    of: dict[str, list[Block]] = {}
    for each in blocks:
        of.setdefault(each.library, []).append(each)
    sums = [
        (sum(each.total_s for each in found), sum(each.count for each in found), name)
        for name, found in of.items()
    ]
    listed = (
        f"{name} {counted(count, 'time')}, {total_s:.2f} s"
        for total_s, count, name in sorted(sums, reverse=True)[:MAX_LIBRARIES]
    )
    return f"Blocked the hub, by library: {'; '.join(listed)}"


def as_json(examined: Examined) -> str:
    """Return a JSON document."""
    document = {
        "findings": [_document(each) for each in ordered(examined.findings)],
        "ignored": [{**_document(each), "reason": reason} for each, reason in examined.ignored],
        "unreadable": [{"path": path, "reason": reason} for path, reason in examined.unreadable],
        "note": examined.note,
        "lines": examined.lines,
        "import_s": examined.import_s,
        "blocks": [{**asdict(each), "stack": _frames(each.stack)} for each in examined.blocks],
        "requests": [asdict(each) for each in examined.requests],
        "verdict": examined.verdict,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _document(finding: Finding) -> dict[str, Any]:
    kind = finding.code
    return {
        "code": kind.code, "level": finding.level, "path": finding.path, "line": finding.line,
        "what": finding.what, "why": kind.why, "fix": kind.fix, "page": kind.page,
        "stack": _frames(finding.stack),
    }  # fmt: skip


def _frames(stack: Iterable[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [{"path": path, "line": line, "function": function} for path, line, function in stack]


def as_sarif(examined: Examined) -> str:
    """Return a document of SARIF 2.1.0, as code scanning reads it."""
    examined = _in_repository(examined)
    results = [_result(each, examined) for each in ordered(examined.findings)]
    for each, reason in examined.ignored:
        kind = "inSource" if reason == BY_COMMENT else "external"
        suppressions = [{"kind": kind, "justification": reason}]
        results.append({**_result(each, examined), "suppressions": suppressions})
    kinds = {each.code: each for each in CODES}
    kinds |= {each.code.code: each.code for each in examined.findings}
    rules = [
        {
            "id": kind.code,
            "shortDescription": {"text": kind.title},
            "fullDescription": {"text": kind.why},
            # No helpUri: it has to be an absolute address, and the pages have none.
            "help": {"text": f"{kind.fix} Greenline's {kind.page} says more."},
            "defaultConfiguration": {"level": OF_SARIF[kind.level]},
        }
        for kind in kinds.values()
    ]
    driver = {"name": "greenline doctor", "version": __version__, "rules": rules}
    invocation = {
        "executionSuccessful": True,
        "toolExecutionNotifications": list(_notifications(examined)),
    }
    run = {
        "tool": {"driver": driver}, "invocations": [invocation], "results": results,
        "columnKind": "unicodeCodePoints",
    }  # fmt: skip
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _in_repository(examined: Examined) -> Examined:
    """Return a copy with paths as GitHub takes them: from the repository's root on."""
    folder = examined.folder
    roots = (each for each in (folder, *folder.parents) if (each / ".git").exists())
    root = next(roots, Path.cwd())

    def moved(path: str) -> str:
        name, _ = _split(path)
        # The file of a library, which has been called or is named, is in no repository.
        is_there = bool(name) and (folder / name).exists()
        return os.path.relpath(folder / path, root) if is_there else path

    def placed(finding: Finding) -> Finding:
        stack = tuple((moved(path), line, function) for path, line, function in finding.stack)
        return finding._replace(path=moved(finding.path), stack=stack)

    return replace(
        examined,
        findings=list(map(placed, examined.findings)),
        ignored=[(placed(each), reason) for each, reason in examined.ignored],
        unreadable=[(moved(path), reason) for path, reason in examined.unreadable],
        anchor=moved(examined.anchor),
    )


def _result(finding: Finding, examined: Examined) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code.code,
        "level": OF_SARIF[finding.level],
        "message": {"text": f"{finding.what}. {finding.code.why} {finding.code.fix}"},
        # Code scanning refuses a file with a result that has none.
        "locations": [_location(finding.path or examined.anchor, finding.line)],
    }
    if finding.stack:
        frames = [
            {"location": {**_location(path, line), "logicalLocations": [{"name": function}]}}
            for path, line, function in reversed(finding.stack)  # the innermost first
        ]
        result["stacks"] = [{"message": {"text": "The calls that led there"}, "frames": frames}]
    return result


def _notifications(examined: Examined) -> Iterator[dict[str, Any]]:
    """Yield what is no result: the files that were not read, the note and the verdict."""
    for path, reason in examined.unreadable:
        name, line = _split(path)
        text = f"{path} was not read: {reason}"
        yield {"level": "warning", "message": {"text": text}, "locations": [_location(name, line)]}
    for text in filter(None, (examined.note, examined.verdict)):
        yield {"level": "note", "message": {"text": text}}


def _location(path: str, line: int) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(path)}}
    if line:
        place["region"] = {"startLine": line}
    return {"physicalLocation": place}


def _split(place: str) -> tuple[str, int]:
    """Return the file and the line of a place, which may have no line."""
    path, _, line = place.rpartition(":")
    return (path, int(line)) if line.isdigit() else (place, 0)


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def as_github(examined: Examined) -> str:
    """Return the commands that make GitHub annotate the lines of a pull request."""
    return "\n".join(_annotations(examined))


def _annotations(examined: Examined) -> Iterator[str]:
    examined = _in_repository(examined)
    for each in ordered(examined.findings):
        text = f"{each.what}. {each.code.why} {each.code.fix}"
        yield _annotation(OF_GITHUB[each.level], text, each.path, each.line, each.code.code)
    for path, reason in examined.unreadable:
        yield _annotation("warning", reason, *_split(path), "not read")
    for title in ("note", "verdict"):
        if text := getattr(examined, title):
            yield _annotation("notice", text, title=title)


def _annotation(level: str, text: str, path: str = "", line: int = 0, title: str = "") -> str:
    given = {"file": path, "line": str(line or ""), "title": title}
    properties = ",".join(f"{key}={_escaped(value)}" for key, value in given.items() if value)
    return f"::{level} {properties}::{_escaped(text, in_property=False)}"


def _escaped(text: str, *, in_property: bool = True) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_property else text


FORMATS: dict[str, Callable[[Examined], str]] = {
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}
