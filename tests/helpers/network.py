"""A network of the test's own, in which a peer can vanish: nothing is dropped anywhere else."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000  # sched.h

_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine does not give us a network of our own."""


class Network:
    """The loopback of a namespace, with a firewall of its own."""

    def drop(self, port: int) -> None:
        """Let the peer on *port* vanish: nothing comes from it or to it, not even a reset."""
        for end in ("--dport", "--sport"):
            _run("iptables", "-A", "INPUT", "-p", "tcp", end, str(port), "-j", "DROP")

    def pass_on(self) -> None:
        """Drop nothing any more."""
        _run("iptables", "-F", "INPUT")


@contextmanager
def private() -> Iterator[Network]:
    """
    Put this thread into a new network namespace, and take it back.

    Sockets stay in the one they were made in. The namespace goes with its last socket and process,
    and its rules with it, also after a kill -9.

    Raises:
        Unavailable: says why; it takes root, Linux and iptables.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _libc.unshare(CLONE_NEWNET):
            raise Unavailable(f"unshare: {os.strerror(ctypes.get_errno())}")
        try:
            _run("ip", "link", "set", "lo", "up")
            _run("iptables", "-L", "INPUT")
            yield Network()
        finally:
            assert _libc.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(before)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{' '.join(command)}: {error.stderr.strip()}") from None
