"""
Change documents during a copy: new ids, and a function of the user.

Without such a function a document is not decoded, so one with invalid UTF-8 or repeated names is
copied unchanged.
"""

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import bson

from app.documents import ids
from app.documents.failures import Failure
from greenline.errors import ConfigError

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]

LOSSY = "decoding it loses something: a name that is there twice, or a type that BSON has given up"


def load(name: str) -> Transform:
    """
    Return a function by its name.

    :param name: ``module:function``, in the working directory or in an installed package.
    :raises ConfigError: there is none, or its module cannot be imported.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"--transform {name}: must be MODULE:FUNCTION")
    cwd = os.getcwd()
    sys.path.insert(0, cwd)
    try:
        found = getattr(importlib.import_module(module), function, None)
    # The user's module may raise anything while it is imported, and may call sys.exit().
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--transform {name}: {_in_one_line(error)}") from error
    finally:
        with suppress(ValueError):  # the user's module may change sys.path itself
            sys.path.remove(cwd)
    if not callable(found):
        raise ConfigError(f"--transform {name}: the module has no such function")
    transform: Transform = found
    return transform


@dataclass
class Prepared:
    """
    A batch that is ready to be written.

    :param documents: raw BSON for the target. Default none.
    :param read: the same documents as in the source. Default none.
    :param failures: documents that could not be transformed. Default none.
    :param skipped: documents that the transform left out, int. Default 0.
    """

    documents: list[bytes] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: int = 0


@dataclass(frozen=True)
class Recipe:
    """
    Convert documents of the source to those of the target, always with the same result.

    :param identity: key for new ids, at most 64 bytes; None keeps the old ids.
    :param transform: the user's function; None leaves documents unchanged.
    :param max_document_bytes: the target's limit, int.
    """

    identity: bytes | None
    transform: Transform | None
    max_document_bytes: int

    @property
    def is_plain(self) -> bool:
        """Whether documents are copied unchanged."""
        return self.identity is None and self.transform is None

    def prepare(self, documents: list[bytes]) -> Prepared:
        """Return the batch for *documents*, with a failure for each that cannot be converted."""
        prepared = Prepared()
        for document in documents:
            try:
                made = self.one(document)
            except TransformRefused as error:
                prepared.failures.append(Failure(document, str(error)))
                continue
            if made is None:
                prepared.skipped += 1
            else:
                prepared.documents.append(made)
                prepared.read.append(document)
        return prepared

    def one(self, document: bytes) -> bytes | None:
        """
        Return the target's document; None if the transform leaves it out.

        :raises TransformRefused: the document cannot be converted.
        """
        element = ids.id_of(document)
        if element is None:
            raise TransformRefused("it has no _id")
        new = self.new_id(element)
        made = document
        if self.transform is not None:
            transformed = _transformed(self.transform, document)
            if transformed is None:
                return None
            # Set also without --new-ids: the transform may have removed the _id.
            made = ids.with_id(transformed, new)
        elif self.identity is not None:
            made = ids.with_id(document, new)
        # Checked here: the driver would refuse the whole batch.
        if len(made) > self.max_document_bytes:
            raise TransformRefused(
                f"it has {len(made):,} bytes, and {self.max_document_bytes:,} may be"
            )
        return made

    def new_id(self, element: bytes) -> bytes:
        """Return the element of the target's ``_id`` for that of the source."""
        return element if self.identity is None else ids.derived(element, self.identity)


class TransformRefused(Exception):
    """A document cannot be converted; the message has the reason."""


def _transformed(transform: Transform, document: bytes) -> bytes | None:
    try:
        # Encoded again for comparison: decoding must not lose anything before the user's function
        # changes the document.
        decoded = bson.decode(document, ids.DECODED)
        if bson.encode(decoded, codec_options=ids.DECODED) != document:
            raise TransformRefused(LOSSY)
        old = decoded["_id"]
        made = transform(decoded)
        if made is None:
            return None
        if made.get("_id", old) != old:
            raise TransformRefused("the transform gave it another _id")
        return bson.encode(made, codec_options=ids.DECODED)
    except TransformRefused:
        raise
    except (Exception, SystemExit) as error:
        # Any error of the user's function is a failure of this document only.
        raise TransformRefused(_in_one_line(error)) from error


def _in_one_line(error: BaseException) -> str:
    """Return the type of *error* and the first line of its text."""
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    return f"{kind}: {lines[0]}" if lines else kind
