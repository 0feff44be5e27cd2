"""How many bytes a descriptor takes in one piece; without gevent, for processes that have none."""

import os
import select
import stat

FILE_BYTES = 32_768  # what a unix socket, such as that of journald, takes in one piece


def piece_bytes(fd: int) -> int:
    """Return how many bytes a descriptor takes in one piece, whatever other processes write."""
    # Lines of several processes must not be mixed. A pipe takes up to PIPE_BUF bytes in one piece,
    # a file opened for appending any number.
    return select.PIPE_BUF if stat.S_ISFIFO(os.fstat(fd).st_mode) else FILE_BYTES
