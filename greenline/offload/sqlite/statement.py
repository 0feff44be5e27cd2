"""Tell from the text of a statement which locks it needs, and how often it may be run."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

MAX_STATEMENTS = 1000

KEYWORD = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*(\w*)", re.DOTALL)
ROLLBACK_TO = re.compile(r"ROLLBACK\s+(?:TRANSACTION\s+)?TO\b")
LOCKING_BEGIN = re.compile(r"\bBEGIN\s+(?:IMMEDIATE|EXCLUSIVE)\b")
SEVERAL_ROWS = re.compile(r"\b(?:SELECT|WITH)\b|\)\s*,\s*\(")
# Those with a value set something in the connection, and nothing in the database; but for the mode,
# which connections set that find it set. Those of a table tell what it is: sqlite has it in memory.
BRIEF_PRAGMA = re.compile(
    r"""PRAGMA\s+(?:(?:"[^"]*"|\w+)\s*\.\s*)?"""
    r"(?:(?:APPLICATION_ID|COLLATION_LIST|COMPILE_OPTIONS|DATABASE_LIST|DATA_VERSION|ENCODING"
    r"|FREELIST_COUNT|FUNCTION_LIST|PAGE_COUNT|PAGE_SIZE|SCHEMA_VERSION|TABLE_LIST|USER_VERSION)"
    r"|(?:AUTOMATIC_INDEX|CACHE_SIZE|CELL_SIZE_CHECK|DEFER_FOREIGN_KEYS|FOREIGN_KEYS"
    r"|IGNORE_CHECK_CONSTRAINTS|LEGACY_ALTER_TABLE|QUERY_ONLY|RECURSIVE_TRIGGERS|SYNCHRONOUS"
    r"|TRUSTED_SCHEMA)\s*(?:=\s*-?\w+|\(\s*-?\w+\s*\))?"
    r"|JOURNAL_MODE\s*(?:=\s*['\"]?WAL['\"]?|\(\s*['\"]?WAL['\"]?\s*\))?"
    r"|(?:FOREIGN_KEY_LIST|INDEX_INFO|INDEX_LIST|INDEX_XINFO|TABLE_INFO|TABLE_XINFO)"
    r"""\s*\(\s*(?:'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|\w+)\s*\))\s*;?\s*\Z"""
)
# A value in the text is in a group; names and comments, in which there may be digits, are in none.
VALUE = re.compile(
    r"""((?:'[^']*')+)|"[^"]*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[^\W\d][\w$]*|[?:@$#]\w+"""
    r"""|(\d[\w.]*)""",
    re.DOTALL,
)
# Its plan is the same for all values.
ONE_COMPARISON = re.compile(r"""\bWHERE[\s(]+[\w."`\[\]]+\s*=\s*\?[\s)]*;?\s*\Z""")
MAX_TEXT = 50_000  # characters of a text in which values are looked for
CHANGES = {"INSERT", "REPLACE", "UPDATE", "DELETE"}
COMMITS = {"COMMIT", "END", "RELEASE"}
PLAN = "EXPLAIN QUERY PLAN "
SCHEMA = {"ALTER", "CREATE", "DROP", "REINDEX"}
READS = {"SELECT", "BEGIN", "SAVEPOINT"} | COMMITS


class Statement(NamedTuple):
    """What is known of a statement."""

    keyword: str  # the first word, in upper case
    key: str = ""  # its key in quick.paces, "" where it always runs in the thread
    changes: bool = False  # whether it inserts, updates or deletes
    returns: bool = False  # whether a change may return rows: it ends with the last one
    commits: bool = False
    ends: bool = False  # whether it ends the transaction, and with it all savepoints
    begins_to_write: bool = False  # whether it takes the write lock where it begins a transaction
    inserts_one_row: bool = False
    is_large: bool = False  # whether it may write much, though it changes few rows
    plan: str = ""  # the key of its plan in quick.paces, "" where the plan depends on its values


COMMIT = Statement("COMMIT", key="commit", commits=True, ends=True)
ROLLBACK = Statement("ROLLBACK", ends=True)
SCRIPT = Statement("")  # or another one that is not known


@lru_cache(MAX_STATEMENTS)
def _parsed(sql: str) -> Statement:
    found = KEYWORD.match(sql)
    keyword = found[1].upper() if found else ""
    if keyword in ("COMMIT", "END"):
        return COMMIT
    upper = sql.upper()
    changes = keyword in CHANGES
    is_large = len(sql) > MAX_TEXT
    key, plan = sql, PLAN + sql
    if (keyword == "SELECT" or changes) and not is_large:
        # Some libraries write values into the text, which would be another one each time.
        key = VALUE.sub(_without_value, sql)
        if key != sql:
            upper = key.upper()
            is_simple = ONE_COMPARISON.search(upper) and "SELECT" not in upper
            plan = PLAN + key if is_simple else ""
    # Without WHERE it is one instruction of sqlite's virtual machine, which cannot be ended.
    is_brief = keyword in READS or BRIEF_PRAGMA.match(upper) is not None
    if changes and not is_large:
        is_brief = keyword != "DELETE" or "WHERE" in upper
    return Statement(
        keyword,
        key=key if is_brief else "",
        changes=changes,
        returns=changes and "RETURNING" in upper,
        commits=keyword in COMMITS,
        ends=keyword == "ROLLBACK" and not ROLLBACK_TO.search(upper),
        begins_to_write=changes or bool(keyword == "BEGIN" and LOCKING_BEGIN.search(upper)),
        inserts_one_row=keyword in ("INSERT", "REPLACE") and not SEVERAL_ROWS.search(upper),
        is_large=keyword in SCHEMA or (changes and is_large),
        plan=plan,
    )


def _without_value(found: re.Match[str]) -> str:
    return "?" if found[1] or found[2] else found[0]


def parse(sql: Any) -> Statement:
    """Return what is known of *sql*, which sqlite3 refuses if it is no str."""
    return _parsed(sql) if isinstance(sql, str) else SCRIPT
