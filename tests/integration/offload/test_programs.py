"""greenline.offload.programs: a program starts as without gevent, and is waited for with it."""

import pytest

from tests.helpers.script import TICKS, run

BEGIN = f"""
import tempfile
forks = []
os.register_at_fork(before=lambda: forks.append(None))
{TICKS}
def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options).stdout.strip()

def error(**options):
    try:
        subprocess.run(**options)
    except OSError as error:
        return type(error).__name__, error.filename
"""

NO_PROGRAM_NO_FOLDER = ["FileNotFoundError /no/program", "FileNotFoundError /no/folder"]


def test_nothing_is_forked_in_python() -> None:
    """Not for a program, nor for a shell, in whatever way it is started."""
    assert run(f"""{BEGIN}
def main():
    tell(output("/bin/echo", "1"), subprocess.check_output("echo 2", shell=True).strip())
    tell(os.popen("echo 3").read().strip(), os.system("exit 4") >> 8, len(forks))
""") == ["1 b'2'", "3 4 0"]  # fmt: skip


def test_a_program_has_what_it_is_given() -> None:
    """Environment, folder, input, a descriptor beyond the standard ones, a session of its own."""
    assert run(f"""{BEGIN}
def main():
    tell(output("/bin/sh", "-c", "echo $A; pwd", env={{"A": "1"}}, cwd="/").split())
    tell(output("cat", input="given"))
    reads, writes = os.pipe()
    subprocess.run(["sh", "-c", f"echo passed >&{{writes}}"], pass_fds=[writes])
    tell(os.read(reads, 10).decode().strip())
    hidden = subprocess.run(["sh", "-c", f"echo hidden >&{{writes}}"], stderr=-3)
    tell(hidden.returncode != 0)
    tell(output("sh", "-c", "ps -o sid= -p $$", start_new_session=True) != str(os.getsid(0)))
""") == ["['1', '/']", "given", "passed", "True", "True"]  # fmt: skip


def test_a_program_that_cannot_be_started_says_why() -> None:
    """The exception names the program, or the folder; no child and no descriptor is left."""
    assert run(f"""{BEGIN}
def main():
    error(args=["/no/program"])  # the hub opens descriptors of its own
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        tell(*error(args=["/no/program"], stdout=-1, stdin=-1, stderr=-1))
        tell(*error(args=["true"], cwd="/no/folder"))
    tell(os.listdir("/proc/self/fd") == before)
    try:
        tell(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        tell("no child")
""") == [*NO_PROGRAM_NO_FOLDER * 3, "True", "no child"]  # fmt: skip


def test_others_run_while_a_program_does() -> None:
    """Fifty at once take as long as one, and each gives its own status."""
    assert run(f"""{BEGIN}
def main():
    before = len(ticks)
    started = [subprocess.Popen(["sh", "-c", f"sleep 0.3; exit {{n}}"]) for n in range(50)]
    tell([each.wait() for each in started] == list(range(50)), len(ticks) > before + 10)
    quick = [subprocess.Popen(["true"]) for _ in range(200)]
    tell({{each.wait(timeout=30) for each in quick}})
""") == ["True True", "{0}"]  # fmt: skip


def test_a_socket_that_a_program_is_given_blocks() -> None:
    """gevent's sockets do not, and a program would fail with EAGAIN."""
    assert run(f"""{BEGIN}
def main():
    ours, its = socket.socketpair()
    child = subprocess.Popen(["sh", "-c", "read line; echo got $line"], stdin=its, stdout=its)
    time.sleep(0.2)
    ours.sendall(b"it\\n")
    tell(ours.recv(20).decode().strip(), child.wait())
""") == ["got it 0"]  # fmt: skip


@pytest.mark.parametrize(
    "more",
    ["preexec_fn=lambda: os.chdir('/')", "cwd='/', user=os.getuid()"],
    ids=["preexec", "user"],
)
def test_what_must_be_forked_still_works(more: str) -> None:
    """What runs in the child before the program is Python, or needs another user."""
    assert run(f"""{BEGIN}
def main():
    tell(output("pwd", {more}))
""") == ["/"]  # fmt: skip
