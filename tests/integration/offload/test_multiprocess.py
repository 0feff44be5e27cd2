"""greenline.offload.multiprocess: waiting for another process lets the greenlets run."""

import pytest

from tests.helpers import support
from tests.helpers.script import TICKING, run


@pytest.mark.parametrize("duplex", [True, False], ids=["sockets", "a pipe"])
def test_a_pipe_is_waited_for_in_the_hub(duplex: bool) -> None:
    """To read and to write, more than it holds, while the other side is slow."""
    lines = run(f"""{TICKING}
def echo(take, give):
    time.sleep(0.2)
    data = take.recv()
    time.sleep(0.2)
    give.send(data)

def main():
    if {duplex}:
        mine, its = multiprocessing.Pipe()
        take = give = its
        send = recv = mine
    else:
        (recv, give), (take, send) = multiprocessing.Pipe(False), multiprocessing.Pipe(False)
    process = multiprocessing.Process(target=echo, args=(take, give))
    process.start()
    report(lambda: send.send(b"x" * 3_000_000))
    report(lambda: len(recv.recv()))
    report(lambda: (process.join(), process.exitcode)[1])
    tell(os.get_blocking(send.fileno()), os.get_blocking(recv.fileno()))
""")
    assert lines[:2] == ["None with others", "3000000 with others"]
    assert lines[2].startswith("0 ")
    assert lines[3] == "True True"


def test_a_script_waits_for_another_process_in_the_hub() -> None:
    """As a worker does; with nothing but the patching."""
    done = support.run(["python", "-c", """
from greenline.patch import patch_all
patch_all()
import gevent, multiprocessing
lock = multiprocessing.Lock()
lock.acquire()
later = gevent.spawn_later(0.01, lock.release)
print(lock.acquire(timeout=10))
"""], {})  # fmt: skip
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_closed_end_is_closed_at_once() -> None:
    """A parent that has closed its end reads until the child's end; one that waits is woken."""
    lines = run("""
def main():
    reading, writing = os.pipe()
    os.close(writing)
    tell(os.read(reading, 1))
    reading, writing = os.pipe()
    waiting = gevent.spawn(gevent.socket.wait_read, reading)
    gevent.sleep(0.01)
    os.close(reading)
    waiting.join(10)
    tell(waiting.ready())
""")
    assert lines == ["b''", "True"]


def test_a_spawned_child_is_waited_for_in_the_hub() -> None:
    """Python starts it in C, so gevent has not seen it; libev may reap it before the wait."""
    lines = run(f"""{TICKING}
def main():
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=time.sleep, args=(0.2,))
    process.start()
    report(lambda: (process.join(), process.exitcode)[1])
    process = spawn.Process(target=int)
    process.start()
    subprocess.run(["true"])
    while os.path.exists(f"/proc/{{process.pid}}"):
        time.sleep(0.01)
    process.join()
    tell(process.exitcode)
""")
    assert lines == ["0 with others", "0"]


def test_an_exit_status_that_many_wait_for_is_the_same_for_all() -> None:
    """It comes through the forkserver's pipe once."""
    lines = run("""
def main():
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(0.1,))
    process.start()

    def joined():
        process.join()
        return process.exitcode

    waiting = [gevent.spawn(joined) for _ in range(5)]
    tell(*(one.get() for one in waiting))
    tell(process.exitcode)
""")
    assert lines == ["0 0 0 0 0", "0"]
