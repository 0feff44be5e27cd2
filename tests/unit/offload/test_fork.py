"""greenline.offload.fork: what a forked child has, and what it has not."""

import pytest

from tests.helpers.script import run


def test_no_other_greenlet_runs_in_a_child() -> None:
    """Neither when it sleeps, nor when it releases what others wait for, nor when it ends."""
    lines = run("""
top, lock = os.getpid(), threading.Lock()

def wait_for_lock():
    with lock:
        pass
    tell("another", "here" if os.getpid() == top else "in the child")

def wait_for_forking():
    forking.join()
    tell("joined", "here" if os.getpid() == top else "in the child")

def hold_and_fork():
    with lock:
        threading.Thread(target=wait_for_lock).start()
        threading.Thread(target=wait_for_forking).start()
        time.sleep(0.01)
        child = os.fork()
    if child == 0:
        time.sleep(0.05)
        with lock:
            tell("locked")
        return
    tell("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

forking = threading.Thread(target=hold_and_fork)
main = hold_and_fork
forking.start()
forking.join()
main = lambda: None
""")
    lines.remove("another here")  # of two processes, of which either may be the first
    assert lines == ["locked", "status 0", "joined here"]


def test_a_first_child_that_ends_at_once_is_noticed() -> None:
    """Before gevent watches it: the worker is stopped meanwhile, as on a busy machine."""
    lines = run("""
import gevent.os
from gevent.monkey import get_original
fork_ = gevent.os._raw_fork

def fork_slowly():
    child = fork_()
    if child:
        get_original("time", "sleep")(0.5)
    return child

gevent.os._raw_fork = fork_slowly

main = lambda: in_child(lambda: None)
""")
    assert lines == ["status 0"]


def test_a_child_has_all_of_gevent_for_itself() -> None:
    """Threads, locks that had waiters, timers, names, processes, asyncio and a child of its own."""
    lines = run("""
lock, counted = threading.Lock(), []

def count():
    for _ in range(3):
        with lock:
            time.sleep(0.001)
            counted.append(None)

def contend():
    threads = [threading.Thread(target=count) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

async def nap():
    await asyncio.sleep(0.01)
    return "asyncio"

def work():
    global asyncio
    import asyncio
    contend()
    tell(len(counted))
    tell(socket.getaddrinfo("127.0.0.1", 80)[0][4])
    tell(subprocess.run(["echo", "subprocess"], capture_output=True).stdout.decode().strip())
    tell(asyncio.run(nap()))
    waiting = threading.Event()
    threading.Timer(0.01, waiting.set).start()
    tell(waiting.wait(10))
    in_child(lambda: time.sleep(0.01))
    process = multiprocessing.Process(target=time.sleep, args=(0.01,))
    process.start()
    process.join()
    tell(process.exitcode)

def main():
    contend()
    with gevent.Timeout(20):
        process = multiprocessing.Process(target=work)
        process.start()
        process.join()
        tell(process.exitcode)
""")
    assert lines == [
        "30", "('127.0.0.1', 80)", "subprocess", "asyncio", "True", "status 0", "0", "0",
    ]  # fmt: skip


def test_a_child_has_none_of_the_connections() -> None:
    """Its ends are /dev/null, and closing them is no error; a pair of sockets goes on working."""
    lines = run("""
def main():
    listening = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listening.getsockname())
    server, _ = listening.accept()
    gevent.spawn(server.recv, 1)
    path = "\\0" + os.urandom(8).hex()
    named = socket.socket(socket.AF_UNIX)
    named.bind(path)
    named.listen()
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    ours, theirs = socket.socketpair()
    first, second = socket.socketpair()

    def work():
        for one in (listening, client, server, named, peer):
            number = one.fileno()
            tell(os.readlink(f"/proc/self/fd/{number}"))
            one.close()
        gevent.spawn_later(0.01, first.sendall, b"from a greenlet of its own")
        tell(second.recv(100).decode())
        theirs.sendall(b"x" * 1_000_000 + b".")

    reading = gevent.spawn(lambda: tell(len(b"".join(iter(lambda: ours.recv(65_536), b"")))))
    in_child(work)
    theirs.close()
    reading.join()
    client.sendall(b"1")
""")
    assert lines[:5] == ["/dev/null"] * 5
    assert lines[5] == "from a greenlet of its own"
    assert sorted(lines[6:]) == ["1000001", "status 0"]


def test_a_subprocess_is_given_its_sockets() -> None:
    """What executes at once keeps what was passed to it."""
    lines = run("""
def main():
    listening = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listening.getsockname())
    server, _ = listening.accept()
    subprocess.run(["echo", "over the socket"], stdout=client, check=True)
    tell(server.recv(100).decode().strip())
    number = client.fileno()
    command = f"echo passed >&{number}"
    subprocess.run(["/bin/sh", "-c", command], pass_fds=[number], check=True)
    tell(server.recv(100).decode().strip())
""")
    assert lines == ["over the socket", "passed"]


def test_a_child_has_the_default_signal_handlers() -> None:
    """A handler of the worker's would keep SIGTERM from ending it, or wake the worker."""
    lines = run("""
signal.signal(signal.SIGTERM, lambda *_: tell("handled"))
reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)

def main():
    in_child(lambda: tell(signal.set_wakeup_fd(-1)))
    in_child(lambda: os.kill(os.getpid(), signal.SIGTERM))
""")
    assert lines == ["-1", "status 0", f"status {-15}"]


