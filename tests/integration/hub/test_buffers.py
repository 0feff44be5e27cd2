"""greenline.hub.buffers: two greenlets use one file of a pipe or a socket."""

import pytest

from tests.helpers.script import run

WRITING = """
COUNT = "import sys; print(*sorted(len(line) for line in sys.stdin), flush=True)"
LINE = "x" * 299_999 + "\\n"  # more than a pipe or a socket holds

def write(file, line, end):
    writing = [gevent.spawn(file.writelines, [line, line]) for _ in range(2)]
    gevent.joinall(writing, timeout=30, raise_error=True)
    file.flush()
    end()
"""


@pytest.mark.parametrize("text", [False, True], ids=["bytes", "text"])
def test_lines_written_to_a_program_come_out_whole(text: bool) -> None:
    """A writer waits for the other's line."""
    lines = run(f"""{WRITING}
def main():
    program = subprocess.Popen(
        [sys.executable, "-c", COUNT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text={text}
    )
    write(program.stdin, LINE if {text} else LINE.encode(), program.stdin.close)
    tell(*program.stdout.read().split() if {text} else program.stdout.read().decode().split())
""")
    assert lines == [" ".join(["300000"] * 4)]


@pytest.mark.parametrize("mode", ["wb", "rwb", "w"])
def test_lines_written_to_a_socket_come_out_whole(mode: str) -> None:
    """Also while a third greenlet waits for something to read."""
    lines = run(f"""{WRITING}
def main():
    mine, its = socket.socketpair()
    file = mine.makefile({mode!r})
    reading = gevent.spawn(file.readline) if "r" in {mode!r} else None
    other = gevent.spawn(lambda: sorted(len(line) for line in its.makefile("rb")))
    line = LINE.encode() if "b" in {mode!r} else LINE
    write(file, line, lambda: mine.shutdown(socket.SHUT_WR))
    tell(*other.get())
    its.sendall(b"read")
    its.close()
    if reading:
        tell(reading.get())
""")
    assert lines[0] == " ".join(["300000"] * 4)
    assert lines[1:] == (["b'read'"] if mode == "rwb" else [])


@pytest.mark.parametrize("kind", ["program", "socket"])
def test_a_reader_waits_for_another(kind: str) -> None:
    """Each line is read once, also where the first that waits gives up."""
    lines = run(f"""
def main():
    mine, its = socket.socketpair()
    if {kind!r} == "socket":
        file = mine.makefile("rb")
    else:
        file = subprocess.Popen("cat", stdin=its, stdout=subprocess.PIPE).stdout
    reading = [gevent.spawn(file.readline) for _ in range(5)]
    gevent.sleep(0.01)
    reading[0].kill()
    reading[2].kill()
    feed = its if {kind!r} == "socket" else mine
    for line in (b"a\\n", b"b\\n", b"c\\n"):
        feed.sendall(line)
        gevent.sleep(0.01)
    tell(*(reading[n].get(timeout=10) for n in (1, 3, 4)))
""")
    assert lines == [r"b'a\n' b'b\n' b'c\n'"]


def test_the_first_program_keeps_its_encoding() -> None:
    """gevent's own Popen forgets it."""
    lines = run(r"""
def main():
    with subprocess.Popen(["printf", r"\351"], stdout=subprocess.PIPE, encoding="latin-1") as one:
        tell(ascii(one.stdout.read()))
""")
    assert lines == [r"'\xe9'"]


def test_the_lines_of_a_closed_file_are_an_error() -> None:
    """As without gevent."""
    lines = run("""
def main():
    with subprocess.Popen(["seq", "3"], stdout=subprocess.PIPE) as one:
        tell(*one.stdout, next(one.stdout, "end"))
    try:
        list(one.stdout)
    except (OSError, ValueError):
        tell("closed")
""")
    assert lines == [r"b'1\n' b'2\n' b'3\n' end", "closed"]


CLOSING = """
def close(file, data, other):
    writing = gevent.spawn(file.write, data)
    gevent.sleep(0.01)
    closing = [gevent.spawn(file.close) for _ in range(2)]
    gevent.sleep(0.01)
    other = gevent.spawn(other)
    gevent.joinall([writing, *closing, other], timeout=30, raise_error=True)
    tell(other.value, file.closed)
"""


def test_the_close_of_a_programs_pipe_waits_for_its_writer() -> None:
    """As that of a thread; all that was written comes through."""
    lines = run(f"""{CLOSING}
COUNT = "import sys, time; sys.stdin.read(1); time.sleep(0.1); print(len(sys.stdin.read()) + 1)"

def main():
    program = subprocess.Popen(
        [sys.executable, "-c", COUNT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    data = b"x" * 300_000
    close(program.stdin, data, lambda: int(program.stdout.read()))
""")
    assert lines == ["300000 True"]


@pytest.mark.parametrize("mode", ["wb", "rwb", "w"])
def test_the_close_of_a_sockets_file_waits_for_its_writer(mode: str) -> None:
    """Also while a third greenlet waits for something to read."""
    lines = run(f"""{CLOSING}
def main():
    mine, its = socket.socketpair()
    file = mine.makefile({mode!r})
    def read_line():
        try:
            file.readline()
        except ValueError:  # from Python 3.13 on the file is closed for it as well
            pass

    if "r" in {mode!r}:
        gevent.spawn(read_line)
        gevent.sleep(0.01)

    def read():
        length = 0
        while length < 3_000_000:
            length += len(its.recv(100_000))
        return length

    data = b"x" * 3_000_000 if "b" in {mode!r} else "x" * 3_000_000
    close(file, data, read)
    its.close()
""")
    assert lines == ["3000000 True"]


def test_the_close_of_a_file_waits_for_its_reader() -> None:
    """The reader gets its line."""
    lines = run("""
def main():
    mine, its = socket.socketpair()
    program = subprocess.Popen("cat", stdin=its, stdout=subprocess.PIPE)
    file = program.stdout
    reading = gevent.spawn(file.readline)
    gevent.sleep(0.01)
    closing = gevent.spawn(file.close)
    gevent.sleep(0.01)
    mine.sendall(b"a\\n")
    closing.get(timeout=10)
    tell(reading.get(timeout=10))
""")
    assert lines == [r"b'a\n'"]
