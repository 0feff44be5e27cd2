"""greenline.offload.sqlite.statement: what the text of a statement tells."""

import pytest

from greenline.offload.sqlite.statement import COMMIT, MAX_TEXT, parse


@pytest.mark.parametrize(
    ("sql", "is_brief", "begins_to_write", "inserts_one_row"),
    [
        ("insert into t values (?)", True, True, True),
        ("/* a comment */ INSERT OR REPLACE INTO t VALUES (1, 2)", True, True, True),
        ("insert into t values (1), (2)", True, True, False),
        ("insert into t select 1", True, True, False),
        ("insert into t values (1) returning a", True, True, True),
        ("update t set a = 1 where id = 2", True, True, False),
        ("delete from t where id = 2", True, True, False),
        ("delete from t", False, True, False),
        ("begin", True, False, False),
        ("begin immediate", True, True, False),
        ("BEGIN EXCLUSIVE TRANSACTION", True, True, False),
        ("release one", True, False, False),
        ("pragma page_count", True, False, False),
        ("pragma synchronous = normal;", True, False, False),
        ("PRAGMA foreign_keys(1)", True, False, False),
        ("pragma cache_size=-2000", True, False, False),
        ("pragma journal_mode = wal", True, False, False),
        ("PRAGMA journal_mode('WAL');", True, False, False),
        ("pragma journal_mode", True, False, False),
        ("pragma journal_mode = delete", False, False, False),
        ("pragma optimize", False, False, False),
        ("PRAGMA schema_version;", True, False, False),
        ("pragma schema_version = 3", False, False, False),
        ('PRAGMA "main".table_info("a table")', True, False, False),
        ("pragma main.index_list('t')", True, False, False),
        ("PRAGMA foreign_key_list([t])", True, False, False),
        ("pragma integrity_check(t)", False, False, False),
        ("pragma table_info(t); delete from t", False, False, False),
        ("pragma foreign_keys = on; delete from t", False, False, False),
        ("insert into t values ('), (select')", True, True, True),
        (f"insert into t values ('{'x' * MAX_TEXT}')", False, True, True),
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


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("select * from t1 where a=5 and b = -1.5e3", "select * from t1 where a=? and b = -?"),
        ("select 'it''s', x'00', 7", "select ?, x?, ?"),
        (
            'select "a 1", [b 2], `c 3`, ?1, :n2 from t',
            'select "a 1", [b 2], `c 3`, ?1, :n2 from t',
        ),
        ("select 1 -- of '2\n, '3'", "select ? -- of '2\n, ?"),
        ("select 1 /* it's */ + 1", "select ? /* it's */ + ?"),
        ('update t set a=\'x\' where ("t"."id" = 5);', 'update t set a=? where ("t"."id" = ?);'),
        ("pragma foreign_keys=1", "pragma foreign_keys=1"),
    ],
)
def test_statements_that_differ_in_values_have_one_key(sql: str, key: str) -> None:
    """Names and comments are part of it, whatever digits and quotes are in them."""
    assert parse(sql).key == key


@pytest.mark.parametrize(
    ("sql", "has_one_plan"),
    [
        ("update t set a = ? where id = ? or b", True),
        ("update t set a = 2 where id = 3", True),
        ("update t set a = 2 where id = 3 or 1=1", False),
        ("update t set a = 2 where id > 3", False),
        ("update t set a = (select 1 where 2) where id = 3", False),
    ],
)
def test_a_plan_is_kept_where_no_value_changes_it(sql: str, has_one_plan: bool) -> None:
    """With ``1=1`` an update finds all rows, with ``1=0`` the one of that number."""
    assert bool(parse(sql).plan) == has_one_plan
