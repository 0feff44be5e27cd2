"""
Compare what several servers answer to the same question.

JSON is compared parsed: blanks and the order of an object's names may differ, a type may not
(to Python, 1 and 1.0 and true are equal).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Answer = tuple[int, bytes]


def differences(answers: Mapping[str, Answer], part: str | None = None) -> Iterator[str]:
    """Say who answered something else than the first did, and where; of objects only *part*."""
    first, *others = answers
    try:
        expected = _parsed(answers[first], part)
    except ValueError as error:
        yield f"{first} {error}"
        return
    for who in others:
        try:
            place = _first_difference(expected, _parsed(answers[who], part))
        except ValueError as error:
            yield f"{who} {error}"
            continue
        if place is not None:
            yield f"{who} answers something else than {first} at {place or 'the top'}"


def _parsed(answer: Answer, part: str | None) -> Any:
    status, body = answer
    if status != 200:
        raise ValueError(f"answers {status}")
    try:
        found = json.loads(body)
    except ValueError as error:
        raise ValueError(f"answers no JSON: {body[:80]!r}") from error
    if part is None:
        return found
    if not isinstance(found, dict) or part not in found:
        raise ValueError(f"answers no {part}")
    return {part: found[part]}


def _first_difference(one: Any, other: Any, place: str = "") -> str | None:
    """Return where two JSON values differ, as a JSON pointer (RFC 6901); None: nowhere."""
    if type(one) is not type(other):
        return place
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return place
        pairs = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, list):
        if len(one) != len(other):
            return place
        pairs = [(index, *both) for index, both in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else place
    found = (_first_difference(a, b, f"{place}/{key}") for key, a, b in pairs)
    return next((each for each in found if each is not None), None)
