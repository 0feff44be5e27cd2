"""Describe the requests of a worker at one moment, for the search of the limit."""

from typing import NamedTuple


class Load(NamedTuple):
    """
    Describe the requests of a worker at one moment.

    :param in_progress: the number of requests in progress, int.
    :param waiting: the number of requests in the queue, int; at 0 the limit does not grow.
        Default 0, as for all that follow.
    :param blocked: the number of requests in progress that wait for a lock or a connection which
        others of them hold, int.
    :param starved: the number of those that wait for a connection that a server refuses, int.
    :param spare: the number of idle handlers, int. Each may keep such a connection.
    :param interrupted: the number of requests in progress that compute, and wait for a turn or a
        thread, int.
    :param idle: the share of the time since the previous record in which the hub was idle, float.
    """

    in_progress: int
    waiting: int = 0
    blocked: int = 0
    starved: int = 0
    spare: int = 0
    interrupted: int = 0
    idle: float = 0.0