def test_a_child_has_no_deadline_and_no_client() -> None:
    """They are the request's, which its parent answers."""
    lines = run("""
from greenline.hub import deadline, disconnect

def main():
    ours, _ = socket.socketpair()
    disconnect.serve(ours)
    with deadline.limit(30):
        in_child(lambda: tell(deadline.remaining(), disconnect.client()))
        tell(deadline.remaining() is not None, disconnect.client() is ours)
""")
    assert lines == ["None None", "status 0", "True True"]


@pytest.mark.parametrize("limit", ["deadline.limit", "gevent.Timeout"])
def test_a_limit_from_before_the_fork_ends_without_an_error(limit: str) -> None:
    """The child leaves its block as the parent does, has no deadline, and may set its own."""
    lines = run(f"""
from greenline.hub import deadline

def main():
    with deadline.limit(30):
        with {limit}(20):
            child = os.fork()
        if child == 0:
            tell(deadline.remaining())
            with {limit}(10):
                time.sleep(0.01)
            tell(deadline.remaining())
            return
        tell(deadline.remaining() > 20)
    tell("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert lines.pop(lines.index("True"))
    assert lines == ["None", "None", "status 0"]


@pytest.mark.parametrize(
    "begin",
    ["Rounds(gevent.get_hub().loop).start(int)", "gevent.spawn(yield_to_hub); gevent.sleep(0)"],
    ids=["what is called in each round", "a greenlet that lets others run"],
)
def test_a_child_waits_without_computing(begin: str) -> None:
    """Whatever the worker's loop was to do in its next round when the child was forked."""
    lines = run(f"""
from greenline.hub.cooperate import Rounds, yield_to_hub

def main():
    time.sleep(0.01)
    {begin}
    child = os.fork()
    if child == 0:
        loop = gevent.get_hub().loop
        before = loop.iteration
        time.sleep(0.2)
        rounds = loop.iteration - before
        tell("waited" if rounds < 20 else rounds)
        return
    tell("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert lines == ["waited", "status 0"]


def test_a_child_that_waits_for_ever_ends() -> None:
    """Nothing is left that could wake it: that is an error, in the log."""
    lines = run("""
def main():
    child = os.fork()
    if child == 0:
        threading.Lock().acquire() and threading.Event().wait()
    tell("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert lines[0] == "a forked child failed"
    assert lines[-1] == "status 1"
    assert any("would block forever" in line for line in lines)


@pytest.mark.parametrize("is_earlier", [True, False], ids=["earlier", "later"])
def test_a_hook_may_wait_for_a_thread(is_earlier: bool) -> None:
    """Also one from before the patching, and in a child that executes a program."""
    hook = """
import os, threading

def hook():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(os.getpid()))
    thread.start()
    thread.join()
    os.write(1, b"hook\\n" if seen == [os.getpid()] else b"not here\\n")

os.register_at_fork(after_in_child=hook)
"""
    lines = run(
        f"""
{"" if is_earlier else hook}
top = os.getpid()

def tick():
    while True:
        gevent.sleep(0)
        if os.getpid() != top:
            os._exit(1)

gevent.spawn(tick)

def main():
    in_child(lambda: None)
    subprocess.run(["true"], check=True, preexec_fn=lambda: None)
    tell("over")
    os._exit(0)
""",
        before=hook if is_earlier else "",
    )
    assert lines == ["hook", "status 0", "hook", "over"]


def test_a_signal_at_the_fork_ends_the_child() -> None:
    """Before the child has its own handlers: the worker's, which it has until then, do not."""
    lines = run("""
from greenline.offload import fork

signal.signal(signal.SIGTERM, lambda *_: None)
reset = fork._reset_signals

def send_first():
    os.kill(os.getpid(), signal.SIGTERM)
    reset()

fork._reset_signals = send_first

def main():
    child = os.fork()
    if child == 0:
        gevent.sleep(30)
        os._exit(0)
    tell("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.kill(os.getpid(), signal.SIGTERM)
    tell("handled here", not signal.pthread_sigmask(signal.SIG_BLOCK, ()))
""")
    assert lines == ["status -15", "handled here True"]


def test_a_child_that_returns_from_an_offloaded_call_ends() -> None:
    """It has the thread of the call alone, which must not wait for the next one."""
    lines = run("""
from greenline.offload import threads

def fork_and_return(error):
    child = os.fork()
    if child == 0:
        if error:
            raise error
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def main():
    tell("statuses", *(threads.run(fork_and_return, error) for error in (None, SystemExit(3))))
    tell("own", threads.OwnThread().call(fork_and_return, SystemExit(4)))
""")
    assert lines == ["statuses 0 3", "own 4"]


def test_the_status_of_a_child_of_an_offloaded_call_is_kept() -> None:
    """The main hub notices its end before the call waits for it."""
    lines = run("""
from gevent.monkey import get_original
from greenline.offload import threads

def status(start):
    child = start()
    get_original("time", "sleep")(0.2)  # until libev has reaped it
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def fork():
    return os.fork() or os._exit(3)

def spawn():
    return multiprocessing.util.spawnv_passfds(b"/bin/false", [b"false"], [])

def main():
    import multiprocessing.util
    subprocess.run(["true"])  # from now on libev reaps all children
    tell(*(threads.run(status, start) for start in (fork, fork, spawn)))
""")
    assert lines == ["3 3 1"]


def test_a_process_of_an_offloaded_call_may_start_programs() -> None:
    lines = run("""
from greenline.offload import threads

def work():
    tell("program", subprocess.run(["false"]).returncode)
    in_child(lambda: None)

def start():
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode

main = lambda: tell("process", threads.run(start))
""")
    assert lines == ["program 1", "status 0", "process 0"]
