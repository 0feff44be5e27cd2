"""Signals and processes in requests."""

import ast

from greenline.doctor.codes import ALARM, FORKS, SIGNAL_IN_REQUEST
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Call, Module, Site, walked

ALARMS = ("signal.alarm", "signal.setitimer")
MAIN_THREAD = ("threading.main_thread", "threading._MainThread")
GUARDS = ("signal.signal", *MAIN_THREAD)
EXPECTING = {"ValueError", "Exception", "BaseException"}
FORKING = (
    "os.fork", "os.forkpty", "multiprocessing.Process", "multiprocessing.Pool",
    "multiprocessing.pool.Pool", "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process.ProcessPoolExecutor", "multiprocessing.get_context().Process",
    "multiprocessing.get_context().Pool",
)  # fmt: skip


def alarms(module: Module, facts: Facts) -> Found:
    """Find alarms in functions; alarm(0) alone ends one."""
    # Outside of the main thread, where requests run, signal.signal() raises and no alarm is set.
    guarded = {call.site.scope.function for call in module.calls if call.name in GUARDS}
    for call in module.calls:
        if call.name in ALARMS and _may_be_in_a_request(call):
            if not guarded.isdisjoint(call.site.scope.functions()):
                continue
            seconds = call.given("seconds", 0 if call.name == "signal.alarm" else 1)
            if not (isinstance(seconds, ast.Constant) and seconds.value == 0):
                yield ALARM, call.node, f"{call.name}()"


def handlers(module: Module, facts: Facts) -> Found:
    """Find signal.signal() in what a web framework calls, and in functions that limit a time."""
    expected = {
        each
        for node, _ in module.tries
        if any(clause.type is None or ast.unparse(clause.type) in EXPECTING
               for clause in node.handlers)
        for each in walked(node.body)
    }  # fmt: skip
    guarded = {call.site.scope.function for call in module.calls if call.name in MAIN_THREAD}
    alarming = {call.site.scope.function for call in module.calls if call.name in ALARMS}
    for call in module.calls:
        if call.name != "signal.signal" or call.node in expected:
            continue
        function = call.site.scope.function
        limits = function in alarming - guarded and _may_be_in_a_request(call)
        if limits or is_view(call.site):
            yield SIGNAL_IN_REQUEST, call.node, "signal.signal()"
            alarming.discard(function)  # behind the first one nothing runs


def forks(module: Module, facts: Facts) -> Found:
    """Find processes that are started by what a web framework calls, or by a function it calls."""
    for call in module.calls:
        if call.name in FORKING and any(map(is_view, [call.site, *module.callers(call.site)])):
            yield FORKS, call.node, f"{call.name}()"


def _may_be_in_a_request(call: Call) -> bool:
    return call.site.scope.function is not None and not call.site.is_command


METHODS = ("get", "post", "put", "patch", "delete")
ROUTES = ("route", *METHODS, "view_config", "before_request", "after_request",
          "errorhandler")  # fmt: skip
# How the names of classes end whose methods a framework calls.
CLASSES = ("View", "ViewSet", "Resource")


def is_view(site: Site) -> bool:
    """Return whether a framework calls the function around *site* for a request."""
    function = site.scope.function
    if function is None or site.is_command:
        return False
    if any(each.removesuffix("()").rpartition(".")[2] in ROUTES for each in site.blocks):
        return True
    bases = getattr(site.scope.owner.node, "bases", ()) if site.scope.owner else ()
    if function.name in METHODS and any(ast.unparse(each).endswith(CLASSES) for each in bases):
        return True
    arguments = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
    return arguments[:1] == ["request"] or arguments[:2] == ["environ", "start_response"]
