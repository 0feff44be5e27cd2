"""greenline.deploy.correction: edits of nginx's files, and the lines that they change."""

from pathlib import Path

import pytest

from greenline.deploy.correction import Snippet, snippets
from greenline.deploy.findings import Action, Edit

CASES = {
    "a directive is replaced": (
        "a 1;\nb 2;\nc 3;\n", (2, Action.REPLACE, "b", "b 4;"), (2, 2), "b 4;",
    ),
    "one of several on a line": (
        "a 1; b 2; c 3;\n", (1, Action.REPLACE, "b", "b 4;"), (1, 1), "a 1; b 4; c 3;",
    ),
    "one of several lines": (
        "a\n  1\n  2;\n", (1, Action.REPLACE, "a", "a 4;"), (1, 3), "a 4;",
    ),
    "a name that begins like another": (
        "keepalive_timeout 9; keepalive 1;\n", (1, Action.REPLACE, "keepalive", "keepalive 2;"),
        (1, 1), "keepalive_timeout 9; keepalive 2;",
    ),
    "a header by its name, in other letters": (
        "h X-A $x;\nh X-B '$y;';\n", (2, Action.REPLACE, "h x-b", "h X-B 1;"), (2, 2), "h X-B 1;",
    ),
    "a line is inserted, with the indent of the next one": (
        "{\n    a 1;\n}\n", (2, Action.BEFORE, "a 1", "b 2;"), (2, 2), "    b 2;\n    a 1;",
    ),
    "a directive at the end of a block": (
        "upstream u {\n    a '}';  # }\n    b ${x};\n}\nc 1;\n",
        (1, Action.INSIDE, "upstream u", "d 2;\ne 3;"), (1, 4),
        "upstream u {\n    a '}';  # }\n    b ${x};\n    d 2;\n    e 3;\n}",
    ),
    "a directive at the end of a block on one line": (
        "events { a 1; } c 1;\n", (1, Action.INSIDE, "events", "d 2;"), (1, 1),
        "events { a 1; d 2; } c 1;",
    ),
    "the innermost block is shown": (
        "http {\n  server {\n    location / {\n      a 1;\n      if (x) {\n      }\n    }\n  }\n}",
        (4, Action.REPLACE, "a", "a 2;"), (3, 7),
        "    location / {\n      a 2;\n      if (x) {\n      }\n    }",
    ),
    "a server block is not": (
        "server {\n  a 1;\n  b 1;\n}\n", (2, Action.REPLACE, "a", "a 2;"), (2, 2), "  a 2;",
    ),
    "the first line": ("a 1;\n", (1, Action.BEFORE, "", "b 2;"), (1, 1), "b 2;\na 1;"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_edit_changes_its_directive_alone(name: str, tmp_path: Path) -> None:
    """The rest of the text stays as it is."""
    text, (line, action, target, inserted), lines, corrected = CASES[name]
    file = tmp_path / "nginx.conf"
    file.write_text(text)
    edit = Edit(action, f"{file}:{line}", target, inserted)
    assert snippets([edit]) == [Snippet(str(file), lines, corrected)]


def test_equal_edits_are_one(tmp_path: Path) -> None:
    """Two problems may have the same correction, and several may be of one block."""
    file = tmp_path / "nginx.conf"
    file.write_text("location / {\n    a 1;\n    b 1;\n}\nx 1;\ny 1;\n")
    edits = [
        Edit(Action.REPLACE, f"{file}:{line}", name, f"{name} 2;")
        for line, name in ((2, "a"), (6, "y"), (2, "a"), (3, "b"))
    ]
    assert snippets(edits) == [
        Snippet(str(file), (1, 4), "location / {\n    a 2;\n    b 2;\n}"),
        Snippet(str(file), (6, 6), "y 2;"),
    ]


def test_the_last_value_of_a_name_is_set() -> None:
    """Settings first, then variables."""
    edits = [
        Edit(Action.EXPORT, "", "A", "A=1"),
        Edit(Action.ASSIGN, "gunicorn.conf.py", "timeout", "timeout = 1"),
        Edit(Action.ASSIGN, "gunicorn.conf.py", "timeout", "timeout = 2"),
    ]
    assert snippets(edits) == [
        Snippet("gunicorn.conf.py", None, "timeout = 2"),
        Snippet("", None, "A=1"),
    ]
