"""
Large objects in green mode, where psycopg2 refuses them.

libpq's functions for them wait for the server with the hub blocked. The server has the same ones
in SQL, which psycopg2 executes with waits in the hub.
"""

from collections.abc import Iterator
from typing import Any

import psycopg2
from psycopg2.extensions import INTEGER, LONGINTEGER, cursor, encodings, lobject, register_type
from psycopg2.extensions import connection as PsycopgConnection

INV_WRITE, INV_READ = 0x20000, 0x40000
PIECE_BYTES = 1 << 20  # of a statement
INT_MAX = 2**31 - 1


class GreenLobject(lobject):
    """
    A large object.

    :param conn: the connection, which greenlets may share.
    :param oid: its number, int; 0 makes one. Default 0.
    :param mode: ``r``, ``w``, ``rw`` or ``n``, with ``b`` or ``t``, str. Default ``rt``.
    :param new_oid: the number of one that is made, int. Default 0: any.
    :param new_file: the path of a file to read into one that is made. Default None.
    """

    # Not initialized in C, where it would have a connection.
    def __init__(
        self,
        conn: Any,
        oid: int | None = 0,
        mode: str | None = None,
        new_oid: int | None = 0,
        new_file: str | None = None,
    ) -> None:
        self._conn = conn
        self._fd = -1
        letters, self._is_binary = _parsed(mode or "")
        if conn.autocommit:
            raise psycopg2.ProgrammingError("can't use a lobject outside of transactions")
        self._mark = conn._mark
        self._oid = oid or 0
        if not self._oid:
            self._oid = self._make(new_oid or 0, new_file)
            letters = "w"
        flags = INV_READ * ("r" in letters) | INV_WRITE * ("w" in letters)
        if flags:
            self._fd = self._ask("lo_open(%s, %s)", self._oid, flags)
        self._mode = letters + ("b" if self._is_binary else "t") if letters else "n"

    @property
    def oid(self) -> int:
        """Its number."""
        return self._oid

    @property
    def mode(self) -> str:
        """The mode in which it was opened."""
        return self._mode

    @property
    def closed(self) -> bool:
        """Whether it, or its connection, is closed."""
        return self._fd < 0 or bool(self._conn.closed)

    def close(self) -> None:
        """Close it; the end of the transaction does so too."""
        if not self.closed and not self._conn.autocommit and self._conn._mark == self._mark:
            fd, self._fd = self._fd, -1
            self._ask("lo_close(%s)", fd)

    def read(self, size: int = -1) -> Any:
        """
        Return data from the current position on.

        :param size: bytes, int; -1 for all. Default -1.
        :returns: bytes, or str in text mode.
        """
        self._require_open()
        if size < 0:
            here = self.tell()
            size = self.seek(0, 2) - here
            self.seek(here)
        data = b"".join(self._pieces(self._fd, size))
        return data if self._is_binary else data.decode(encodings[self._conn.encoding])

    def write(self, data: Any) -> int:
        """
        Write at the current position, and return the number of bytes.

        :param data: bytes or str.
        """
        self._require_open()
        if isinstance(data, str):
            data = data.encode(encodings[self._conn.encoding])
        elif not isinstance(data, bytes):
            raise TypeError(f"lobject.write requires a string; got {type(data).__name__} instead")
        return self._write(self._fd, data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """
        Set the current position, and return it.

        :param offset: bytes, int.
        :param whence: 0 from the beginning, 1 from the current position, 2 from the end. Default 0.
        """
        self._require_open()
        return int(self._ask("lo_lseek64(%s, %s, %s)", self._fd, offset, whence))

    def tell(self) -> int:
        """Return the current position."""
        self._require_open()
        return int(self._ask("lo_tell64(%s)", self._fd))

    def truncate(self, len: int = 0) -> None:  # noqa: A002  (psycopg2's name)
        """
        Cut it, or fill it with zeros.

        :param len: the new length in bytes, int. Default 0.
        """
        self._require_open()
        self._ask("lo_truncate64(%s, %s)", self._fd, len)

    def unlink(self) -> None:
        """Close and delete it."""
        self.close()
        self._require_transaction()
        self._ask("lo_unlink(%s)", self._oid)

    def export(self, filename: str) -> None:
        """
        Write it into a file of this machine.

        :param filename: the path.
        """
        self._require_transaction()
        fd = self._ask("lo_open(%s, %s)", self._oid, INV_READ)
        try:
            with open(filename, "wb") as file:
                for piece in self._pieces(fd):
                    file.write(piece)
        except OSError as error:
            raise psycopg2.OperationalError(
                f'could not write file "{filename}": {error}'
            ) from error
        self._ask("lo_close(%s)", fd)

    def _make(self, new_oid: int, new_file: str | None) -> int:
        if new_file is None:
            return int(self._ask("lo_create(%s)", new_oid))
        try:
            with open(new_file, "rb") as file:
                oid = int(self._ask("lo_create(%s)", new_oid))
                fd = self._ask("lo_open(%s, %s)", oid, INV_WRITE)
                while data := file.read(PIECE_BYTES):
                    self._write(fd, data)
        except OSError as error:
            text = f'could not read file "{new_file}": {error}'
            raise psycopg2.OperationalError(text) from error
        self._ask("lo_close(%s)", fd)
        return oid

    def _write(self, fd: int, data: bytes) -> int:
        for at in range(0, len(data), PIECE_BYTES):
            self._ask("lowrite(%s, %s)", fd, psycopg2.Binary(data[at : at + PIECE_BYTES]))
        return len(data)

    def _pieces(self, fd: int, size: int | None = None) -> Iterator[bytes]:
        """Yield what comes next, at most *size* bytes."""
        while size is None or size > 0:
            wanted = PIECE_BYTES if size is None else min(PIECE_BYTES, size)
            piece = bytes(self._ask("loread(%s, %s)", fd, wanted))
            if not piece:
                return
            yield piece
            if size is not None:
                size -= len(piece)

    def _require_open(self) -> None:
        if self.closed:
            raise psycopg2.InterfaceError("lobject already closed")
        self._require_transaction()
        if self._conn._mark != self._mark:
            raise psycopg2.ProgrammingError("lobject isn't valid anymore")

    def _require_transaction(self) -> None:
        if self._conn.autocommit:
            raise psycopg2.ProgrammingError("can't use a lobject outside of transactions")

    def _ask(self, call: str, *values: Any) -> Any:
        """Return what a function of the server returns."""
        conn = self._conn
        is_outer = conn._acquire()
        try:
            # psycopg2's class and types: the application's may log, or return other values.
            with PsycopgConnection.cursor(conn._live(), cursor_factory=cursor) as curs:
                for kind in (INTEGER, LONGINTEGER, psycopg2.BINARY):
                    register_type(kind, curs)
                curs.execute(f"select pg_catalog.{call}", values)
                (value,) = curs.fetchone() or (None,)
                return value
        except psycopg2.OperationalError:
            raise
        except psycopg2.DatabaseError as error:
            # What psycopg2 raises for each error of these functions.
            raise psycopg2.OperationalError(str(error)) from error
        finally:
            if is_outer:
                conn._release()


def _parsed(mode: str) -> tuple[str, bool]:
    """Return ``r``, ``w``, ``rw`` or nothing for the mode, and whether it is binary."""
    letters = next((each for each in ("rw", "r", "w", "n") if mode.startswith(each)), "")
    kind = mode.removeprefix(letters)
    if kind not in ("", "b", "t"):
        raise ValueError(f"bad mode for lobject: '{mode}'")
    return {"": "r", "n": ""}.get(letters, letters), kind == "b"
