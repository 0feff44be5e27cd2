"""A clock that a test sets, in place of the one by which something is measured."""


class Clock:
    """
    Returns ``now``, which changes only where a test sets it, however busy the machine is.

    :param now: what it begins with, seconds, float. Default 100.
    """

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
