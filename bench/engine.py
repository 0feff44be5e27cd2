"""
Run ``engine``, which answers from memory the commands of MongoDB that the benches send.

1. Beside it the service is what limits a bench, and so what the bench measures; SecantusDB, one
   process bound by its interpreter, answers fewer questions than our service asks.
2. It is a replica set with sessions: drivers send ``lsid`` and ``$clusterTime`` as in production.
3. It keeps nothing on disk, has no transactions, and refuses what it does not know.
4. It is built once from ``bench/engine``, of Go's standard library alone.
5. It can be as far away as a server in another place: ``round_trip_ms`` passes between a question
   and its answer, besides the work. A connection carries any number of bytes a second.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import hey_build

SOURCES = Path(__file__).parent / "engine"
NAME = "memory"
STOP_S = 5.0


def find() -> str:
    """Return the path of the program, built first where there is none."""
    return hey_build.find_own(SOURCES)


@contextmanager
def started(round_trip_ms: int = 0) -> Iterator[tuple[str, int]]:
    """
    Start one for the length of the block.

    :param round_trip_ms: how far away it is, int, default 0.
    :returns: its URI and its process id.
    :raises BuildError: it could not be built, or says no port.
    """
    command = [find(), "-delay", f"{round_trip_ms}ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise hey_build.BuildError("the engine does not start")
            yield f"mongodb://127.0.0.1:{port}/", process.pid
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
