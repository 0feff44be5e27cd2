"""Read the README and the pages of docs/, and write their examples to files."""

from pathlib import Path

from markdown_it import MarkdownIt

from tests.helpers.support import CHECKOUT

PAGES = (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md")))


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
