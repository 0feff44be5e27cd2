"""
Processes that share a slot table and hold real connections, and are killed, stopped and replaced.

A round is one such thing: a kill, a stop, an end, a reload of all, a kill of all. It prints what
happened as JSON. Not in pytest's process, which is patched: here are forks, signals and blocking
connections, as plain as they get.

    python -m tests.integration.slots.slot_table_storm URL SUPERUSER_URL TABLE CAPACITY ROUNDS SEED
"""

import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg2

from bench.backends import Backends, Highest
from greenline.slots import Slot, SlotTable

PROCESSES = 8
# What happens in forty rounds, in any order.
ACTS = {"kill": 18, "stop": 9, "end": 9, "reload": 3, "kill all": 1}
PAUSE_S, STOPPED_S = 0.4, 1.0  # at most
# A connect that was begun by a process killed since then has reached the server in this time.
CONNECT_S = 1.0
# A backend leaves pg_stat_activity before it gives back its place among max_connections.
LEAVE_S = 0.1
OURS = """
    select pid, application_name from pg_stat_activity
    where backend_type = 'client backend' and usename = current_user
"""


class Worker:
    """A process with a control connection and as many others as it feels like."""

    def __init__(self, url: str, path: Path, capacity: int, event_log: int) -> None:
        self.url, self.event_log, self.capacity = url, event_log, capacity
        self.slot_table = SlotTable(path)
        self.slot_table.resize(capacity, PROCESSES)  # too few for all: who comes late waits
        self.lent: dict[Slot, Any] = {}
        self.demand = 0
        self.hungry_since_s: float | None = None
        self.gone = Gone()
        self.stopped = False
        self.parent = os.getppid()
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        self.stopped = True

    def say(self, what: str) -> None:
        os.write(self.event_log, f"{what}\n".encode())

    def run(self) -> None:
        control_slot, control = self.control()
        care_at_s = 0.0
        while not self.stopped and os.getppid() == self.parent:
            if time.monotonic() >= care_at_s:
                self.care(control)
                care_at_s = time.monotonic() + 0.05
            if random.random() < 0.05:
                self.demand = random.randint(0, self.capacity)
            if len(self.lent) < self.demand:
                self.grow()
            for slot in random.sample(list(self.lent), len(self.lent) // 2):
                self.use(slot)
            time.sleep(0.002)
        for slot in list(self.lent):
            self.leave(slot, self.lent.pop(slot))
        self.leave(control_slot, control)
        self.slot_table.close()

    def control(self) -> tuple[Slot, Any]:
        while True:
            if self.stopped or os.getppid() != self.parent:
                raise SystemExit
            slot = self.slot_table.take(for_control=True)
            conn = self.connect(slot) if slot else None
            if slot is not None and conn is not None:
                return slot, conn
            self.slot_table.request()
            time.sleep(0.003)

    def connect(self, slot: Slot) -> Any:
        try:
            conn = psycopg2.connect(self.url, application_name=f"slot-{slot.number}")
        except psycopg2.OperationalError as error:
            self.say(f"refused {str(error).strip()!r}")
            self.slot_table.give(slot)
            return None
        slot.hold(conn.info.backend_pid)
        conn.autocommit = True
        return conn

    def grow(self) -> None:
        now = time.monotonic()
        slot = self.slot_table.take()
        if slot is None:
            self.slot_table.request()
            if not self.lent and self.hungry_since_s is None:
                self.hungry_since_s = now
            return
        if self.hungry_since_s is not None:
            self.say(f"waited {now - self.hungry_since_s:.2f}")
            self.hungry_since_s = None
        conn = self.connect(slot)
        if conn is not None:
            self.lent[slot] = conn

    def use(self, slot: Slot) -> None:
        dice = random.random()
        if dice < 0.004:  # its backend works on when we are killed
            self.ask(slot, 0.3)
        elif dice < 0.03:
            self.ask(slot, 0.005)
        is_idle = len(self.lent) > self.demand
        is_due = dice > 0.9 or self.slot_table.is_over(slot) or self.slot_table.should_give(slot)
        if is_due or (is_idle and self.slot_table.is_wanted(slot)):
            self.leave(slot, self.lent.pop(slot))
        elif dice > 0.89:
            self.lent.pop(slot).close()
            self.slot_table.abandon(slot)

    def ask(self, slot: Slot, seconds: float) -> None:
        with self.lent[slot].cursor() as cursor:
            cursor.execute("select pg_sleep(%s)", (seconds,))

    def leave(self, slot: Slot, conn: Any) -> None:
        """Close a connection, and give its slot back when the server has closed its end."""
        with socket.socket(fileno=os.dup(conn.fileno())) as duplicate:
            conn.close()
            duplicate.setblocking(True)  # libpq's is not, and this is the same one
            with contextlib.suppress(ConnectionError):
                while duplicate.recv(4096):
                    pass
        self.slot_table.give(slot)
        self.say("returned")

    def care(self, control: Any) -> None:
        orphans = self.slot_table.orphans()
        if not orphans:
            return
        with control.cursor() as cursor:
            cursor.execute(OURS)
            rows = cursor.fetchall()
        for orphan in self.gone.among(orphans, rows):
            self.slot_table.give(orphan)
            self.say("settled")


class Gone:
    """Judges whether the backends of orphans are gone."""

    def __init__(self) -> None:
        self._since_s: dict[Slot, float] = {}

    def among(self, orphans: list[Slot], rows: list[tuple[int, str]]) -> list[Slot]:
        """Return the orphans whose backends have been none of *rows* for long enough."""
        pids, names = {pid for pid, _ in rows}, {name for _, name in rows}
        now = time.monotonic()
        gone = []
        for orphan in orphans:
            if orphan.pid in pids or f"slot-{orphan.number}" in names:
                self._since_s.pop(orphan, None)
                continue
            missing_s = now - self._since_s.setdefault(orphan, now)
            if missing_s >= (LEAVE_S if orphan.pid else CONNECT_S):
                gone.append(orphan)
        self._since_s = {
            orphan: self._since_s[orphan]
            for orphan in orphans
            if orphan in self._since_s and orphan not in gone
        }
        return gone


class Nursery:
    """A process that forks workers, as gunicorn's arbiter does: they inherit nothing from it."""

    def __init__(self, url: str, path: Path, capacity: int, event_log: int, seed: int) -> None:
        asks, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        if os.fork() == 0:
            os.close(self._ask)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while os.read(asks, 1):
                seed += 1
                pid = os.fork()
                if pid == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    self._work(url, path, capacity, event_log, seed)
                os.write(answer, f"{pid:8}".encode())
            os._exit(0)

    def _work(self, url: str, path: Path, capacity: int, event_log: int, seed: int) -> None:
        random.seed(seed)
        try:
            Worker(url, path, capacity, event_log).run()
        except Exception as error:
            os.write(event_log, f"failed {error!r}\n".encode())
        finally:
            os._exit(0)

    def start(self) -> int:
        os.write(self._ask, b"+")
        return int(os.read(self._answers, 8))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def send(pid: int, sent: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, sent)


class Storm:
    """Workers of *nursery* to whom one thing happens a round; *did* counts what."""

    def __init__(self, nursery: Nursery, did: Counter[str]) -> None:
        self._nursery = nursery
        self._did = did
        self._workers: dict[int, float] = {}  # by pid, when a stopped one goes on; 0.0 otherwise

    def go_on(self, rounds: int) -> None:
        """Let all rounds happen, and all workers end afterwards."""
        acts = [*Counter(ACTS).elements()] * (rounds // sum(ACTS.values()))
        random.shuffle(acts)
        for act in acts:
            self._wait()
            self._happen(act)
            self._did[act] += 1
        for pid in self._workers:
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)
        while any(is_alive(pid) for pid in self._workers):
            time.sleep(0.02)

    def _wait(self) -> None:
        """Let the workers work for a while, and start others in the places of those that ended."""
        ends_s = time.monotonic() + random.uniform(0, PAUSE_S)
        while time.monotonic() < ends_s or len(self._workers) < PROCESSES - 2:
            time.sleep(0.01)
            for pid, goes_on_s in self._workers.items():
                if 0 < goes_on_s <= time.monotonic():
                    send(pid, signal.SIGCONT)
                    self._workers[pid] = 0.0
            self._workers = {pid: s for pid, s in self._workers.items() if is_alive(pid)}
            if len(self._workers) < PROCESSES and random.random() < 0.5:
                self._start()

    def _start(self) -> None:
        self._workers[self._nursery.start()] = 0.0
        self._did["start"] += 1

    def _happen(self, act: str) -> None:
        everybody = list(self._workers)
        one = random.choice(everybody)
        if act == "stop":
            send(one, signal.SIGSTOP)
            self._workers[one] = time.monotonic() + random.uniform(0.05, STOPPED_S)
        elif act == "reload":  # a new generation beside the old one, which ends
            for _ in everybody:
                self._start()
            for pid in everybody:
                send(pid, signal.SIGTERM)
        else:
            for pid in everybody if act == "kill all" else (one,):
                send(pid, signal.SIGTERM if act == "end" else signal.SIGKILL)


def left(url: str, path: Path, capacity: int) -> dict[str, int]:
    """Look after what the dead left, and return how many slots there are then."""
    worker = Worker(url, path, capacity, os.open(os.devnull, os.O_WRONLY))
    _, control = worker.control()
    until_s = time.monotonic() + 30
    while worker.slot_table.stats()["held_by_all"] > 1 and time.monotonic() < until_s:
        worker.care(control)
        time.sleep(0.02)
    control.close()
    not_settled = worker.slot_table.stats()["held_by_all"] - 1
    worker.slot_table.resize(capacity)
    taken = [worker.slot_table.take() for _ in range(capacity)]
    return {"not_settled": not_settled, "free_at_the_end": sum(slot is not None for slot in taken)}


def main() -> None:
    url, superuser_url, path, capacity, rounds, seed = sys.argv[1:]
    random.seed(int(seed))
    did: Counter[str] = Counter()
    with tempfile.TemporaryFile(buffering=0) as event_log:
        os.set_blocking(event_log.fileno(), True)
        nursery = Nursery(url, Path(path), int(capacity), event_log.fileno(), int(seed))
        backends = Backends(superuser_url)
        with Highest(backends, every_s=0.005) as highest:
            Storm(nursery, did).go_on(int(rounds))
        event_log.seek(0)
        lines = event_log.read().decode().splitlines()
    said = Counter(line.split()[0] for line in lines)
    waits = [float(line.split()[1]) for line in lines if line.startswith("waited")]
    troubles = [line for line in lines if line.startswith(("refused", "failed"))]
    backends.close()
    print(
        json.dumps(
            {
                **did,
                **said,
                "highest": highest.seen,
                "longest_wait_s": max(waits, default=0.0),
                "troubles": troubles[:5],
                **left(url, Path(path), int(capacity)),
            }
        )
    )


if __name__ == "__main__":
    main()
