"""What the requests of a worker do at one moment, as those see it that find the limit."""

from typing import NamedTuple


class Load(NamedTuple):
    """
    One look at the requests.

    :param in_progress: how many requests are worked on.
    :param waiting: how many requests wait for the limit; if none does, it does not grow.
    :param blocked: how many in progress wait for what others of them hold: a lock, a pool.
    :param starved: how many of those wait for a connection that a server refuses.
    :param spare: how many handlers are idle: what they keep may be such a connection.
    :param idle: the share of the time since the last call in which the hub had nothing to do.
    """

    in_progress: int
    waiting: int = 0
    blocked: int = 0
    starved: int = 0
    spare: int = 0
    idle: float = 0.0
