"""mysql-connector-python's cursors ask for row after row, of which some are read ahead."""

from types import SimpleNamespace
from typing import Any

import pytest
from gevent.monkey import get_original

from greenline.offload import mysql_connector

get_ident = get_original("_thread", "get_ident")
END = {"status": 0}


def connected() -> Any:
    """Return a connection of a class with the methods of the driver's that read a result."""

    class CMySQLConnection:
        autocommit = database = property(lambda self: 0, lambda self, value: None)

        def __init__(self) -> None:
            self.left: list[int] = []
            self.idents: set[int] = set()

        def cmd_query(self, rows: int) -> None:
            self.left = list(range(rows))

        def get_rows(self, count: int | None = None, raw: bool = False) -> Any:
            self.idents.add(get_ident())
            taken = self.left[:count]
            del self.left[:count]
            if count is not None and len(taken) == count:
                return taken, None
            self.free_result()
            return taken, END

        def get_row(self) -> Any:
            raise NotImplementedError

        def free_result(self) -> None:
            self.left = []

        @property
        def unread_result(self) -> bool:
            return bool(self.left)

    module: Any = SimpleNamespace(CMySQLConnection=CMySQLConnection)
    mysql_connector.patch(module)
    return module.CMySQLConnection()


@pytest.mark.parametrize("rows", [1, 99, 100, 250])
def test_row_after_row(rows: int) -> None:
    """Until the end, of which the server says something."""
    conn = connected()
    conn.cmd_query(rows)
    for number in range(rows):
        assert conn.unread_result
        assert conn.get_row(raw=False) == (number, None)
    assert conn.get_row() == (None, END)
    assert not conn.unread_result
    assert get_ident() not in conn.idents


def test_rows_that_were_read_ahead_come_first() -> None:
    """Whatever is asked for next."""
    conn = connected()
    conn.cmd_query(250)
    assert conn.get_row() == (0, None)
    assert conn.get_rows(2) == ([1, 2], None)
    assert conn.get_rows(150) == (list(range(3, 153)), None)
    assert conn.get_row() == (153, None)
    assert conn.get_rows() == (list(range(154, 250)), END)
    conn.cmd_query(5)
    assert conn.get_row() == (0, None)
    assert conn.get_rows() == ([1, 2, 3, 4], END)


def test_another_statement_forgets_them() -> None:
    """And what frees the result."""
    conn = connected()
    conn.cmd_query(5)
    conn.get_row()
    conn.free_result()
    assert not conn.unread_result
    conn.cmd_query(5)
    conn.get_row()
    conn.cmd_query(1)
    assert conn.get_rows() == ([0], END)
