"""
Make .venv and install the pinned requirements into it: python3 embedded/venv.py SET.

1. Nothing is done when it was done before, for these requirements, here, with this Python.
2. An install that was cut short leaves a mark, and the next run starts .venv anew.
3. Two runs at once wait for each other.

It runs before anything is installed, and on a Python that may be too old: standard library only,
and no syntax newer than the check of the version.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys

OLDEST = (3, 11)
SETS = {
    "serve": ["requirements.txt", "requirements-embedded.txt"],
    "dev": ["requirements-dev.txt"],  # All of serve, and the tools.
    "bench": ["requirements-bench.txt"],  # All of serve, and what we are compared with.
}
# What else holds all of a set.
LARGER = {"serve": {"dev", "bench"}}
CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(CHECKOUT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
UNFINISHED = os.path.join(VENV, "unfinished")


def main(name):
    """Have .venv hold the requirements of the set *name*."""
    # As an exception, so that the clean-up of a running pip or apt-get happens.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler)
    lock = os.open(CHECKOUT, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if any(_read(_stamp(each)) == _digest() for each in _holding(name)) and _python_runs():
        return
    _require_new_enough()
    if os.path.exists(UNFINISHED) or (os.path.exists(VENV) and not _python_runs()):
        shutil.rmtree(VENV)
    os.makedirs(VENV, exist_ok=True)
    open(UNFINISHED, "w").close()
    if not os.path.exists(PYTHON):
        _require_venv()
        print("setup: making .venv", flush=True)
        _run([sys.executable, "-m", "venv", VENV])
    print("setup: installing " + " and ".join(SETS[name]) + " into .venv", flush=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for each in SETS[name]:
        pip += ["-r", os.path.join(CHECKOUT, each)]
    _run(pip)
    with open(_stamp(name), "w") as stamp:
        stamp.write(_digest())
    os.remove(UNFINISHED)


def _holding(name):
    """Return the sets that hold all of *name*."""
    return {name} | LARGER.get(name, set())


def _stamp(name):
    return os.path.join(VENV, "installed-" + name)


def _digest():
    """Return what an install depends on: the requirements, and where .venv is."""
    found = hashlib.sha256(VENV.encode())
    for name in sorted(os.listdir(CHECKOUT)):
        if name.startswith("requirements") and name.endswith(".txt"):
            found.update(_read(os.path.join(CHECKOUT, name)).encode())
    return found.hexdigest()


def _read(path):
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


def _python_runs():
    """Return whether the Python that .venv was made with is still there."""
    command = [PYTHON, "-c", "import pip"]
    try:
        return subprocess.call(command, stderr=subprocess.DEVNULL, cwd="/") == 0
    except OSError:
        return False


def _require_new_enough():
    """Go on with a newer Python where this one is too old and there is one."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(20, OLDEST[1] - 1, -1):
        newer = shutil.which("python3." + str(minor))
        if newer:
            os.execv(newer, [newer, *sys.argv])
    _fail(
        "PYTHON: {} is Python {}.{}; install Python 3.11 or newer, or name one, as in "
        "make serve PYTHON=/path/to/python3.11".format(sys.executable, *sys.version_info[:2])
    )


def _require_venv():
    """Debian has venv in a package of its own: install that as root, or name it."""
    found = [sys.executable, "-c", "import venv, ensurepip"]
    if subprocess.call(found, stderr=subprocess.DEVNULL) == 0:
        return
    package = "python{}.{}-venv".format(*sys.version_info[:2])
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("setup: installing the system package " + package, flush=True)
        environ = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        _run(["apt-get", "update", "-qq"], environ)
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], environ)
    else:
        _fail("python3 -m venv is missing; install the system package " + package)


def _run(command, environ=None):
    try:
        status = subprocess.call(command, env=environ, stdin=subprocess.DEVNULL)
    except KeyboardInterrupt:
        sys.exit(130)
    if status:
        _fail("failed, as told above: " + " ".join(command[:4]))


def _fail(line):
    sys.stderr.write("setup: " + line + "\n")
    sys.exit(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        _fail(f"{error}; the checkout must be writable, with space left")
