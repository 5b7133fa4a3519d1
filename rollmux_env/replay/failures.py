"""Failures in an event replay: rates and scripts of deaths, checkpoints, and the log of lost work."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, JobId, NonNegative, Overriding
from rollmux_env.files import find_file
from rollmux_env.keys.job import Job
from rollmux_env.reading import checked, read_mapping
from rollmux_env.scenario import Scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import field_error

Cause = Literal["node", "job", "scheduler"]
NEVER = 1 << 62  # iterations between checkpoints if none is written


class Death(FileModel):
    """The death of a job in a script."""

    job: JobId
    """Identifier of the job."""
    at_s: NonNegative
    """Time of the death, in seconds of the replay. A job without a place at this time does not die."""
    back_s: Overriding[NonNegative] = None
    """Time at which the job arrives again, in seconds. Default: at once."""

    @property
    def arrives_s(self) -> float:
        """Time at which the job arrives again, in seconds."""
        return self.at_s if self.back_s is None else self.back_s

    @model_validator(mode="after")
    def _in_order(self) -> Death:
        if self.arrives_s < self.at_s:
            raise field_error(f"must be at least at_s, {self.at_s:g}, not {self.back_s:g}", "back_s")
        return self


class Script(FileModel):
    """A file of deaths."""

    deaths: Annotated[tuple[Death, ...], Field(strict=False, min_length=1)]
    """Deaths, in any order."""


@dataclass(frozen=True)
class Failures:
    """Rates of failures, and how often jobs write checkpoints.

    Attributes:
        node_h: Mean time to the failure of a node, in hours.
        job_h: Mean time to the failure of a job that has a place, in hours.
        scheduler_h: Mean time to the failure of the scheduler, in hours.
        scheduler_down_s: Time until the scheduler returns, in seconds.
        every: Number of iterations between checkpoints of a job, or the formula that gives it, `young` or `daly`.
        write_s: Time that a job waits between two iterations until its checkpoint is written, in seconds.
        script: Deaths of jobs at fixed times, or the path of a file of them.

    Raises:
        ValueError: If a value is out of range, or the file is not a script.
    """

    node_h: float = inf
    job_h: float = inf
    scheduler_h: float = inf
    scheduler_down_s: float = 600.0
    every: int | Literal["young", "daly"] = 1
    write_s: float = 0.0
    script: str | tuple[Death, ...] = ()

    def __post_init__(self) -> None:
        for name in ("node_h", "job_h", "scheduler_h", "scheduler_down_s"):
            if not _is_number(getattr(self, name)) or not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("write_s", "scheduler_down_s"):
            if not _is_number(getattr(self, name)) or not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a number of seconds, not {getattr(self, name)!r}")
        if self.every not in ("young", "daly") and (
            isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1
        ):
            raise ValueError(f"every must be a number of iterations from 1, young or daly, not {self.every!r}")
        if not isinstance(self.script, tuple):
            path = find_file(str(self.script))
            object.__setattr__(self, "script", checked(Script, read_mapping(path), str(path), lambda data: data).deaths)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Deaths of the script."""
        return self.script if isinstance(self.script, tuple) else ()

    def check_jobs(self, scenario: Scenario) -> None:
        """Check that a scenario has all jobs of the script.

        Raises:
            InputError: If a job is missing.
        """
        known = [job.id for job in scenario.jobs]
        for death in self.deaths:
            if death.job not in known:
                near = did_you_mean(death.job, known)
                raise InputError(f"--failures script: job {death.job}: the scenario has none of this name{near}")

    @property
    def dies(self) -> bool:
        """Whether there are any failures."""
        return bool(self.script) or min(self.node_h, self.job_h, self.scheduler_h) < inf

    def interval(self, job: Job) -> int:
        """Return the number of iterations between two checkpoints of a job."""
        if isinstance(self.every, int):
            return self.every
        rate = 1 / self.job_h + (job.rollout.nodes + job.training.nodes) / self.node_h  # failures of the job per hour
        if rate == 0:
            return NEVER
        formula = young_s if self.every == "young" else daly_s
        return max(1, round(formula(self.write_s, 3600 / rate) / job.solo_s))


def young_s(write_s: float, mean_s: float) -> float:
    """Return the seconds of work between two checkpoints that lose the least time, to first order (Young, 1974).

    Args:
        write_s: Seconds to write a checkpoint.
        mean_s: Mean seconds between two failures.
    """
    return sqrt(2 * write_s * mean_s)


def daly_s(write_s: float, mean_s: float) -> float:
    """Return the seconds of work between two checkpoints that lose the least time, to higher order (Daly, 2006, equation 37).

    Args:
        write_s: Seconds to write a checkpoint.
        mean_s: Mean seconds between two failures.
    """
    if write_s >= 2 * mean_s:
        return mean_s
    ratio = write_s / (2 * mean_s)
    return sqrt(2 * write_s * mean_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - write_s


class Loss(NamedTuple):
    """The death of a job.

    Attributes:
        at_s: Time of the death, in seconds.
        job_id: Identifier of the job.
        cause: Cause of the death, `node` or `job`.
        iterations: Number of iterations that are lost and repeated, with fractions.
    """

    at_s: float
    job_id: str
    cause: Cause
    iterations: float


@dataclass
class FailureLog:
    """The failures of a replay.

    Attributes:
        losses: Deaths of jobs, in order.
        nodes: Number of nodes that failed with jobs on them.
        scheduler_s: Times at which the scheduler failed, in seconds.
        checkpoints: Number of checkpoints that were written.
    """

    losses: list[Loss] = field(default_factory=list)
    nodes: int = 0
    scheduler_s: list[float] = field(default_factory=list)
    checkpoints: int = 0

    def figures(self, scenario: Scenario, failures: Failures) -> dict[str, float]:
        """Return the figures of failures that docs/reference/metrics.md defines, by name."""
        solo_s = {job.id: job.solo_s for job in scenario.jobs}
        intervals = [failures.interval(job) for job in scenario.jobs]
        return {
            "node_failures": self.nodes,
            "job_failures": sum(loss.cause == "job" for loss in self.losses),
            "scheduler_failures": len(self.scheduler_s),
            "restarts": len(self.losses),
            "lost_work_h": sum(loss.iterations * solo_s[loss.job_id] for loss in self.losses) / 3600,
            "checkpoint_h": self.checkpoints * failures.write_s / 3600,
            "checkpoint_every": sum(intervals) / len(intervals),
        }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
