"""Compute a sum and keep its lines, so that the result can be checked by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """
    Describe one line of a sum.

    :param sign: the operation on the value of the lines before, str: empty (start with *number*),
        ``+``, ``-``, ``/`` (rounded down), ``<=`` (the lesser of both) or ``=`` (the result).
    :param number: the operand, or the result, int.
    :param name: the name of the number, str.
    :param meaning: an explanation, str, default empty.
    """

    sign: str
    number: int
    name: str
    meaning: str = ""


@dataclass
class Sum:
    """
    Compute a value line by line.

    :param lines: the lines so far, default none.
    :param value: the value so far, int, default 0.
    """

    lines: list[Line] = field(default_factory=list)
    value: int = 0

    def put(self, sign: str, number: int, name: str, meaning: str = "") -> "Sum":
        """
        Add a line, whose parameters are those of :class:`Line`.

        :returns: this sum, for chained calls.
        """
        self.value = {
            "": lambda: number,
            "+": lambda: self.value + number,
            "-": lambda: self.value - number,
            "/": lambda: self.value // number,
            "<=": lambda: min(self.value, number),
        }[sign]()
        self.lines.append(Line(sign, number, name, meaning))
        return self

    def result(self, name: str, meaning: str = "") -> int:
        """Add the line of the result, and return its value."""
        self.lines.append(Line("=", self.value, name, meaning))
        return self.value


def as_text(lines: Sequence[Line]) -> str:
    """Return *lines* as one line of text."""
    # No "+": it occurs only in the sums of a worker's pool, which are never passed here.
    words = {
        "": "{1} {0}",
        "-": " - {0} {1}",
        "/": ", by {0} {1}",
        "<=": ", at most {0} {1}",
        "=": " = {0}",
    }
    return "".join(words[line.sign].format(line.number, line.name) for line in lines)
