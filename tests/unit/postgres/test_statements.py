"""greenline.postgres.statements: what is shown of a statement."""

import pytest
from psycopg2.extensions import cursor

from greenline.postgres.statements import text_of, without_values
from greenline.postgres.transaction import BEGIN, BeginningCursor


@pytest.mark.parametrize(
    ("statement", "name", "shown"),
    [
        ("select a1 from t where b = %s and c = %(d1)s and e = $1", "SELECT", None),
        ("select 1, -2.5e3, 0x1f", "SELECT", "select ?, -?, ?"),
        ("insert into t values ('a''b', '', 'c')", "INSERT", "insert into t values (?, ?, ?)"),
        (r"select 'C:\', 'x'", "SELECT", "select ?, ?"),
        (r"select E'it\'s', e'', B'01', date'2020-01-01'", "SELECT", "select ?, ?, ?, ?"),
        ("select $$it's$$, $a$ $$ $b$ $a$, 'x'", "SELECT", "select ?, ?, ?"),
        ('select "it\'s 1" from "t"', "SELECT", None),
        ("select 1 -- it's\n, 'x'", "SELECT", "select ?  \n, ?"),
        ("/* it's */ select 'x' /* no end", "SELECT", "select ?"),
        ("/* a /* 'x' */ word */ select 1 /* a /* b */ c", "SELECT", "select ?"),
        ("select 'no end", "SELECT", "select ?"),
        ("(select 1)", "SELECT", "(select ?)"),
        ("WITH x AS (select 1) select * from x", "WITH", "WITH x AS (select ?) select * from x"),
        ("execute list_books ('x', 1)", "EXECUTE list_books", "execute list_books (?, ?)"),
        ("", "", ""),
    ],
)
def test_values_are_not_shown(statement: str, name: str, shown: str | None) -> None:
    """Names and placeholders are; no comment or literal lets a value after it be taken for code."""
    expected = statement if shown is None else shown
    assert without_values(statement)[1:] == (name, expected)


@pytest.mark.parametrize(
    ("method", "given", "text"),
    [
        ("execute", {"query": b"select 1", "vars": (1,)}, "select 1"),
        ("executemany", {"query": "select 1", "vars_list": []}, "select 1"),
        ("copy_expert", {"sql": "copy t to stdout", "file": None}, "copy t to stdout"),
        ("callproc", {"procname": "f", "parameters": [1]}, "select * from f()"),
        ("copy_from", {"file": None, "table": "t", "sep": ","}, "copy t from stdin"),
        ("copy_to", {"file": None, "table": "t", "sep": ","}, "copy t to stdout"),
        ("execute", {"no_query": 1}, ""),
    ],
)
def test_arguments_have_psycopg2s_names(method: str, given: dict[str, object], text: str) -> None:
    """Wrong ones are for the call itself to refuse."""
    assert text_of(method, None, **given) == text


def test_only_the_begin_of_ours_is_not_shown() -> None:
    """It was put before the statement; an application's own is a part of it."""
    sent = BEGIN + "update t set a = 1"
    assert (
        text_of("execute", BeginningCursor.__new__(BeginningCursor), sent) == "update t set a = 1"
    )
    assert text_of("execute", cursor.__new__(cursor), sent) == sent
