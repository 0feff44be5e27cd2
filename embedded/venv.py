"""
Make .venv and install the pinned requirements into it: python3 embedded/venv.py SET.

The console script ``greenline`` of this checkout is added, and what the package has in C is
compiled where there is a compiler: pip would have to build both. gunicorn_h1c has no wheel for
Linux, so on Debian root gets a compiler where there is none.

1. Nothing is done when it was done before, for these requirements, here, with this Python.
2. An install that was cut short leaves a mark, and the next run starts .venv anew.
3. Two runs at once wait for each other.

It runs before anything is installed, and on a Python that may be too old: standard library only,
and no syntax newer than the check of the version.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

OLDEST = (3, 11)
SETS = {
    "serve": ["requirements.txt", "requirements-embedded.txt"],
    "dev": ["requirements-dev.txt"],  # All of serve, and the tools.
    "bench": ["requirements-bench.txt"],  # All of serve, and what we are compared with.
}
# Measured on two cores, with packages from a near mirror.
VENV_S = 5
INSTALL_S = {"serve": 20, "dev": 40, "bench": 40}
BAR = 30  # characters
# What else holds all of a set.
LARGER = {"serve": {"dev", "bench"}}
CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(CHECKOUT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
UNFINISHED = os.path.join(VENV, "unfinished")
SCRIPT = os.path.join(VENV, "bin", "greenline")
SOURCE = os.path.join(CHECKOUT, "greenline", "postgres", "_copying.c")
COMPILED = os.path.join(CHECKOUT, "greenline", "postgres", "_copying.abi3.so")
# As pip writes it, for a path to Python that a #! line cannot hold: sh runs the second line, and
# for Python lines 2 and 3 are a text.
SCRIPT_TEXT = """#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
import sys
sys.path.insert(0, {checkout!r})
from greenline.cli import main
main(prog_name="greenline")
"""


def main(name):
    """Have .venv hold the requirements of the set *name*."""
    # As an exception, so that the clean-up of a running pip or apt-get happens.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler)
    lock = os.open(CHECKOUT, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (any(_read(_stamp(each)) == _digest() for each in _holding(name)) and _python_runs()):
        _make(name)
    _compile()
    _add_script()


def _make(name):
    """Make .venv, or add to it what is missing."""
    _require_new_enough()
    if os.path.exists(UNFINISHED) or (os.path.exists(VENV) and not _python_runs()):
        shutil.rmtree(VENV)
    os.makedirs(VENV, exist_ok=True)
    open(UNFINISHED, "w").close()
    if not os.path.exists(PYTHON):
        _require_venv()
        _log(f"making .venv, about {VENV_S} s")
        _run([sys.executable, "-m", "venv", VENV])
    _require_compiler()
    _install(name)
    with open(_stamp(name), "w") as stamp:
        stamp.write(_digest())
    os.remove(UNFINISHED)


def _install(name):
    """Run pip, and show on a terminal how far it is."""
    count = len(set().union(*(_packages(each) for each in SETS[name])))
    _log(f"installing {count} packages into .venv, about {INSTALL_S[name]} s")
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    for each in SETS[name]:
        pip += ["-r", os.path.join(CHECKOUT, each)]
    if not sys.stdout.isatty():
        _run([*pip, "--quiet"], hint=_compiler_hint())
        return
    seen = 0
    # pip's errors go to stderr, which it has from us.
    with subprocess.Popen(
        pip, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, universal_newlines=True
    ) as process:
        try:
            for line in process.stdout:
                words = line.split()
                if words[:1] == ["Collecting"]:
                    seen = min(seen + 1, count)
                    _draw(seen, count, words[1])
                elif line.startswith("Installing collected"):
                    _draw(count, count, "unpacking")
        except KeyboardInterrupt:
            process.kill()
            sys.exit(130)
        finally:
            sys.stdout.write("\r\x1b[K")  # the bar goes: what comes next begins in its place
            sys.stdout.flush()
    if process.returncode:
        _fail("failed, see above: " + " ".join(pip[:4]) + _compiler_hint())


def _draw(seen, count, what):
    filled = BAR * seen // count
    bar = "#" * filled + "." * (BAR - filled)
    # A line that is cut to 80 columns: one that wraps could not be drawn over.
    sys.stdout.write(f"\r\x1b[K  [{bar}] {seen}/{count} {what}"[:85])
    sys.stdout.flush()


def _packages(name):
    """Return the names that a file of requirements has, with those of the files that it names."""
    found = set()
    for line in _read(os.path.join(CHECKOUT, name)).splitlines():
        if line.startswith("-r "):
            found |= _packages(line[3:].strip())
        elif line[:1].isalnum():
            found.add(line.partition("==")[0])
    return found


def _add_script():
    text = SCRIPT_TEXT.format(python=shlex.quote(PYTHON), checkout=CHECKOUT)
    if _read(SCRIPT) != text:
        # To be run by those whom the umask lets.
        fd = os.open(SCRIPT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o777)
        with open(fd, "w") as file:
            file.write(text)


def _compile():
    """Compile for Python 3.11 and all later ones; greenline.postgres.copying does without it."""
    if sys.version_info < OLDEST or _changed_s(COMPILED) >= _changed_s(SOURCE):
        return
    if os.path.exists(COMPILED):  # it may not fit the code any more
        os.remove(COMPILED)
    made = COMPILED + ".new"
    command = [*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-O2"]
    if sys.platform == "darwin":
        command += ["-undefined", "dynamic_lookup"]
    command += ["-I" + sysconfig.get_path("include"), SOURCE, "-o", made]
    try:
        # Without a word: there may be a compiler and none of Python's headers.
        status = subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return
    if status == 0:
        os.replace(made, COMPILED)


def _changed_s(path):
    return os.path.getmtime(path) if os.path.exists(path) else 0


def _log(line):
    """Print *line* with time and level, as the log of the service has them."""
    now = time.strftime("%Y-%m-%d %H:%M:%S %z")
    print(f"[{now}] [{os.getpid()}] [INFO] setup: {line}", flush=True)


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
    if not _add_packages([package]):
        _fail("python3 -m venv is missing; install the system package " + package)


def _require_compiler():
    """Install a compiler as root where there is none; else pip may find wheels of everything."""
    if not _has_compiler():
        _add_packages(_compiler_packages())


def _has_compiler():
    """Return whether pip can compile gunicorn_h1c, which has no wheel for Linux."""
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    return bool(shutil.which(compiler)) and os.path.exists(header)


def _compiler_packages():
    return ["gcc", "libc6-dev", "python{}.{}-dev".format(*sys.version_info[:2])]


def _compiler_hint():
    if _has_compiler():
        return ""
    packages = ", ".join(_compiler_packages())
    return "; what has no wheel needs a C compiler: install the system packages " + packages


def _add_packages(names):
    """Install system packages where that is possible, on Debian and as root; return whether."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    _log("installing the system packages {}, about {} s".format(", ".join(names), 10 * len(names)))
    environ = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names]
    return all(
        _call(command, env=environ, stdout=subprocess.DEVNULL) == 0
        for command in (["apt-get", "update", "-qq"], install)
    )


def _call(command, **options):
    try:
        return subprocess.call(command, stdin=subprocess.DEVNULL, **options)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(command, hint=""):
    if _call(command):
        _fail("failed, see above: " + " ".join(command[:4]) + hint)


def _fail(line):
    sys.stderr.write("setup: " + line + "\n")
    sys.exit(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        _fail(f"{error}; the checkout must be writable, with space left")
