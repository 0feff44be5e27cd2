"""greenline.offload.processes: a wait for a child, in any form, lets the other greenlets run."""

import pytest

from tests.helpers.script import TICKS, run

BEGIN = f"""
from greenline import offload
offload.patch()
{TICKS}
def has_others(wait):
    before = len(ticks)
    return wait(), len(ticks) >= before + 3

def forked(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(3)
    return child

def forks(seconds):
    return forked(lambda: time.sleep(seconds))

def subprocess_starts(seconds):
    return subprocess.Popen(["/bin/sh", "-c", f"sleep {{seconds}}; exit 3"]).pid
"""


@pytest.mark.parametrize("start", ["forks", "subprocess_starts"])
def test_every_wait_for_a_child_is_one_in_the_hub(start: str) -> None:
    """It returns the status, also of a child that ended before; after that there is no child."""
    lines = run(f"""{BEGIN}
def ended(found):
    assert found.si_signo == signal.SIGCHLD and found.si_uid == os.getuid()
    assert found.si_code == os.CLD_EXITED
    return found.si_pid, found.si_status << 8

waits = [
    lambda child: os.waitpid(child, 0),
    lambda child: os.waitpid(child, os.WUNTRACED),
    lambda child: os.wait(),
    lambda child: os.wait3(0)[:2],
    lambda child: os.wait4(child, 0)[:2],
    lambda child: ended(os.waitid(os.P_PID, child, os.WEXITED)),
    lambda child: ended(os.waitid(os.P_ALL, 0, os.WEXITED)),
]

def main():
    for wait in waits:
        child = {start}(0.1)
        tell(has_others(lambda: wait(child)) == ((child, 3 << 8), True))
        child = {start}(0)
        time.sleep(0.03)
        tell(wait(child) == (child, 3 << 8))
        for again in (os.waitpid, os.wait4):
            try:
                tell(again(child, 0))
            except ChildProcessError:
                tell("no child")
    child = {start}(0.1)
    tell(has_others(lambda: os.waitpid(0, 0)) == ((child, 3 << 8), True))
""")
    assert lines == ["True", "True", "no child", "no child"] * 7 + ["True"]


def test_two_that_wait_for_any_child_get_one_each() -> None:
    """As two threads do."""
    lines = run(f"""{BEGIN}
def main():
    for wait in os.wait, lambda: os.waitpid(-1, 0):
        children = [forks(seconds) for seconds in (0.05, 0.1)]
        waiting = [gevent.spawn(wait) for _ in children]
        gevent.joinall(waiting, timeout=20, raise_error=True)
        tell(sorted(one.get()[0] for one in waiting) == sorted(children))
""")
    assert lines == ["True", "True"]


def test_wait4_returns_what_the_child_has_used() -> None:
    """
    Also beside others; a Popen has its exit status afterwards.

    One child has used much: those that end in the same instant may have zeros.
    """
    lines = run(f"""{BEGIN}
def burn():
    memory = b"x" * 100_000_000
    while time.process_time() < 0.5:
        pass

def main():
    children = [forked(lambda: None if number else burn()) for number in range(10)]
    waiting = [gevent.spawn(os.wait4, child, 0) for child in children]
    gevent.joinall(waiting)
    for number, one in enumerate(waiting):
        pid, status, usage = one.get()
        assert (pid, status) == (children[number], 3 << 8)
        tell(usage.ru_utime + usage.ru_stime >= 0.5, usage.ru_maxrss > 100_000)
    process = subprocess.Popen(["/bin/sh", "-c", "sleep 0.1; exit 3"])
    tell(os.wait4(process.pid, 0)[2].ru_maxrss > 0, process.wait(10))
""")
    used, unused = "True True", "False False"
    assert lines == [used] + [unused] * 9 + ["True 3"]


def test_options_and_signals_are_those_of_the_originals() -> None:
    """WNOHANG does not wait, WNOWAIT leaves the child; one that is stopped or killed is seen."""
    lines = run(f"""{BEGIN}
def main():
    child = forked(lambda: time.sleep(60))
    tell(os.wait3(os.WNOHANG)[:2], os.wait4(child, os.WNOHANG)[:2])
    tell(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG))
    os.kill(child, signal.SIGSTOP)
    tell(os.WIFSTOPPED(os.wait4(child, os.WUNTRACED)[1]))
    os.kill(child, signal.SIGKILL)
    for options in (os.WNOWAIT, os.WNOWAIT, 0):
        found = os.waitid(os.P_PID, child, os.WEXITED | options)
        tell(found.si_pid == child, found.si_code == os.CLD_KILLED, found.si_status)
        time.sleep(0.01)
""")
    killed = "True True 9"
    assert lines == ["(0, 0) (0, 0)", "None", "True", killed, killed, killed]
