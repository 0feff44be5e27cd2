"""
Load the application once, in a child, before the workers do.

gunicorn's master stops everything when a worker refuses to boot, and it stumbles when two
refuse at once. A trial finds it out first, and tells it once.
"""

import os
import sys
import traceback
from typing import Any

from gunicorn.errors import AppImportError

REFUSED = 4  # what gunicorn's own workers exit with when the application cannot be loaded


def try_application(server: Any) -> None:
    """
    Load *server*'s application (a gunicorn Arbiter's) as one of its workers would.

    Exit with the child's status when it cannot be loaded; a reloading server goes on, because
    its workers wait for the next change of the code.
    """
    if server.cfg.reload:
        return
    child = os.fork()
    if child == 0:
        os._exit(_load(server))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        sys.exit(status)


def _load(server: Any) -> int:
    try:
        from gevent import monkey
        from gunicorn.workers.ggevent import GeventWorker

        if issubclass(server.cfg.worker_class, GeventWorker):
            monkey.patch_all()
        server.app.wsgi()
    except AppImportError as error:
        print(error, file=sys.stderr, flush=True)
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return REFUSED
    return 0
