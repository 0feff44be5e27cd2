"""A file of the documents that could not be copied, each with its reason."""

import base64
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

import bson
from bson import json_util
from bson.errors import BSONError

from app.documents import ids
from greenline.errors import ConfigError


@dataclass(frozen=True)
class Failure:
    """
    A document that is not in the target.

    :param document: raw BSON, as in the source.
    :param reason: why it could not be copied, str.
    """

    document: bytes
    reason: str

    def line(self) -> str:
        """Return a line of JSON: the document as Extended JSON, or its BSON in base64."""
        fields = self._decoded() or {"bson": base64.b64encode(self.document).decode()}
        return json.dumps({"reason": self.reason, **fields}, ensure_ascii=False)

    def _decoded(self) -> dict[str, Any] | None:
        """Return the document as Extended JSON; None if decoding loses a part of it."""
        # Checked by encoding it again: decoding drops a repeated field name, for example.
        try:
            decoded = bson.decode(self.document, ids.DECODED)
            if bson.encode(decoded, codec_options=ids.DECODED) != self.document:
                return None
            options = json_util.CANONICAL_JSON_OPTIONS
            return {"document": json.loads(json_util.dumps(decoded, json_options=options))}
        except (BSONError, ValueError, OverflowError):
            return None


class FailureFile:
    """
    A file of lines, created at the first failure. Failures are appended to an existing file.

    :param path: of the file, Path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None
        self._lock = Lock()

    def write(self, failures: Iterable[Failure]) -> None:
        """
        Append a line for each failure, and return when they are on the disk.

        :raises ConfigError: the file cannot be written; the message names it.
        """
        text = "".join(f"{failure.line()}\n" for failure in failures)
        # Several threads write: without the lock lines could be mixed.
        with self._lock:
            try:
                self._append(text)
            except OSError as error:
                raise ConfigError(f"{self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _append(self, text: str) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace")
        self._file.write(text)
        self._file.flush()
        # The checkpoint may go beyond these documents once this returns.
        os.fsync(self._file.fileno())
