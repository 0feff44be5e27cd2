"""
What gunicorn's master does for green workers.

1. On HUP it tries the new release in a process of its own. One that cannot be loaded is refused in
   one line, and the workers go on with the old one: gunicorn alone would stop everything.
2. It says when it stops. A worker that is only replaced (HUP, USR2, max_requests, TTOU) gets the
   same SIGTERM, and must not call the service unready for it.
3. It is met in the ``pre_fork`` hook: the one place where a worker class sees it.
"""

from functools import partial
from mmap import mmap
from typing import Any

from greenline.trial import try_release

# Shared with the workers, which are forked off later.
_stopping = mmap(-1, 1)


def is_stopping() -> bool:
    """Return whether the service ends with this master, and no other takes its place."""
    return _stopping[0] != 0


def attend(cfg: Any) -> None:
    """Have the master whose workers *cfg* describes do the above; once is enough."""
    hook = cfg.pre_fork
    if not (isinstance(hook, partial) and hook.func is _pre_fork):
        cfg.set("pre_fork", partial(_pre_fork, hook))


def _pre_fork(hook: Any, server: Any, worker: Any) -> None:
    if "handle_hup" not in vars(server):
        server.handle_hup = partial(_reload, server, server.handle_hup)
        server.stop = partial(_stop, server, server.stop)
    hook(server, worker)


def _reload(server: Any, reload: Any) -> None:
    if try_release(server, again=True) == 0:
        reload()
    else:
        server.log.error(
            "reload refused: the new release cannot be loaded (see above); "
            "the workers go on with the old one"
        )


def _stop(server: Any, stop: Any, graceful: bool = True) -> None:
    if not server.reexec_pid:  # else a new master serves on the same sockets
        _stopping[0] = 1
    stop(graceful)
