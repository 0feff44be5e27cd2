"""What is seen of an application while it runs: one document for each process."""

from dataclasses import dataclass, field

from greenline.hub.watchdog import Stack

FOLDER = "GREENLINE_DOCTOR"  # the variable that names the folder of the documents


@dataclass
class Site:
    """
    Blocks of the hub by one stack.

    :param stack: its frames, the outermost first.
    :param waits: whether it waits below Python, bool; otherwise it computes.
    :param count: the number of blocks, int.
    :param total_s: how long they took together, float seconds.
    :param longest_s: how long the longest took, float seconds.
    """

    stack: Stack
    waits: bool
    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


@dataclass
class Blocks:
    """
    All blocks of a run.

    :param seconds: the length of the run, float.
    :param waits_s: how long the hub was blocked by waits below Python, float.
    :param computes_s: how long it was blocked by computing, float.
    :param sites: the blocks by stack, those that took longest first.
    """

    seconds: float
    waits_s: float = 0.0
    computes_s: float = 0.0
    sites: list[Site] = field(default_factory=list)


@dataclass
class Requests:
    """
    What requests have done.

    :param count: their number, int.
    :param longest_s: by path, the longest, float seconds.
    :param trips: by path, the most round trips to databases that one has made, int.
    :param greenlets: the greenlets that requests have started and that run at the end, int.
    :param grown_kib: how much the process has grown after the first fifty, int KiB.
    :param timeout_s: REQUEST_TIMEOUT, float seconds; None: unset.
    """

    count: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)
    trips: dict[str, int] = field(default_factory=dict)
    greenlets: int = 0
    grown_kib: int = 0
    timeout_s: float | None = None


@dataclass
class Connections:
    """
    What became of connections: how many, by the file and line that made them.

    :param outside: connections, and clients that connect for themselves, that were made in a
        request, and not by a pool.
    :param left_open: the connections of these that were open when the request had ended.
    :param in_transaction: those with an open transaction when the request had ended that has used
        them last.
    :param of_django: how many Django has made in requests whose end closes them, int.
    """

    outside: dict[str, int] = field(default_factory=dict)
    left_open: dict[str, int] = field(default_factory=dict)
    in_transaction: dict[str, int] = field(default_factory=dict)
    of_django: int = 0


@dataclass
class Observations:
    """
    What was seen in one process.

    :param blocks: what has blocked the hub.
    :param requests: what requests have done.
    :param connections: what became of connections.
    """

    blocks: Blocks
    requests: Requests
    connections: Connections
