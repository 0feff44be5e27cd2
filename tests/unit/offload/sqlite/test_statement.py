"""greenline.offload.sqlite.statement: what the text of a statement tells."""

import pytest

from greenline.offload.sqlite.statement import COMMIT, parse


@pytest.mark.parametrize(
    ("sql", "is_brief", "begins_to_write", "inserts_one_row"),
    [
        ("insert into t values (?)", True, True, True),
        ("/* a comment */ INSERT OR REPLACE INTO t VALUES (1, 2)", True, True, True),
        ("insert into t values (1), (2)", True, True, False),
        ("insert into t select 1", True, True, False),
        ("insert into t values (1) returning a", False, False, True),
        ("update t set a = 1 where id = 2", True, True, False),
        ("delete from t where id = 2", True, True, False),
        ("delete from t", False, True, False),
        ("begin", True, False, False),
        ("begin immediate", True, True, False),
        ("BEGIN EXCLUSIVE TRANSACTION", True, True, False),
        ("release one", True, False, False),
        ("pragma page_count", True, False, False),
        ("pragma synchronous", False, False, False),
        ("pragma user_version = 2", False, False, False),
        ("create table t (a)", False, False, False),
        (None, False, False, False),
    ],
)
def test_what_a_statement_may_do(
    sql: str, is_brief: bool, begins_to_write: bool, inserts_one_row: bool
) -> None:
    """What is not known runs in the thread."""
    found = parse(sql)
    assert bool(found.key) == is_brief
    assert found.begins_to_write == begins_to_write
    assert found.inserts_one_row == inserts_one_row


@pytest.mark.parametrize("sql", ["commit", "END TRANSACTION", "-- a comment\n Commit"])
def test_the_end_of_a_transaction_is_known_by_one_key(sql: str) -> None:
    """However it is written."""
    assert parse(sql) is COMMIT
