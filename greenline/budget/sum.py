"""A sum that shows how it came about, line by line, so that a person can check it by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Line:
    """
    A line of the sum: *sign* says what *number* does to the result of the lines before.

    Nothing begins anew, then ``+``, ``-``, ``/`` (rounded down), ``<=`` (no more than); ``=``
    is the result.
    """

    sign: str
    number: int
    name: str
    meaning: str = ""


@dataclass
class Sum:
    """Lines that add up because each result is computed from those before it."""

    lines: list[Line] = field(default_factory=list)
    value: int = 0

    def put(self, sign: str, number: int, name: str, meaning: str = "") -> "Sum":
        """Add a line, *number* being what is counted or divided by, and return the sum."""
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
        """Add the line of the result, and return it."""
        self.lines.append(Line("=", self.value, name, meaning))
        return self.value


def as_text(lines: Sequence[Line]) -> str:
    """Return *lines* as one line of text."""
    words = {
        "": "{1} {0}",
        "-": " - {0} {1}",
        "/": ", by {0} {1}",
        "<=": ", at most {0} {1}",
        "=": " = {0}",
    }
    return "".join(words[line.sign].format(line.number, line.name) for line in lines)
