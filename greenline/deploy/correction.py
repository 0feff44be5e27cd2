"""Apply edits to the files of nginx, and return the blocks that they change, to be pasted."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from greenline.deploy.findings import Action, Edit

# What ends a directive or a block, and what may contain such a character without ending one.
TOKEN = re.compile(
    r"\$\{\w+\}|(?<![^\s;{}])#[^\n]*"
    r"|(?<![^\s;{}])\"(?:\\.|[^\"\\])*\"|(?<![^\s;{}])'(?:\\.|[^'\\])*'|\\.|[{};]",
    re.DOTALL,
)
# Blocks that are short enough to be shown as a whole.
PRINTED_BLOCKS = {"events", "upstream", "map", "location", "if", "limit_except"}

Opcodes = Sequence[tuple[str, int, int, int, int]]


class Snippet(NamedTuple):
    """
    Hold corrected lines.

    :param file: the file, str; empty for the environment.
    :param lines: the first and the last line that they replace, counted from 1; None: they are
        appended.
    :param text: the lines, str.
    """

    file: str
    lines: tuple[int, int] | None
    text: str


def snippets(edits: Iterable[Edit]) -> list[Snippet]:
    """Return the corrected lines of each file, nginx's first, then gunicorn's, then variables."""
    in_files, appended = defaultdict[str, list[Edit]](list), dict[str, dict[str, str]]()
    for one in dict.fromkeys(edits):  # two findings may need the same edit
        if one.action in (Action.ASSIGN, Action.EXPORT):
            # The last assignment of a name wins, as in Python.
            appended.setdefault(one.where, {})[one.target] = one.text
        else:
            in_files[one.where.rpartition(":")[0]].append(one)
    found = [snippet for file, ones in in_files.items() for snippet in _corrected(file, ones)]
    # The environment, "", after gunicorn.conf.py.
    files = sorted(appended, reverse=True)
    return found + [Snippet(file, None, "\n".join(appended[file].values())) for file in files]


def _corrected(file: str, edits: list[Edit]) -> Iterator[Snippet]:
    old = new = Path(file).read_text(encoding="utf-8", errors="replace")  # as crossplane does
    # From the end, so that the numbers of the lines before an edit stay right. Replacements are the
    # last of a line: what is inserted there is found by the text that they replace.
    for one in sorted(edits, key=lambda one: (-_line(one), one.action is Action.REPLACE)):
        new = _applied(new, one)
    before, after = old.split("\n"), new.split("\n")
    opcodes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    for first, last in _ranges(old, opcodes):
        text = "\n".join(_between(before, after, opcodes, first, last))
        yield Snippet(file, (first + 1, last), text)


def _line(edit: Edit) -> int:
    return int(edit.where.rpartition(":")[2])


def _applied(text: str, edit: Edit) -> str:
    found = _pattern(edit.target).search(text, _start_of(text, _line(edit)))
    if found is None:  # crossplane reads what the pattern does not
        return text
    start, end = found.start(), _end(text, found.start())
    begun = text.rfind("\n", 0, start) + 1
    if edit.action is Action.INSIDE:
        begun, start = text.rfind("\n", 0, end - 1) + 1, end - 1
    lead = text[begun:start]
    lines = edit.text.splitlines()
    # What does not begin its line is followed by a space, and the directives of a block go deeper.
    indent = None if lead.strip() else lead + "    " * (edit.action is Action.INSIDE)
    between = " " if indent is None else f"\n{indent}"
    if edit.action is Action.REPLACE:
        return text[:start] + between.join(lines) + text[end:]
    after = " " if indent is None else f"\n{lead}"
    return text[:begun] + (indent or lead) + between.join(lines) + after + text[start:]


def _pattern(target: str) -> re.Pattern[str]:
    # An argument may be quoted, and header names have no case.
    words = [
        {"{": r"\{", "''": r"(?:''|\"\")"}.get(word, rf"[\"']?{re.escape(word)}[\"']?(?![^\s;{{])")
        for word in target.split()
    ]
    return re.compile(r"(?<![^\s;{}])" + r"\s*".join(words), re.IGNORECASE)


def _start_of(text: str, line: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.index("\n", start) + 1
    return start


def _end(text: str, start: int) -> int:
    """Return where the directive, or the block, that begins at *start* ends."""
    depth = 0
    for token in TOKEN.finditer(text, start):
        depth += (token[0] == "{") - (token[0] == "}")
        if token[0] in (";", "}") and not depth:
            return token.end()
    return len(text)


def _ranges(text: str, opcodes: Opcodes) -> list[tuple[int, int]]:
    """Return the changed lines of *text*, counted from 0, with the blocks around them."""
    blocks = sorted(_blocks(text), key=lambda one: one[1] - one[0])  # the innermost first
    merged: list[tuple[int, int]] = []
    for tag, first, last, *_ in opcodes:
        if tag == "equal":
            continue
        # What is inserted is shown with the line that follows it.
        lines = first, max(last, first + 1)
        around = (one for one in blocks if one[0] <= lines[0] and lines[1] <= one[1])
        merged.append(next(around, lines))
        while len(merged) > 1 and merged[-1][0] < merged[-2][1]:
            (first, last), other = merged.pop(), merged.pop()
            merged.append((min(first, other[0]), max(last, other[1])))
    return merged


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the lines of the blocks that are shown as a whole, counted from 0."""
    begun, open_blocks = 0, list[tuple[str, int]]()
    for token in TOKEN.finditer(text):
        if token[0] == "{":
            head = text[begun : token.start()]
            start = begun + len(head) - len(head.lstrip())
            open_blocks.append((head.split()[0] if head.split() else "", start))
        elif token[0] == "}" and open_blocks:
            name, start = open_blocks.pop()
            if name in PRINTED_BLOCKS:
                yield text.count("\n", 0, start), text.count("\n", 0, token.end()) + 1
        if token[0] in "{};" or token[0].startswith("#"):
            begun = token.end()


def _between(
    before: list[str], after: list[str], opcodes: Opcodes, first: int, last: int
) -> Iterator[str]:
    """Yield the lines of *after* in the place of those from *first* to *last* of *before*."""
    for tag, start, end, new_start, new_end in opcodes:
        if tag == "equal":
            yield from before[max(start, first) : min(end, last)]
        elif first <= start < last:
            yield from after[new_start:new_end]
