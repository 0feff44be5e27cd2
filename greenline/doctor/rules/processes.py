"""Signals and processes in requests."""

import ast

from greenline.doctor.codes import ALARM, FORKS, SIGNAL_IN_REQUEST
from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Call, Module

ALARMS = ("signal.alarm", "signal.setitimer")
GUARDS = ("signal.signal", "threading.main_thread", "threading._MainThread")
FORKING = (
    "os.fork", "os.forkpty", "multiprocessing.Process", "multiprocessing.Pool",
    "multiprocessing.pool.Pool", "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process.ProcessPoolExecutor",
)  # fmt: skip


def alarms(module: Module, facts: Facts) -> Found:
    """Find alarms in functions; alarm(0) alone ends one."""
    # Outside of the main thread, where requests run, signal.signal() raises and no alarm is set.
    guarded = {call.site.scope.function for call in module.calls if call.name in GUARDS}
    for call in module.calls:
        if call.name in ALARMS and _may_be_in_a_request(call):
            if call.site.scope.function in guarded:
                continue
            seconds = call.given("seconds", 0 if call.name == "signal.alarm" else 1)
            if not (isinstance(seconds, ast.Constant) and seconds.value == 0):
                yield ALARM, call.node, f"{call.name}()"


def handlers(module: Module, facts: Facts) -> Found:
    """Find signal.signal() in the functions that a web framework calls."""
    for call in module.calls:
        if call.name == "signal.signal" and _is_in_a_view(call):
            yield SIGNAL_IN_REQUEST, call.node, "signal.signal()"


def forks(module: Module, facts: Facts) -> Found:
    """Find processes that the functions start that a web framework calls."""
    for call in module.calls:
        if call.name in FORKING and _is_in_a_view(call):
            yield FORKS, call.node, f"{call.name}()"


def _may_be_in_a_request(call: Call) -> bool:
    return call.site.scope.function is not None and not call.site.is_command


def _is_in_a_view(call: Call) -> bool:
    function = call.site.scope.function
    return _may_be_in_a_request(call) and function is not None and is_view(function, call)


ROUTES = ("route", "get", "post", "put", "patch", "delete", "view_config", "before_request",
          "after_request", "errorhandler")  # fmt: skip


def is_view(function: ast.FunctionDef | ast.AsyncFunctionDef, call: Call) -> bool:
    """Return whether a framework calls *function* for a request: by a route, or with one."""
    names = [each.removesuffix("()").rpartition(".")[2] for each in call.site.blocks]
    if any(name in ROUTES for name in names):
        return True
    arguments = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
    return arguments[:1] == ["request"] or arguments[:2] == ["environ", "start_response"]
