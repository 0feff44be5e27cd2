"""
Load the application once, in a child, before the workers do.

gunicorn's master stops everything when a worker refuses to boot, and it stumbles when two
refuse at once. A trial finds it out first, and tells it once.
"""

import os
import signal
import sys
import time
import traceback
from typing import Any

from gunicorn.errors import AppImportError

REFUSED = 4  # what gunicorn's own workers exit with when the application cannot be loaded
# A release that takes longer to load than this is taken for one that hangs.
TIMEOUT_S = 60.0


def try_application(server: Any) -> None:
    """
    Load *server*'s application (a gunicorn Arbiter's) as one of its workers would.

    Exit with the child's status when it cannot be loaded; a reloading server goes on, because
    its workers wait for the next change of the code.
    """
    status = try_release(server)
    if status:
        sys.exit(status)


def try_release(server: Any, *, again: bool = False) -> int:
    """Return 0 when the application can be loaded; *again* reads the configuration anew as well."""
    if server.cfg.reload:
        return 0
    child = os.fork()
    if child == 0:
        os._exit(_load(server, again))
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(f"the application did not load within {TIMEOUT_S:.0f} s", file=sys.stderr, flush=True)
    return REFUSED


def _load(server: Any, again: bool) -> int:
    try:
        from gevent import monkey
        from gunicorn.workers.ggevent import GeventWorker

        if again:
            server.app.reload()
        if issubclass(server.app.cfg.worker_class, GeventWorker):
            monkey.patch_all()
        server.app.wsgi()
    except AppImportError as error:
        print(error, file=sys.stderr, flush=True)
        return REFUSED
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr, flush=True)
        return error.code if isinstance(error.code, int) and error.code else REFUSED
    except BaseException:
        traceback.print_exc()
        return REFUSED
    return 0
