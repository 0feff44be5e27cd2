"""Documents that could not be copied: in a file, each with its reason."""

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
    """A document of the source as raw BSON, and why it is not in the target."""

    document: bytes
    reason: str

    def line(self) -> str:
        """Return a line of JSON: the document as Extended JSON, or its BSON in base64."""
        fields = self._decoded() or {"bson": base64.b64encode(self.document).decode()}
        return json.dumps({"reason": self.reason, **fields}, ensure_ascii=False)

    def _decoded(self) -> dict[str, Any] | None:
        """Return the document as Extended JSON; None where decoding it loses something."""
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
    A file of lines, made when the first document fails, and continued if it is there.

    :raises ConfigError: it cannot be written; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None
        self._lock = Lock()

    def write(self, failures: Iterable[Failure]) -> None:
        """Append a line each, and return when they are on the disk: a checkpoint counts on it."""
        text = "".join(f"{failure.line()}\n" for failure in failures)
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
        os.fsync(self._file.fileno())
