"""
What becomes of each document on its way: new ids, and a function of the user's.

A document that needs neither is not decoded: one with invalid UTF-8 or duplicate names is copied
unchanged.
"""

import importlib
import os
import sys
from collections.abc import Callable
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
    Return the function that *name* names.

    :param name: ``module:function``, of the working directory or of what is installed.
    :raises ConfigError: there is none, or its module cannot be imported.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"--transform {name}: must be MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--transform {name}: {_in_one_line(error)}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise ConfigError(f"--transform {name}: the module has no such function")
    transform: Transform = found
    return transform


@dataclass
class Prepared:
    """
    A batch as it is to be written.

    :param documents: raw BSON.
    :param read: the same documents as the source has them.
    :param failures: those that could not be transformed.
    :param skipped: how many the transform left out, int.
    """

    documents: list[bytes] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: int = 0


@dataclass(frozen=True)
class Recipe:
    """
    What turns a document of the source into one of the target: always the same one.

    :param identity: makes the new ids, at most 64 bytes; None keeps the old ones.
    :param transform: the user's function; None leaves the documents as they are.
    :param max_document_bytes: of the target.
    """

    identity: bytes | None
    transform: Transform | None
    max_document_bytes: int

    @property
    def is_plain(self) -> bool:
        """Return whether documents arrive as they are."""
        return self.identity is None and self.transform is None

    def prepare(self, documents: list[bytes]) -> Prepared:
        """Return what is to be written for *documents*, and those for which nothing can be."""
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
        Return what is to be written for *document*; None when the transform leaves it out.

        :raises TransformRefused: nothing can be written.
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
            made = ids.with_id(transformed, new)
        elif self.identity is not None:
            made = ids.with_id(document, new)
        if len(made) > self.max_document_bytes:
            raise TransformRefused(
                f"it has {len(made):,} bytes, and {self.max_document_bytes:,} may be"
            )
        return made

    def new_id(self, element: bytes) -> bytes:
        """Return the element of the ``_id`` that the document of this *element* has there."""
        return element if self.identity is None else ids.derived(element, self.identity)


class TransformRefused(Exception):
    """Nothing can be written for a document; the message says why."""


def _transformed(transform: Transform, document: bytes) -> bytes | None:
    try:
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
        # Whatever the user's function raises is this document's failure, and no other's.
        raise TransformRefused(_in_one_line(error)) from error


def _in_one_line(error: BaseException) -> str:
    """Return the type of *error* and the first line of its text."""
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    return f"{kind}: {lines[0]}" if lines else kind
