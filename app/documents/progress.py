"""
Show the progress of a command: a live line on a terminal, plain lines elsewhere, or JSON.

Progress goes to stderr, because stdout may be piped; JSON lines go to stdout.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import click

LINE_EVERY_S = 5.0
JSON_EVERY_S = 1.0


class Display(ABC):
    """
    Count documents or changes, and show the count.

    :param what: the participle of the action, such as "copied".
    :param total: documents in all, int; 0 if not known.
    :param done: documents that an earlier run did, int. Default 0.
    :param noun: the things that are counted. Default "documents".
    """

    def __init__(self, what: str, total: int, done: int = 0, noun: str = "documents") -> None:
        self.what = what
        self.noun = noun
        # An estimate of the server may be too low.
        self.total = max(total, done)
        self.done = done
        self._before = done
        self._begin = monotonic()

    @property
    def rate(self) -> float:
        """Documents per second in this run."""
        # Without those of an earlier run, which took no time of this one.
        return (self.done - self._before) / max(monotonic() - self._begin, 0.001)

    @property
    def seconds(self) -> float:
        """Seconds since this run began."""
        return monotonic() - self._begin

    @property
    def left_s(self) -> float | None:
        """Seconds left at this rate; None if the total or the rate is unknown."""
        if not self.total or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    def update(self, done: int) -> None:
        """Set the number of documents done, and show it if it is time."""
        self.done = done
        self.show()

    @abstractmethod
    def show(self) -> None:
        """Show the numbers, if it is time; called about once a second."""

    @abstractmethod
    def end(self, text: str, **numbers: Any) -> None:
        """
        Show the result.

        :param text: for people.
        :param numbers: for programs.
        """

    def close(self) -> None:
        """Restore the terminal, if the display has changed it."""
        return


class Lines(Display):
    """
    Plain lines on stderr, for a stderr that is no terminal.

    :param what: the participle of the action, such as "copied", str.
    :param total: documents in all, int; 0 if not known.
    :param done: documents that an earlier run did, int. Default 0.
    :param noun: the things that are counted, str. Default "documents".
    """

    def __init__(self, what: str, total: int, done: int = 0, noun: str = "documents") -> None:
        super().__init__(what, total, done, noun)
        self._next = monotonic() + LINE_EVERY_S

    def show(self) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + LINE_EVERY_S
            click.echo(self._line(), err=True)

    def end(self, text: str, **numbers: Any) -> None:
        click.echo(text)

    def _line(self) -> str:
        of = f" of about {self.total:,}" if self.total else ""
        left = self.left_s
        to_go = "" if left is None else f", {_duration(left)} left"
        return f"{self.what} {self.done:,}{of} {self.noun}, {self.rate:,.0f}/s{to_go}"


class Json(Display):
    """
    Lines of JSON on stdout, the last one with the result.

    :param what: the participle of the action, such as "copied", str.
    :param total: documents in all, int; 0 if not known.
    :param done: documents that an earlier run did, int. Default 0.
    :param noun: the things that are counted, str. Default "documents".
    """

    def __init__(self, what: str, total: int, done: int = 0, noun: str = "documents") -> None:
        super().__init__(what, total, done, noun)
        self._next = monotonic() + JSON_EVERY_S

    def show(self) -> None:
        if monotonic() >= self._next:
            self._next = monotonic() + JSON_EVERY_S
            left = self.left_s
            self._write(
                event="progress",
                total=self.total,
                rate=round(self.rate, 1),
                left_s=None if left is None else round(left, 1),
                **{self.noun: self.done},
            )

    def end(self, text: str, **numbers: Any) -> None:
        self._write(event="end", seconds=round(self.seconds, 3), **numbers)

    def _write(self, **numbers: Any) -> None:
        click.echo(json.dumps(numbers))


class Live(Display):
    """
    A line on the terminal that changes in place.

    :param what: the participle of the action, such as "copied", str.
    :param total: documents in all, int; 0 if not known.
    :param done: documents that an earlier run did, int. Default 0.
    :param noun: the things that are counted, str. Default "documents".
    """

    def __init__(self, what: str, total: int, done: int = 0, noun: str = "documents") -> None:
        super().__init__(what, total, done, noun)
        # Imported here: it takes a tenth of a second, and only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = [
            TextColumn(what),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of about {task.total:,.0f} " + noun),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(what, total=self.total, completed=done, rate="")
        self._bar.start()

    def show(self) -> None:
        # The total is an estimate: a bar must not exceed it.
        total = max(self.total, self.done)
        rate = f"{self.rate:,.0f}/s"
        self._bar.update(self._task, completed=self.done, total=total, rate=rate)

    def end(self, text: str, **numbers: Any) -> None:
        self.close()
        click.echo(text)

    def close(self) -> None:
        self._bar.stop()


@contextmanager
def display(
    what: str, total: int, done: int = 0, noun: str = "documents", *, as_json: bool
) -> Iterator[Display]:
    """
    Show progress for the length of a ``with`` block.

    :param what: the participle of the action, such as "copied".
    :param total: documents in all, int; 0 if not known.
    :param done: documents that an earlier run did, int. Default 0.
    :param noun: the things that are counted. Default "documents".
    :param as_json: lines of JSON instead of text, bool.
    """
    kind: type[Display] = Json if as_json else Live if sys.stderr.isatty() else Lines
    shown = kind(what, total, done, noun)
    try:
        yield shown
    finally:
        shown.close()


def plural(count: int) -> str:
    """Return the noun for *count* documents."""
    return "document" if count == 1 else "documents"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
