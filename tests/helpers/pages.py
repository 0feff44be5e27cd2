"""Read the README and the pages of docs/, and write their examples to files."""

import re
from pathlib import Path

from markdown_it import MarkdownIt

from tests.helpers.support import CHECKOUT

PAGES = (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md")))
# What an inline code that is a command begins with.
PROGRAM = (
    r"(\.venv/bin/)?(\.|apt-get|curl|docker|export|flask|greenline|gunicorn|make|mkdocs|pip|python"
    r"|set|systemctl) |make$"
)


def read(name: str) -> str:
    """
    Return the text of a page.

    :param name: its path in the checkout, as in ``docs/api.md``, str.
    """
    return (CHECKOUT / name).read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """
    Return the fenced blocks of a text.

    :param text: Markdown, str.
    :param kind: the word behind the fence, as in ``python``.
    """
    tokens = MarkdownIt().parse(text)
    return [token.content for token in tokens if token.type == "fence" and token.info == kind]


def write_example(page: str, name: str, folder: Path) -> Path:
    """
    Write the Python block that begins with a file's name into that file.

    :param page: the path of the page in the checkout, str.
    :param name: the name of the file, as in its first line ``# report.py``, str.
    :param folder: the folder of the file.
    :returns: the path of the file.
    """
    python = blocks(read(page), "python")
    (text,) = (block for block in python if block.startswith(f"# {name}\n"))
    path = folder / name
    path.write_text(text)
    return path


def commands(page: Path) -> list[str]:
    """
    Return each command of a page: of the blocks of a shell, after ``$`` of others, and inline.

    :param page: one of ``PAGES``.
    """
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type == "fence":
            lines = token.content.splitlines()
            if token.info != "sh":  # a picture, a program, or a command with what it prints
                lines = [line[2:] for line in lines if line.startswith("$ ")]
            found += [line for line in lines if line and not line.startswith("#")]
        codes = [each.content for each in token.children or () if each.type == "code_inline"]
        found += [code for code in codes if re.match(PROGRAM, code)]
    return found
