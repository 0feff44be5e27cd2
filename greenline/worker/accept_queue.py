"""Read from the kernel how many connections of a listening socket wait to be accepted."""

import os
import socket
import struct
from math import inf

TCP_INFO_BYTES, TCPI_UNACKED = 104, 24  # struct tcp_info of linux/tcp.h
# linux/netlink.h, linux/sock_diag.h and linux/unix_diag.h
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
UDIAG_SHOW_RQLEN, UNIX_DIAG_RQLEN = 0x10, 4
ALL_STATES = NO_COOKIE = 0xFFFFFFFF
MESSAGE = struct.Struct("=IHHII")
UNIX_DIAG_REQUEST = struct.Struct("=BBHIIIII")
UNIX_DIAG_ANSWER_BYTES = 16
ATTRIBUTE = struct.Struct("=HHII")
ANSWER_BYTES = 4096


def length(sock: socket.socket) -> float:
    """
    Return how many connections wait to be accepted.

    :param sock: a listening TCP or unix socket.
    :returns: their number; infinite if the queue is full or the kernel does not report it.
    """
    try:
        found = _unix(sock) if sock.family == socket.AF_UNIX else _tcp(sock)
    except OSError:
        return inf
    if found is None:
        return inf
    waiting, most = found
    return inf if waiting >= most else waiting


def _tcp(sock: socket.socket) -> tuple[int, int]:
    # For a listening socket, tcpi_unacked and tcpi_sacked are the queue's length and its limit.
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    waiting, most = struct.unpack_from("II", info, TCPI_UNACKED)
    return waiting, most


def _unix(sock: socket.socket) -> tuple[int, int] | None:
    # getsockopt() has nothing like it for unix sockets; sock_diag finds them by their inode.
    inode = os.fstat(sock.fileno()).st_ino
    request = UNIX_DIAG_REQUEST.pack(
        socket.AF_UNIX, 0, 0, ALL_STATES, inode, UDIAG_SHOW_RQLEN, NO_COOKIE, NO_COOKIE
    )
    size = MESSAGE.size + len(request)
    head = MESSAGE.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as diag:
        diag.settimeout(0)  # the kernel answers during send(): recv() never waits
        diag.send(head + request)
        answer = diag.recv(ANSWER_BYTES)
    start = MESSAGE.size + UNIX_DIAG_ANSWER_BYTES
    # A kernel without unix_diag answers with an error message.
    if (
        MESSAGE.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY
        or len(answer) < start + ATTRIBUTE.size
    ):
        return None
    _, kind, waiting, most = ATTRIBUTE.unpack_from(answer, start)
    return (waiting, most) if kind == UNIX_DIAG_RQLEN else None
