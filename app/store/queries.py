"""Read the SQL statements of the folder ``sql/``."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "sql"


def read(name: str) -> str:
    """Return the text of ``sql/NAME.sql``."""
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
