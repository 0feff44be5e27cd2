"""Tell from the text of a statement which locks it needs, and how often it may be run."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

MAX_STATEMENTS = 1000

KEYWORD = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(\w*)", re.DOTALL)
LOCKING_BEGIN = re.compile(r"\bBEGIN\s+(?:IMMEDIATE|EXCLUSIVE)\b")
SEVERAL_ROWS = re.compile(r"\b(?:SELECT|WITH)\b|\)\s*,\s*\(")
BRIEF_PRAGMA = re.compile(r"PRAGMA\s+(?:PAGE_COUNT|FREELIST_COUNT|USER_VERSION)\s*;?\s*\Z")
CHANGES = {"INSERT", "REPLACE", "UPDATE", "DELETE"}
COMMITS = {"COMMIT", "END", "RELEASE"}
PLAN = "EXPLAIN QUERY PLAN "
SCHEMA = {"ALTER", "CREATE", "DROP", "REINDEX"}
BRIEF = {"SELECT", "BEGIN", "SAVEPOINT"} | COMMITS


class Statement(NamedTuple):
    """What is known of a statement."""

    keyword: str  # the first word, in upper case
    key: str = ""  # its key in quick.paces, "" where it always runs in the thread
    changes: bool = False  # whether it inserts, updates or deletes, and returns no rows
    commits: bool = False
    begins_to_write: bool = False  # whether it takes the write lock where it begins a transaction
    inserts_one_row: bool = False
    is_large: bool = False  # whether it may write much, though it changes few rows


COMMIT = Statement("COMMIT", key="commit", commits=True)
ROLLBACK = Statement("ROLLBACK")
SCRIPT = Statement("")  # or another one that is not known


@lru_cache(MAX_STATEMENTS)
def _parsed(sql: str) -> Statement:
    found = KEYWORD.match(sql)
    keyword = found[1].upper() if found else ""
    if keyword in ("COMMIT", "END"):
        return COMMIT
    upper = sql.upper()
    changes = keyword in CHANGES and "RETURNING" not in upper
    # Without WHERE it is one instruction of sqlite's virtual machine, which cannot be ended.
    is_brief = keyword in BRIEF or (changes and (keyword != "DELETE" or "WHERE" in upper))
    return Statement(
        keyword,
        key=sql if is_brief or BRIEF_PRAGMA.match(upper) else "",
        changes=changes,
        commits=keyword in COMMITS,
        begins_to_write=changes or bool(keyword == "BEGIN" and LOCKING_BEGIN.search(upper)),
        inserts_one_row=keyword in ("INSERT", "REPLACE") and not SEVERAL_ROWS.search(upper),
        is_large=keyword in SCHEMA,
    )


def parse(sql: Any) -> Statement:
    """Return what is known of *sql*, which sqlite3 refuses if it is no str."""
    return _parsed(sql) if isinstance(sql, str) else SCRIPT
