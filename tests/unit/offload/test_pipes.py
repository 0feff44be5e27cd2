"""greenline.offload.pipes: a greenlet waits for a pipe whose other end another greenlet holds."""

from tests.helpers.script import TICKS, run


def test_a_reader_waits_for_a_writer_of_the_same_hub() -> None:
    """Ten at once; the end of the pipe is an empty read."""
    assert run("""
def ask():
    reads, writes = os.pipe()
    def answer():
        time.sleep(0.02)
        os.write(writes, b"it")
        time.sleep(0.02)
        os.close(writes)
    threading.Thread(target=answer).start()
    return os.read(reads, 10), os.read(reads, 10)

def main():
    asking = [gevent.spawn(ask) for _ in range(10)]
    gevent.joinall(asking)
    tell({one.value for one in asking})
""") == ["{(b'it', b'')}"]


def test_a_reader_waits_for_a_terminal() -> None:
    """As of a program that another greenlet asks; the last read fails, as without us."""
    assert run("""
import pty

def main():
    ours, its = pty.openpty()
    def answer():
        time.sleep(0.02)
        os.write(its, b"it")
        time.sleep(0.02)
        os.close(its)
    threading.Thread(target=answer).start()
    tell(os.read(ours, 10))
    try:
        os.read(ours, 10)
    except OSError as error:
        tell(error.strerror)
""") == ["b'it'", "Input/output error"]


def test_a_terminal_whose_reads_have_a_time_of_their_own_is_left_alone() -> None:
    """As pyserial sets it; no event says that the time is up."""
    assert run("""
import pty, termios

def main():
    ours, its = pty.openpty()
    *flags, at_least = termios.tcgetattr(its)
    flags[3] &= ~termios.ICANON
    at_least[termios.VMIN], at_least[termios.VTIME] = 0, 1
    termios.tcsetattr(its, termios.TCSANOW, [*flags, at_least])
    tell(os.read(its, 10))
""") == ["b''"]


def test_a_writer_waits_for_a_reader_of_the_same_hub() -> None:
    """A pipe holds 64 KiB; all of a megabyte comes through, and the call says so."""
    assert run("""
def main():
    reads, writes = os.pipe()
    data = os.urandom(1_000_000)
    writer = gevent.spawn(os.write, writes, data)
    read = b""
    while len(read) < len(data):
        read += os.read(reads, 50_000)
    tell(writer.get(), read == data)
""") == ["1000000 True"]


def test_others_are_left_as_they_are() -> None:
    """A file, a pipe that does not block, a closed descriptor, a reader that has gone."""
    assert run("""
import tempfile

def error(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return type(error).__name__

def main():
    with tempfile.TemporaryFile() as file:
        tell(os.write(file.fileno(), b"x" * 100_000), os.pread(file.fileno(), 2, 0))
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    tell(error(os.read, reads, 1))
    os.close(reads)
    time.sleep(0.01)
    tell(error(os.write, writes, b"x"), error(os.read, -1, 1))
""") == ["100000 b'xx'", "BlockingIOError", "BrokenPipeError OSError"]


def test_others_run_meanwhile_and_a_native_thread_waits_by_itself() -> None:
    """A pipe that stays empty for a while keeps no other greenlet from running."""
    assert run(f"""{TICKS}
from gevent.threadpool import ThreadPool

def main():
    reads, writes = os.pipe()
    native = ThreadPool(1).spawn(os.read, reads, 10)
    gevent.sleep(0.1)
    before = len(ticks)
    with gevent.Timeout(10):
        while len(ticks) <= before + 3:
            gevent.sleep(0.01)
    os.write(writes, b"native")
    tell(native.get())
""") == ["b'native'"]


def test_a_file_of_a_pipe_waits_for_the_other_end_in_the_same_hub() -> None:
    """More than a pipe holds is written, and all of it is read, while others run."""
    assert (
        run(f"""{TICKS}
def copy(opened, mode, *buffering):
    reads, writes = os.pipe()
    data = (b"x" if mode else "x") * 1_000_000
    before = len(ticks)

    def write():
        with opened(writes, "w" + mode, *buffering) as file:
            while len(ticks) <= before + 3:
                gevent.sleep(0.01)
            file.write(data)

    writing = gevent.spawn(write)
    with opened(reads, "r" + mode, *buffering) as file:
        first = file.read(1)
        tell(len(ticks) > before + 3, len(first) + len(file.read()))
    writing.get()

def main():
    for opened in (open, os.fdopen):
        copy(opened, "b")
        copy(opened, "b", 0)
        copy(opened, "")
""")
        == ["True 1000000"] * 6
    )


def test_a_file_of_a_pipe_has_what_that_of_open_has() -> None:
    """Names, modes and errors are those of the built-in function, also for other descriptors."""
    assert run(r"""
import builtins, io, tempfile

def error(*args, **kwargs):
    try:
        return open(*args, **kwargs)
    except (OSError, ValueError) as error:
        return type(error).__name__

def main():
    reads, writes = os.pipe()
    tell(error(reads, "rt", 0), error(reads, "r+"), error(reads, "rb", encoding="ascii"))
    tell(error(-1), error(2**20))
    out = open(writes, "w", 1, "latin-1", newline="\r\n", closefd=False)
    tell(out.mode, out.encoding, out.name == writes, out.line_buffering, out.closed)
    out.write("\xe9\n")
    tell(os.read(reads, 10))
    out.close()
    os.set_blocking(reads, False)
    with open(reads, "rb", 0) as file:
        tell(file.read(1), file.mode)
    with os.fdopen(writes, "wb") as file:
        tell(isinstance(file, io.BufferedWriter), file.mode, file.raw.name == writes)
    with tempfile.TemporaryFile() as file:
        tell(type(open(file.fileno(), "rb", closefd=False)).__module__)
    class Holder:
        opens = open
    with Holder().opens(os.devnull) as file:
        tell(file.name)
""") == [
        "ValueError UnsupportedOperation ValueError",
        "ValueError OSError",
        "w latin-1 True True False",
        r"b'\xe9\r\n'",
        "None rb",
        "True wb True",
        "_io",
        "/dev/null",
    ]
