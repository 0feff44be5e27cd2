"""greenline.postgres.named: what a slow request's line shows of a statement."""

import pytest

from greenline.postgres.named import MAX_TEXT, shown


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select *\n  from orders\n where id = %s", "select * from orders where id = %s"),
        ("select 'secret\nof two lines', 1 -- and a comment", "select ?, ?"),
        (f"select 1, '{'secret' * MAX_TEXT}'"[:MAX_TEXT], "select ?, ? ..."),
        ("", ""),
    ],
    ids=["several lines", "values", "a text that is cut", "nothing"],
)
def test_it_has_one_line_and_no_values(statement: str, expected: str) -> None:
    """A text that is cut off in the middle of a value is one of them."""
    assert shown(statement) == expected
