"""
Check whether the dependencies of the service are available.

The checks run concurrently, each for at most ``CHECK_TIMEOUT_S``, all for at most
``TOTAL_TIMEOUT_S``. The report is kept for ``REPORT_TTL_S``.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import gevent

from greenline.errors import DeadlineExceeded, GreenlineError
from greenline.hub import deadline
from greenline.hub.cooperate import join_all

CHECK_TIMEOUT_S = 2.0
TOTAL_TIMEOUT_S = 5.0
REPORT_TTL_S = 1.0

Check = Callable[[], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HealthReport:
    """
    The result of all checks.

    :param checks: by name: None, or a text that describes the problem.
    """

    checks: dict[str, str | None]

    @property
    def ready(self) -> bool:
        return not any(self.checks.values())


class Health:
    """
    The checks of one worker.

    :param clock: returns seconds that never go back, float. Default: ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._checks: dict[str, Check] = {}
        self._clock = clock
        self._lock = threading.Lock()
        self._report = HealthReport({})
        self._until: float | None = None
        self._logged: dict[str, str | None] | None = None

    def add(self, name: str, check: Check) -> None:
        """
        Add a check.

        :param name: of the dependency, str.
        :param check: raises an error while the dependency is not available.
        """
        self._checks[name] = check

    def report(self) -> HealthReport:
        """Return the result of the checks, at most ``REPORT_TTL_S`` old."""
        # The checks run inside the lock: concurrent callers wait for the same report, so that many
        # probes do not mean many queries.
        with self._lock:
            if self._until is None or self._clock() >= self._until:
                self._report = HealthReport(self._ask_all())
                self._until = self._clock() + REPORT_TTL_S
                self._log_changes()
            return self._report

    def _log_changes(self) -> None:
        # Only changes, because probes repeat. The HTTP response may omit the details.
        before, self._logged = self._logged, self._report.checks
        if before == self._logged:
            return
        for name, problem in self._logged.items():
            if problem and (before is None or before.get(name) != problem):
                log.warning("not ready: %s: %s", name, problem)
        if self._report.ready:
            log.info("ready")

    def _ask_all(self) -> dict[str, str | None]:
        asked = {name: gevent.spawn(_ask, name, check) for name, check in self._checks.items()}
        join_all(asked.values(), TOTAL_TIMEOUT_S)
        # A check that ignores its deadline must not delay the report: do not wait for its end.
        late = [greenlet for greenlet in asked.values() if not greenlet.dead]
        gevent.killall(late, block=False)
        return {
            name: f"no answer within {TOTAL_TIMEOUT_S:g} s" if greenlet in late else greenlet.value
            for name, greenlet in asked.items()
        }


def _ask(name: str, check: Check) -> str | None:
    try:
        # A check may go on for GRACE_S after its deadline.
        with deadline.limit(CHECK_TIMEOUT_S - deadline.GRACE_S):
            check()
    except DeadlineExceeded:
        return f"no answer within {CHECK_TIMEOUT_S:g} s"
    except GreenlineError as error:
        return str(error)
    except Exception:
        # A defect of the check must not be reported as a healthy dependency.
        log.exception("the check of %s failed", name)
        return "the check failed; see the log"
    return None
