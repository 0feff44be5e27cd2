"""
Let the ``MongoClient`` objects of unmodified code share their connections.

There is one :class:`SharedClient` in a process for each set of arguments. An object that the
application makes has its state: the topology with its monitors and pools, and the options. Its
``close()`` ends the use of that object alone.

An object that was made before a fork gets the state of a client of the child there.
"""

import os
import threading
from functools import partial, wraps
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

import gevent
import pymongo
from gevent.lock import BoundedSemaphore
from gevent.monkey import is_module_patched
from pymongo.errors import InvalidOperation
from pymongo.server_api import ServerApi

from greenline.errors import LatePatching, PoolTimeout
from greenline.mongo.counted import (
    CLOSE_S,
    END_S,
    Budget,
    CountedPool,
    no_connection,
    wait_s,
)
from greenline.mongo.driver import KillableCondition, Sockets
from greenline.mongo.host import deployment_at
from greenline.mongo.pymongo_compat import (
    LISTENERS,
    MongoClient,
    Topology,
)

# The parameters of MongoClient that may be given by position.
POSITIONAL = ("host", "port", "document_class", "tz_aware", "connect", "type_registry")
PLAIN = {str, int, float, bool, bytes, type(None)}
OTHER_THREAD = (
    "this MongoClient belongs to the main thread, whose event loop its sockets wait in: make one "
    "in the function that runs in a native thread"
)

_init = MongoClient.__init__
_close = MongoClient.close
_topology_of = MongoClient._get_topology

_clients: dict[Any, "SharedClient"] = {}
_budgets: dict[str, Budget] = {}
_opening = BoundedSemaphore()  # the slot table's file may let a greenlet wait
_era = object()  # another one in a child


def pool_pymongo() -> None:
    """
    Let each ``MongoClient`` of the process share connections, as GREENLINE_POOL=1 does.

    Call it once, in the first line of a script after ``greenline.patch.patch_all()``, or of a
    module that a worker loads. Clients with the same arguments share their connections, and those
    of all clients are bounded by the host's budget.

    :raises LatePatching: pymongo would block the hub.
    """
    if not is_module_patched("threading"):
        raise LatePatching("pymongo would block: call greenline.patch.patch_all() first")
    install()


def install() -> None:
    """Share clients from now on."""
    owner: Any = MongoClient
    owner.__init__, owner.close = init, close
    owner._get_topology = get_topology


def _begin_anew() -> None:
    """
    Give each object of the application the state of another client at its next operation.

    In a child, the sockets, locks and monitors of the clients are its parent's. If that process
    was not patched, the child's clients are made after the patching.
    """
    global _era, _opening
    _era, _opening = object(), BoundedSemaphore()
    _clients.clear()
    _budgets.clear()


class SharedClient:
    """
    The state of all ``MongoClient`` objects of this process with the same arguments.

    :param key: what it is found by.
    :param arguments: the application's, by name.
    :raises PyMongoError: as ``MongoClient`` raises it.
    """

    def __init__(self, key: Any, arguments: dict[str, Any]) -> None:
        self.key = key
        self.arguments = arguments
        # By the id: MongoClient compares by the servers' addresses.
        self.users: WeakValueDictionary[int, MongoClient[Any]] = WeakValueDictionary()
        self.is_open = self.is_gone = self.is_retired = False
        self.era = _era
        self.monitors = Sockets()
        self._used_s = monotonic()
        self._opening = threading.Lock()
        # Before the fork gevent's objects may not be used: pymongo's own wait in threads.
        self.is_green = is_module_patched("threading")
        inner: dict[str, Any] = {
            "_pool_class": partial(CountedPool, self),
            "_condition_class": KillableCondition,
        }
        self.client: MongoClient[Any] = MongoClient.__new__(MongoClient)
        _init(self.client, **arguments, **(inner if self.is_green else {}))

    def __repr__(self) -> str:
        return f"<SharedClient {self.client} users={len(self.users)} open={self.is_open}>"

    def adopt(self, user: MongoClient[Any]) -> None:
        """Give an object of the application the state of this client."""
        self._used_s = monotonic()
        self.users[id(user)] = user
        self._give_state(user)

    def end_use(self, user: MongoClient[Any]) -> None:
        """Leave an object of the application as a closed client."""
        self.users.pop(id(user), None)
        if not self.is_green:
            _close(self.client)
        user._closed = True

    def open(self) -> None:
        """
        Begin to connect, if that has not begun.

        :raises WaitQueueTimeoutError: the budget had no room for its monitors in time.
        """
        timeout_s = wait_s(self.client.options.pool_options.wait_queue_timeout)
        until = monotonic() + timeout_s
        if self._opening.acquire(timeout=timeout_s):
            try:
                if self.is_open or self._open(until - monotonic()):
                    return
            finally:
                self._opening.release()
        raise no_connection(PoolTimeout(), timeout_s)

    def _open(self, timeout_s: float) -> bool:
        if self.is_green:
            self.budget = _budget_of(self.client)
            if not self.budget.admit(self, timeout_s):
                return False
        self.client._get_topology()
        self.is_open = True
        # With mongodb+srv, the hosts and options are known only now.
        for user in list(self.users.values()):
            self._give_state(user)
        return True

    def unused_s(self) -> float:
        """Return for how many seconds the application has had no object with this state."""
        return 0.0 if self.users or self.is_retired else monotonic() - self._used_s

    def retire(self) -> None:
        """Have the application's next ``MongoClient`` make another one."""
        self.is_retired = True
        if _clients.get(self.key) is self:
            del _clients[self.key]

    def close(self) -> None:
        """Close it, and return when the monitors and the server have noticed it."""
        with pymongo.timeout(CLOSE_S):  # close() sends endSessions to the server
            self.client.close()
        while self.monitors.count():  # a monitor closes its socket only after its pending answer
            gevent.sleep(END_S)
        gevent.sleep(END_S)
        self.is_gone = True

    def _give_state(self, user: MongoClient[Any]) -> None:
        # _opened is for _get_topology(), which is ours, and for the warning of an object that was
        # not closed: here it loses nothing.
        vars(user).update(vars(self.client), _opened=False, _greenline=self)


