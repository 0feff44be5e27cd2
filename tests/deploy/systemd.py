"""
A systemd of the test's own: process 1 of new namespaces, with our units installed in it.

1. It is installed as deploy/systemd says; what differs is what `opt` holds (a copy of the code and
   of the virtual environment, which a hardened service could not see where it is) and the log.
2. It changes nothing outside: /etc, /opt, /run, /dev and shared memory are its own, and its
   processes are in a control group of their own. The network is everybody's.
3. Without the right to make namespaces, or without systemd, `Unavailable` says why.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.helpers.processes import children
from tests.helpers.support import CHECKOUT, wait_until

UNITS = CHECKOUT / "deploy/systemd"
CODE = ("app", "config", "greenline", "gunicorn.conf.py", ".flaskenv")
TOOLS = ("unshare", "nsenter", "setpriv", "mount", "useradd", "systemctl")
SYSTEMD = Path("/lib/systemd/systemd")
CONTROL_GROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
# What lies in /run is gone with the namespaces.
SETUP = r"""
set -eu
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/new/shm /run/etc/upper /run/etc/work
for device in null zero full random urandom tty; do
    touch /run/new/$device && mount --bind /dev/$device /run/new/$device
done
ln -s pts/ptmx /run/new/ptmx
mount -t tmpfs tmpfs /run/new/shm
mount --rbind /run/new /dev
umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
mount -t tmpfs -o mode=755 tmpfs /opt
cp -r "$WORK/opt/." /opt
mkdir -p /opt/python /opt/greenline/.venv/lib/$PYTHON/site-packages
chmod -R a+rX /opt
mount --bind "$PREFIX" /opt/python
mount --bind "$PACKAGES" /opt/greenline/.venv/lib/$PYTHON/site-packages
id greenline 2>/dev/null || useradd --system --no-create-home greenline
id www-data 2>/dev/null || useradd --system --no-create-home www-data
install -D -m 600 "$WORK/env" /etc/greenline/env
touch /run/log && chmod 666 /run/log
# No unit of the machine's own but these targets.
mkdir -p /run/units/greenline.service.d
cp "$UNITS/greenline.service" "$UNITS/greenline.socket" /run/units
cp "$WORK/test.conf" /run/units/greenline.service.d
for unit in sysinit basic sockets slices paths timers shutdown umount network-online; do
    cp /lib/systemd/system/$unit.target /run/units
done
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\n' > /run/units/ours.target
export container=other SYSTEMD_UNIT_PATH=/run/units SYSTEMD_LOG_TARGET=null
exec "$SYSTEMD" --system --unit=ours.target --show-status=no
"""
SCRIPT = """#!/opt/greenline/.venv/bin/python
import sys
from {module} import {name}
sys.exit({name}())
"""
# Beside a Python that was moved lies the library that it is linked to.
DROP_IN = """[Service]
StandardOutput=append:/run/log
StandardError=append:/run/log
Environment=LD_LIBRARY_PATH=/opt/python/lib
"""


class Unavailable(Exception):
    """There is no systemd that could be run here; says why."""


class Systemd:
    """The running one: outside its process 1 is *pid*, and its processes are in *group*."""

    def __init__(self, pid: int, group: Path) -> None:
        self._pid = pid
        self._group = group
        self.root = Path(f"/proc/{pid}/root")
        self.socket = self.root / "run/greenline/http.sock"
        self.code = self.root / "opt/greenline"

    @property
    def log(self) -> str:
        """What the service wrote."""
        return (self.root / "run/log").read_text(errors="replace")

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in its namespaces."""
        within = ["nsenter", f"--target={self._pid}", "--mount", "--pid"]
        return subprocess.run(
            [*within, *command], capture_output=True, text=True, timeout=120, check=False
        )

    def control(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `systemctl`."""
        return self.run("systemctl", *arguments)

    def processes(self, unit: str) -> list[int]:
        """Return the process ids of a service, as they are outside."""
        text = (self._group / "system.slice" / unit / "cgroup.procs").read_text()
        return [int(pid) for pid in text.split()]

    def property_of(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.control("show", "--value", f"--property={name}", unit).stdout.strip()


def missing() -> str | None:
    """Return why none can be run here, None when it may."""
    if os.geteuid() != 0:
        return "only root can make a systemd of its own"
    if not SYSTEMD.exists():
        return "there is no systemd"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"there is no {lacking[0]}"
    if _control_groups() is None:
        return "there are no control groups (version 2) to write to"
    return None


@contextmanager
def booted(environ: Mapping[str, str], folder: Path) -> Iterator[Systemd]:
    """Boot one whose /etc/greenline/env is *environ*; nothing of ours is started yet."""
    if why := missing():
        raise Unavailable(why)
    _write(environ, folder)
    group = _control_groups()
    assert group is not None
    group = group / f"greenline-test-{os.getpid()}"
    group.mkdir()
    said = folder / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-ec", f'echo $$ > "{group}/cgroup.procs"; exec "$@"', "sh",
             "setpriv", "--pdeathsig", "KILL", "unshare",
             "--cgroup", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child",
             "/bin/sh", "-c", SETUP],
            env={**os.environ, **_places(folder)}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield _awaited(process, group, said)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: _removed(group), "its processes to end")


def _awaited(process: "subprocess.Popen[bytes]", group: Path, said: Path) -> Systemd:
    """Return it when it takes orders."""
    first = wait_until(lambda: process.poll() is not None or children(process.pid), "its process 1")
    if isinstance(first, list):
        running = Systemd(first[0], group)
        is_up = partial(running.property_of, "ours.target", "ActiveState")
        wait_until(lambda: process.poll() is not None or is_up() == "active", "it to boot")
        if process.poll() is None:
            return running
    raise Unavailable((said.read_text().strip().splitlines() or ["it said nothing"])[-1])


def _places(folder: Path) -> dict[str, str]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "WORK": str(folder),
        "UNITS": str(UNITS),
        "SYSTEMD": str(SYSTEMD),
        "PYTHON": version,
        "PREFIX": sys.base_prefix,
        "PACKAGES": sysconfig.get_path("purelib"),
    }


def _write(environ: Mapping[str, str], folder: Path) -> None:
    """Lay out what is copied into its /opt and /etc."""
    code, programs = folder / "opt/greenline", folder / "opt/greenline/.venv/bin"
    code.mkdir(parents=True)
    for name in CODE:
        source = CHECKOUT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, code / name)
    programs.mkdir(parents=True)
    python = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    (programs / "python").symlink_to(python)
    (programs.parent / "pyvenv.cfg").write_text("home = /opt/python/bin\n")
    for name, module, function in (
        ("gunicorn", "gunicorn.app.wsgiapp", "run"),
        ("flask", "flask.cli", "main"),
    ):
        (programs / name).write_text(SCRIPT.format(module=module, name=function))
        (programs / name).chmod(0o755)
    (folder / "env").write_text("".join(f"{name}={value}\n" for name, value in environ.items()))
    (folder / "test.conf").write_text(DROP_IN)


def _control_groups() -> Path | None:
    for place in CONTROL_GROUPS:
        if (place / "cgroup.procs").exists() and os.access(place, os.W_OK):
            return place
    return None


def _removed(group: Path) -> bool:
    with suppress(OSError):
        for each in sorted(group.rglob("*/"), reverse=True):
            each.rmdir()
        group.rmdir()
    return not group.exists()
