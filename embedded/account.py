"""
The system user that runs Postgres when we are root, because Postgres refuses to run as root.

Root may be missing capabilities, and a path may be closed to a user in many ways (mode bits,
ACLs, mount options), so what the user can reach is found by trying as that user.
"""

import os
import pwd
import shutil
from pathlib import Path
from typing import NamedTuple

from embedded.process import run, wait_until
from greenline.errors import ConfigError

NAME = "greenline-postgres"


class Account(NamedTuple):
    """Who runs Postgres: *become* are the options of setpriv that change to it."""

    uid: int
    gid: int
    become: tuple[str, ...] = ()

    def can(self, what: str, path: Path) -> bool:
        """Return whether this user can read (``-r``), write (``-w``) or enter (``-x``) *path*."""
        return run(["test", what, path], become=self.become).returncode == 0


def account() -> Account:
    """
    Return ourselves, or as root the system user, made when it is missing.

    It is never removed, as those of Debian's packages: another checkout may start with it now.

    Raises:
        ConfigError: the user cannot be made here.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    if shutil.which("setpriv") is None:
        raise ConfigError(
            "DATABASE_URL: Postgres does not run as root, and setpriv is missing; "
            "install util-linux, set DATABASE_URL, or do not run as root"
        )
    # Two starts at once: the other one holds the lock of the password file.
    if not wait_until(lambda: _known() or _add(), timeout_s=5):
        raise ConfigError(
            f"DATABASE_URL: Postgres does not run as root, and the user {NAME} cannot be added; "
            "set DATABASE_URL, or do not run as root"
        )
    user = pwd.getpwnam(NAME)
    become = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return Account(user.pw_uid, user.pw_gid, become)


def _known() -> bool:
    try:
        return bool(pwd.getpwnam(NAME))
    except KeyError:
        return False


def _add() -> bool:
    if shutil.which("useradd") is None:
        return False
    command = ["useradd", "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", NAME]
    return run(command).returncode == 0