def _shared(arguments: dict[str, Any]) -> SharedClient:
    """Return the client with these arguments."""
    if not is_module_patched("threading"):  # nothing is shared: the arbiter has no budget
        return SharedClient(None, arguments)
    # A client keeps the listeners that are registered when it is made.
    key = _frozen(arguments), tuple(map(len, LISTENERS))
    found = _clients.get(key)
    if found is None:
        made = SharedClient(key, arguments)
        # A budget closes the open ones.
        for one in [one for one in _clients.values() if not one.is_open and not one.users]:
            one.retire()
        found = _clients.setdefault(key, made)  # a log handler may have let another greenlet run
    return found


def _frozen(value: Any) -> Any:
    """Return what two values have in common only if a client is the same with each of them."""
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, dict):
        return frozenset((name, _frozen(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return type(value), *map(_frozen, value)
    if type(value) is ServerApi:  # it compares by identity, and is often made for each client
        return ServerApi, _frozen(vars(value))
    return _Same(value)


class _Same:
    """An object that equals itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


def _budget_of(client: MongoClient[Any]) -> Budget:
    fqdn = client._topology_settings.fqdn
    name = f"mongodb+srv://{fqdn}" if fqdn else deployment_at(client._topology_settings.seeds)
    with _opening:
        found = _budgets.get(name)
        if found is None:
            found = _budgets[name] = Budget(name)
        return found


def _is_native() -> bool:
    """Return whether this is a native thread, in whose hub the clients' sockets cannot wait."""
    return is_module_patched("threading") and not gevent.get_hub().main_hub


@wraps(_init)
def init(self: MongoClient[Any], *args: Any, **kwargs: Any) -> None:
    """Make a client as ``MongoClient`` does; the parameters are its own."""
    arguments = dict(zip(POSITIONAL, args, strict=False)) | kwargs
    if (
        "_pool_class" in kwargs  # it is a part of another one, or Greenline's own
        or _is_native()
        or len(arguments) != len(args) + len(kwargs)  # a TypeError
    ):
        _init(self, *args, **kwargs)
        return
    # It connects at its first operation, whatever the application says: that may be in a child.
    _shared(arguments | {"connect": False}).adopt(self)


@wraps(_close)
def close(self: MongoClient[Any]) -> None:
    """Close this client; the connections stay for others with the same arguments."""
    shared = vars(self).get("_greenline")
    if shared is None:
        _close(self)
    elif not self._closed:
        shared.end_use(self)


@wraps(_topology_of)
def get_topology(self: MongoClient[Any]) -> Topology:
    """Return the topology, which begins to connect at the first use."""
    shared = vars(self).get("_greenline")
    if shared is None:
        return _topology_of(self)
    if self._closed:
        raise InvalidOperation("Cannot use MongoClient after close")
    if shared.era is not _era:
        shared = _shared(shared.arguments)
        shared.adopt(self)
    if shared.is_green and not gevent.get_hub().main_hub:
        raise InvalidOperation(OTHER_THREAD)
    if not shared.is_open:
        shared.open()
    return self._topology


os.register_at_fork(after_in_child=_begin_anew)
