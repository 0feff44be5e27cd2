"""What is looked for in a file; each function yields codes, nodes and what was found there."""

from collections.abc import Callable

from greenline.doctor.findings import Facts, Found
from greenline.doctor.module import Module
from greenline.doctor.rules import (
    copying,
    exceptions,
    imports,
    loops,
    processes,
    shared,
    timeouts,
    transactions,
)

Rule = Callable[[Module, Facts], Found]
RULES: tuple[Rule, ...] = (
    loops.shared_loops,
    loops.current_loops,
    loops.spinning,
    shared.connections,
    shared.made_before_fork,
    shared.by_thread_id,
    imports.patched,
    processes.alarms,
    processes.handlers,
    processes.forks,
    exceptions.swallowing,
    exceptions.suppressing,
    timeouts.without,
    transactions.held_across,
    transactions.session_state,
    copying.not_emulated,
)
