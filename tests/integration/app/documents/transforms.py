"""Functions for ``--transform``."""

from threading import get_ident
from typing import Any


def doubled(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "n": document["n"] * 2}


def even(document: dict[str, Any]) -> dict[str, Any] | None:
    return document if document["n"] % 2 == 0 else None


def choosy(document: dict[str, Any]) -> dict[str, Any]:
    if document["n"] % 100 == 7:
        raise ValueError("a seven")
    return document


def threaded(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "thread": get_ident()}
