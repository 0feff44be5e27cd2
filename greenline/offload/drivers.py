"""
Run the methods of drivers that wait in C in native threads.

1. Calls of a thread-safe library run in any thread.
2. The calls of one object of another library run one by one in a thread of its own.
3. pymssql has a callback that waits.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

from gevent.socket import wait_read

from greenline.hub.deadline import wait_in
from greenline.offload import threads
from greenline.offload.imports import after_import
from greenline.offload.threads import OwnThread

# Methods by module and by class.
Drivers = dict[str, dict[str, tuple[str, ...]]]
ANY_THREAD: Drivers = {
    "confluent_kafka.cimpl": {
        "Producer": (
            "abort_transaction", "close", "cluster_id", "commit_transaction", "flush",
            "init_transactions", "list_topics", "poll", "purge", "send_offsets_to_transaction",
        ),
        "Consumer": (
            "close", "cluster_id", "commit", "committed", "consume", "get_watermark_offsets",
            "list_topics", "offsets_for_times", "poll", "unsubscribe",
        ),
        "_AdminClientImpl": ("list_groups", "list_topics", "poll"),
    },
}  # fmt: skip
OWN_THREAD: Drivers = {
    "pylibmc.client": {
        "Client": (
            "add", "add_multi", "append", "cas", "decr", "decr_multi", "delete", "delete_multi",
            "disconnect_all", "flush_all", "get", "get_multi", "get_stats", "gets", "incr",
            "incr_multi", "prepend", "replace", "set", "set_multi", "touch",
        ),
    },
}  # fmt: skip
# They run after a deadline, too.
CLEANUPS = {"abandon_ext", "close", "disconnect_all", "unbind_ext"}
# With a timeout of 0 they wait for nothing; they are called after each message.
POLLS = {"consume", "flush", "poll"}

LDAP = "ldap.ldapobject"
# The others wait: the first one connects, and looks up the name of the server.
LDAP_LOCAL = {"get_option", "set_option"}

Method = Callable[..., Any]


def patch() -> None:
    """Replace the methods, right after their modules are imported."""
    for make, drivers in ((_in_any_thread, ANY_THREAD), (_in_own_thread, OWN_THREAD)):
        for module, classes in drivers.items():
            after_import(module, partial(_replace, classes, make))
    after_import(LDAP, _replace_ldap)
    after_import("pymssql", _replace_pymssql)


def _replace(
    classes: dict[str, tuple[str, ...]], make: Callable[[Method], Method], module: ModuleType
) -> None:
    for name, methods in classes.items():
        kind: Any = getattr(module, name, None)
        if kind is None:
            continue
        made = {each: make(getattr(kind, each)) for each in methods if hasattr(kind, each)}
        try:
            for each, method in made.items():
                setattr(kind, each, method)
        except TypeError:  # a class in C: its subclass takes its place
            body = {"__module__": kind.__module__, "__doc__": kind.__doc__, **made}
            setattr(module, name, type(kind.__name__, (kind,), body))


def _replace_ldap(module: ModuleType) -> None:
    kind: Any = module.SimpleLDAPObject
    original = kind._ldap_call

    @wraps(original)
    def call(self: Any, func: Method, *args: Any, **kwargs: Any) -> Any:
        # The lock of the connection, which this takes, is held as on threads.
        name = func.__name__
        if name not in LDAP_LOCAL:
            run, given = partial(own_thread(self).call, is_cleanup=name in CLEANUPS), func
            func = wraps(given)(lambda *args, **kwargs: run(partial(given, *args, **kwargs)))
        return original(self, func, *args, **kwargs)

    kind._ldap_call = call


def _replace_pymssql(module: ModuleType) -> None:
    pymssql: Any = module
    # Its own way to wait for an answer; the login has none.
    if pymssql._mssql.wait_callback is None:
        pymssql.set_wait_callback(_wait_for_answer)
    for each in (pymssql, pymssql._mssql):
        each.connect = wraps(each.connect)(partial(threads.run, each.connect))


def _wait_for_answer(fd: int) -> None:
    if threads.can_wait():
        wait_in(wait_read, fd)


def _in_any_thread(method: Method) -> Method:
    is_poll = method.__name__ in POLLS

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_poll and kwargs.get("timeout", args[-1] if args else None) == 0:
            return method(self, *args, **kwargs)
        return threads.run(method, self, *args, **kwargs)

    return call


def _in_own_thread(method: Method) -> Method:
    return in_own_thread(method, is_cleanup=method.__name__ in CLEANUPS)


def in_own_thread(method: Method, *, is_cleanup: bool) -> Method:
    """
    Return a method that runs *method* in a native thread of its object.

    :param method: the method.
    :param is_cleanup: run it even after the request's deadline.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own_thread(self).call(partial(method, self, *args, **kwargs), is_cleanup=is_cleanup)

    return call


def own_thread(owner: Any) -> OwnThread:
    """Return the native thread of an object, which may be older than the patching."""
    state = vars(owner)
    own: OwnThread | None = state.get("_greenline_thread")
    if own is None:
        own = state["_greenline_thread"] = OwnThread()
    return own
