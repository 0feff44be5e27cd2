"""
What ``greenline tune`` has measured, as ``--json`` writes it and ``greenline capacity``, the report
and ``--compare`` read it.
"""

from pathlib import Path
from typing import Literal

import msgspec

from greenline.errors import ConfigError

# With as many the load generator has one of its own, and the workers have the others.
CORES_FOR_TWO = 4
KEEPS_UP = 0.95  # of what is offered
SweepName = Literal["rate", "pool", "workers", "limit", "idle"]
SettingName = Literal[
    "workers", "pool", "max_in_progress", "worker_connections", "memory_mib", "keepalive",
    "max_connections",
]  # fmt: skip


class Latencies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Durations of answers, measured from the time at which the request was due.

    :param p50_s: the median, float seconds.
    :param p99_s: float seconds; None if there are too few samples for it.
    :param p999_s: float seconds; None if there are too few samples for it.
    :param samples: answers, int.
    """

    p50_s: float | None
    p99_s: float | None
    p999_s: float | None
    samples: int


class Shares(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Where the time of a request goes: mean seconds of each, float.

    :param queued_s: waiting for admission.
    :param pool_s: waiting for a connection of a pool.
    :param connecting_s: connecting to a database.
    :param postgres_s: waiting for Postgres.
    :param mongodb_s: waiting for MongoDB.
    :param writing_s: writing to the client.
    :param hub_s: waiting for the hub.
    :param application_s: everything else.
    """

    queued_s: float
    pool_s: float
    connecting_s: float
    postgres_s: float
    mongodb_s: float
    writing_s: float
    hub_s: float
    application_s: float


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One setting under load; the figures are the medians of its rounds.

    :param setting: what the sweep varies: requests a second offered, connections of a worker's
        pool, workers, requests in progress, or idle sockets; float.
    :param offered_rate: requests a second, float.
    :param answered_rate: answers a second, float.
    :param good_rate: answers a second without error and within the objective, float.
    :param errors: the part of the requests that failed, float of 0 to 1.
    :param latencies: of the answers.
    :param shares: None if the application is not ours to look into (``--url``).
    :param cpu_of_workers: processors that all workers use, float; 0: they were not seen.
    :param memory_mib: resident, of one worker, float; 0: they were not seen.
    :param connections: most connections at the database at one time, int; 0: none was seen.
    :param generator_limited: the load generator, not the service, was the limit; bool.
    :param rounds: the good rate of each round.
    :param seconds: how long the step was measured, all rounds, float.
    """

    setting: float
    offered_rate: float
    answered_rate: float
    good_rate: float
    errors: float
    latencies: Latencies
    shares: Shares | None
    cpu_of_workers: float
    memory_mib: float
    connections: int
    generator_limited: bool
    rounds: list[float]
    seconds: float

    @property
    def is_seen(self) -> bool:
        """Return whether the workers were seen."""
        return self.memory_mib > 0

    @property
    def keeps_up(self) -> bool:
        """Return whether as much is answered as is offered."""
        return self.answered_rate >= KEEPS_UP * self.offered_rate

    @property
    def spread(self) -> float | None:
        """Return the range of the rounds' good rates, as a part of its own; None of one round."""
        if len(self.rounds) < 2:
            return None
        if not self.good_rate:
            return 0.0
        return (max(self.rounds) - min(self.rounds)) / self.good_rate


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The service-level objective.

    :param p99_s: 99 % of the answers take at most this, float seconds.
    :param errors: at most this part of the requests fails, float of 0 to 1.
    """

    p99_s: float
    errors: float

    def is_met_by(self, step: Step) -> bool:
        """Return whether *step* has a p99, meets the objective, and keeps up with the offer."""
        p99_s = step.latencies.p99_s
        is_fast = p99_s is not None and p99_s <= self.p99_s
        # What waits at the end of a round was not late yet.
        return is_fast and step.errors <= self.errors and step.keeps_up


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The steps of one setting.

    :param name: which setting, str.
    :param unit: of ``Step.setting``, str.
    :param steps: in the order of the setting.
    :param interleaved: each round took all steps, instead of each step all rounds; bool.
    """

    name: SweepName
    unit: str
    steps: list[Step]
    interleaved: bool

    def knee(self, objective: Objective) -> Step | None:
        """Return the last step before the first that breaks *objective*; None: the first does."""
        knee = None
        for step in sorted(self.steps, key=lambda step: step.setting):
            if not objective.is_met_by(step):
                break
            knee = step
        return knee


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A model that is fitted to a sweep.

    :param kind: the Universal Scalability Law, whose rate for n is
        gamma n / (1 + sigma (n - 1) + kappa n (n - 1)).
    :param of: the name of the sweep, str.
    :param sigma: contention, float; None if there is no fit, as for the following.
    :param kappa: coherency, float.
    :param gamma: the rate for one (lambda), float.
    :param r_squared: how much of the variance the fit explains, float.
    :param points: how many there are, int.
    :param note: why there is no fit, or why it must not be used, str.
    :param is_usable: whether it may be used beyond the points, bool.
    """

    kind: Literal["usl"] = "usl"
    of: str
    sigma: float | None = None
    kappa: float | None = None
    gamma: float | None = None
    r_squared: float | None = None
    points: int
    note: str = ""
    is_usable: bool


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Where it was measured.

    :param cores: processors that this process may use, int.
    :param memory_mib: of the machine or of the control group, int.
    :param python: its version, str.
    :param was_busy: load average for each core at the start, float.
    """

    cores: int
    memory_mib: int
    python: str
    was_busy: float


