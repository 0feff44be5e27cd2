"""
The servers that ``bench.compatibility`` has the libraries wait for, all on 127.0.0.1.

A call that is to wait has ``wait-SECONDS-NUMBER`` in it. The servers of the standard library wait
by themselves. The real ones are behind a proxy, which delays what a client sends. Every server is
a context manager that gives its address, ``host:port``.
"""

import json
import re
import socket
import socketserver
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.servers import free_port
from embedded import debian
from embedded.mongo import Mongo
from embedded.postgres import TMP, temporary
from embedded.process import Child, listens, wait_until
from embedded.redis import Redis
from greenline.errors import ConfigError

HOST = "127.0.0.1"
WORD = re.compile(rb"wait-([\d.]+)-(\d+)")
START_TIMEOUT_S = 30
# A deaf server ends a connection after this time, so that no wait is for ever.
DEAF_S = 3.0
BACKLOG = 128
PIECE_BYTES = 65536

Open = AbstractContextManager[str]


def wait_as_asked(data: bytes) -> None:
    """Sleep for the seconds that *data* asks for, if it does."""
    if found := WORD.search(data):
        time.sleep(float(found[1]))


@contextmanager
def _serving(server: Any, port: int) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: interrupted clients leave in the middle of a conversation."""


def _tcp(handle: Callable[[socket.socket], object]) -> Open:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handle(self.request)

    server = _Tcp((HOST, 0), Handler)
    return _serving(server, server.server_address[1])


def deaf() -> Open:
    """Accept and never answer."""

    def handle(client: socket.socket) -> None:
        until = time.monotonic() + DEAF_S
        client.settimeout(DEAF_S)
        with suppress(TimeoutError):
            while client.recv(PIECE_BYTES) and time.monotonic() < until:
                pass

    return _tcp(handle)


def delayed(target: tuple[str, int] | str) -> Open:
    """
    Pass on what clients and a server send, and delay the former as they ask.

    :param target: host and port, or the path of a unix socket.
    """

    def copy(source: socket.socket, sink: socket.socket, before: Callable[[bytes], None]) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                before(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle(client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(target, str) else socket.AF_INET
        with socket.socket(family) as server:
            server.connect(target)
            back = threading.Thread(
                target=copy, args=(server, client, lambda data: None), daemon=True
            )
            back.start()
            copy(client, server, wait_as_asked)
            back.join()

    return _tcp(handle)


def http() -> Open:
    """Answer each request with JSON in which the word of the request stands where APIs have ids."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = self.path.encode() + body
            wait_as_asked(asked)
            found = WORD.search(asked)
            word = found[0].decode() if found else ""
            kind = "application/json"
            if "elasticsearch" in (accept := self.headers.get("Accept") or ""):
                kind = accept.partition(",")[0]
            names = ("id", "_id", "name", "word")
            text = json.dumps({**dict.fromkeys(names, word), "object": "customer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names of http.server

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = BACKLOG
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server((HOST, 0), Handler)
    return _serving(server, server.server_address[1])


def smtp() -> Open:
    """Take each mail, and wait as its sender's address says."""

    def handle(client: socket.socket) -> None:
        file = client.makefile("rwb")

        def say(line: bytes) -> None:
            file.write(line + b"\r\n")
            file.flush()

        say(b"220 ready")
        while line := file.readline():
            wait_as_asked(line)
            if line.upper().startswith(b"DATA"):
                say(b"354 go on")
                while file.readline() not in (b".\r\n", b""):
                    pass
            say(b"221 bye" if line.upper().startswith(b"QUIT") else b"250 ok")

    return _tcp(handle)


def dns() -> Open:
    """Answer each question over UDP with 127.0.0.1, and wait as its first label says."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, own = self.request
            wait_as_asked(data)
            question = data[12 : data.index(b"\0", 12) + 5]
            head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0)
            answer = struct.pack("!HHHIH4B", 0xC00C, 1, 1, 0, 4, 127, 0, 0, 1)
            own.sendto(head + question + answer, self.client_address)

    class Server(socketserver.ThreadingUDPServer):
        daemon_threads = True
        block_on_close = False

    server = Server((HOST, 0), Handler)
    return _serving(server, server.server_address[1])


def tds() -> Open:
    """Answer each statement for SQL Server with a row that has the word of the statement."""

    def text(value: str) -> bytes:
        return value.encode("utf-16-le")

    def handle(client: socket.socket) -> None:
        file = client.makefile("rwb")
        done = struct.pack("<BHHQ", 0xFD, 0, 0, 0)
        name, found = "word", ""
        while len(head := file.read(8)) == 8:
            kind, _, size, *_ = struct.unpack("!BBHHBB", head)
            data = file.read(size - 8)
            if kind == 0x12:  # PRELOGIN: the version, and no encryption
                answer = bytes([0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 255, 16, 0, 0, 0, 0, 0, 2])
            elif kind == 0x10:  # LOGIN7
                server = struct.pack("!BIB", 1, 0x74000004, len(name)) + text(name) + bytes(4)
                answer = struct.pack("<BH", 0xAD, len(server)) + server + done
            else:  # a batch
                asked = data.decode("utf-16-le", "replace").encode()
                wait_as_asked(asked)
                answer = done
                if word := WORD.search(asked):
                    found = word[0].decode()
                    column = struct.pack("<HIHBH5sB", 1, 0, 1, 0xE7, 200, bytes(5), len(name))
                    row = struct.pack("<BH", 0xD1, 2 * len(found)) + text(found)
                    answer = b"\x81" + column + text(name) + row
                    answer += struct.pack("<BHHQ", 0xFD, 0x10, 0xC1, 1)
            file.write(struct.pack("!BBHHBB", 4, 1, 8 + len(answer), 0, 1, 0) + answer)
            file.flush()

    return _tcp(handle)


@contextmanager
def none() -> Iterator[str]:
    """Serve nothing: the library computes."""
    yield ""


@contextmanager
def redis() -> Iterator[str]:
    """Run Debian's redis-server."""
    with Redis() as server, delayed((HOST, server.port)) as address:
        yield address


@contextmanager
def postgres() -> Iterator[str]:
    """Run our embedded Postgres, which listens on a unix socket only."""
    with temporary() as server, delayed(server.socket) as address:
        yield address


@contextmanager
def mongo() -> Iterator[str]:
    """Run our embedded MongoDB."""
    with (
        _folder("mongo") as folder,
        Mongo(folder, durable=False) as server,
        delayed((HOST, server.port)) as address,
    ):
        yield address


@contextmanager
def mariadb() -> Iterator[str]:
    """Run Debian's MariaDB with no tables of its own: each user may do everything."""
    unpacked = debian.unpacked("mariadb-server-core")
    messages = f"--lc-messages-dir={unpacked}/usr/share/mysql"

    def command(port: int, folder: Path) -> list[str | Path]:
        place = [f"--datadir={folder}", f"--socket={folder}/socket", f"--port={port}"]
        return [
            unpacked / "usr/sbin/mariadbd", "--no-defaults", "--user=root", "--skip-grant-tables",
            f"--bind-address={HOST}", messages, *place,
        ]  # fmt: skip

    with _debian(unpacked, command) as address:
        yield address


@contextmanager
def memcached() -> Iterator[str]:
    """Run Debian's memcached."""
    unpacked = debian.unpacked("memcached")

    def command(port: int, folder: Path) -> list[str | Path]:
        return [unpacked / "usr/bin/memcached", "-l", HOST, "-p", str(port), "-u", "root"]

    with _debian(unpacked, command) as address:
        yield address


@contextmanager
def nats() -> Iterator[str]:
    """Run Debian's nats-server."""
    unpacked = debian.unpacked("nats-server")

    def command(port: int, folder: Path) -> list[str | Path]:
        return [unpacked / "usr/sbin/nats-server", "-a", HOST, "-p", str(port)]

    with _debian(unpacked, command) as address:
        yield address


@contextmanager
def slapd() -> Iterator[str]:
    """Run Debian's slapd without entries: each search finds the root."""
    unpacked = debian.unpacked("slapd")

    def command(port: int, folder: Path) -> list[str | Path]:
        conf = folder / "slapd.conf"
        conf.write_text(f"pidfile {folder}/pid\nargsfile {folder}/args\n")
        # With -d it stays in the foreground.
        return [
            unpacked / "usr/sbin/slapd", "-d", "0", "-f", conf, "-h", f"ldap://{HOST}:{port}",
        ]  # fmt: skip

    with _debian(unpacked, command) as address:
        yield address


@contextmanager
def _debian(unpacked: Path, command: Callable[[int, Path], list[str | Path]]) -> Iterator[str]:
    """
    Run a server behind the proxy.

    :param unpacked: the folder of its package.
    :param command: returns its command; takes the port and an empty folder.
    :raises ConfigError: it does not start; says why.
    """
    port = free_port()
    with _folder(unpacked.name) as folder:
        words = command(port, folder)
        child, log = Child(unpacked.name), folder / "log"
        try:
            with log.open("wb") as output:
                child.start(words, output=output, env=debian.environment(unpacked))
            wait_until(lambda: listens(port) or not child.alive(), START_TIMEOUT_S)
            if not child.alive() or not listens(port):
                lines = log.read_text(errors="replace").strip().splitlines()
                raise ConfigError(f"{unpacked.name}: {(lines or ['no output'])[-1]}")
            with delayed((HOST, port)) as address:
                yield address
        finally:
            child.stop()


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"greenline-{name}-", dir=TMP) as folder:
        yield Path(folder)


SERVERS: dict[str, tuple[str, Callable[[], Open]]] = {
    "computing": ("nothing: it computes", none),
    "deaf": ("a deaf socket", deaf),
    "dns": ("a DNS server in Python", dns),
    "http": ("an HTTP server in Python", http),
    "mariadb": ("Debian's MariaDB", mariadb),
    "memcached": ("Debian's memcached", memcached),
    "mongo": ("the embedded MongoDB", mongo),
    "nats": ("Debian's nats-server", nats),
    "postgres": ("the embedded Postgres", postgres),
    "redis": ("Debian's redis-server", redis),
    "slapd": ("Debian's slapd", slapd),
    "smtp": ("an SMTP server in Python", smtp),
    "tds": ("a TDS server in Python", tds),
}