class Recommendation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A number, and why.

    :param name: of the setting, str.
    :param value: float.
    :param unit: of the value, str.
    :param environment: variables to copy.
    :param measured: what was measured, one sentence.
    :param binds: what binds, one sentence.
    :param next: what would bind next, one sentence.
    :param spread: of the figures over their rounds, as a part of them, float; None of one round.
    """

    name: SettingName
    value: float
    unit: str
    environment: dict[str, str]
    measured: str
    binds: str
    next: str
    spread: float | None


class Verification(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The recommendation under load.

    :param predicted_rate: answers a second within the objective, float.
    :param measured_rate: as predicted_rate, float.
    :param spread: of the rounds, as a part of the measured rate, float; None of one round.
    :param within: the difference as a part of the predicted rate, float.
    :param against_defaults: the settings of gunicorn's documentation under the same load, at the
        rate with the most good answers; None if they were not run.
    :param ours: the recommendation in that run, likewise.
    :param met: whether the objective was met, bool, default True; where it was not, the measured
        rate is the best one that missed it.
    """

    predicted_rate: float
    measured_rate: float
    spread: float | None
    within: float
    against_defaults: Step | None
    ours: Step | None
    met: bool = True


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    All that ``greenline tune`` has found.

    :param version: of Greenline, str.
    :param target: the application or the address, str.
    :param offered: the load in words, str.
    :param settings: the variables under which it ran, as far as they are known.
    :param machine: where it ran.
    :param objective: what it had to meet.
    :param sweeps: one for each setting that was varied.
    :param fits: one for each sweep that is fitted.
    :param recommendations: one for each setting that the figures justify.
    :param verification: None if it was not run.
    :param warnings: sentences.
    :param total_s: how long it took, float seconds.
    :param at: when it began, ISO 8601.
    """

    version: str
    target: str
    offered: str
    settings: dict[str, str]
    machine: Machine
    objective: Objective
    sweeps: list[Sweep]
    fits: list[Fit]
    recommendations: list[Recommendation]
    verification: Verification | None
    warnings: list[str]
    total_s: float
    at: str

    def sweep(self, name: SweepName) -> Sweep | None:
        """Return the sweep of that name, None if it was not run."""
        return next((sweep for sweep in self.sweeps if sweep.name == name), None)

    def recommended(self, name: SettingName) -> Recommendation | None:
        """Return the recommendation of that name, None if there is none."""
        return next((one for one in self.recommendations if one.name == name), None)


def write(result: Result, path: Path) -> None:
    """Write *result* as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


def read(path: Path) -> Result:
    """
    Return the result that ``--json`` has written to *path*.

    :raises ConfigError: there is none, or it is of another version's form.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a result of greenline tune --json: {error}") from error
