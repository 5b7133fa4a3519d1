"""`authors`: a trace in the format that RollMux's authors publish (github.com/wutianyuan1/ROLL, `global_scheduler/trace`).

Each line is an event with comma-separated columns: the job, a time such as `2025-07-30 15:33:33`, and 1 for an arrival or -1 for a
departure. An arrival has either a fourth column with the job's type, such as `7B_8k`, or three more with rollout seconds, training
seconds and SLO. Two JSON files may supplement the trace: phase times by type (`profile.json`: `disagg` and `colo`, each with
`generate` and `train` of every type), which replace those from the paper's figures; and drift (`generated_drift`: `jobs`, each with
the seconds of its rollouts, `rollout_steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, JobId, Positive
from rollmux_env.files import DATA_BYTES, read_text, text_lines
from rollmux_env.keys.job import Colocated, Drift, Job
from rollmux_env.progress import say_read
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import describe, format_error, not_one_of, one_line, problems
from rollmux_env.workloads import draws
from rollmux_env.workloads.catalogue import PHASES_S, make_job, paper_cluster, phases
from rollmux_env.workloads.options import MAX_JOBS, WorkloadOptions

T = TypeVar("T")
_NAME: TypeAdapter[str] = TypeAdapter(JobId)
OPTIONS = frozenset({"seed", "jobs", "stays", "slo", "max_group_size", "switches", "semantics", "trace", "phase_times", "drift"})


class _Seconds(FileModel):
    """Seconds of both phases of a job type."""

    generate: Positive
    train: Positive


class _PhaseTimes(FileModel):
    """Phase times by job type: on nodes of each pool (`disagg`), and on training nodes alone (`colo`)."""

    disagg: dict[str, _Seconds]
    colo: dict[str, _Seconds]

    def of(self, kind: str, name: str) -> tuple[float, ...]:
        """Return the seconds of a type: rollout and training, then both on training nodes alone.

        Args:
            kind: Job type.
            name: Name of the file, for error messages.

        Raises:
            InputError: If the file has no phase times of the type.
        """
        if kind not in self.disagg or kind not in self.colo:
            raise InputError(f"{one_line(name, 4096)}: has no phase times of the type {describe(kind)}")
        apart, together = self.disagg[kind], self.colo[kind]
        return apart.generate, apart.train, together.generate, together.train


class _Steps(FileModel, extra="ignore"):
    """Seconds of a job's consecutive rollouts."""

    rollout_steps: list[Positive] = Field(min_length=1)


class _Drifts(FileModel, extra="ignore"):
    """Rollout seconds by job."""

    jobs: dict[str, _Steps]


class _Coming(NamedTuple):
    """The arrival of a job.

    Attributes:
        name: Identifier of the job.
        at_s: Time of the arrival, in seconds.
        kind: Job type, or None if the trace gives the job's seconds.
        own: Rollout seconds, training seconds and SLO, or None if the trace gives the job's type.
    """

    name: str
    at_s: float
    kind: str | None
    own: tuple[float, float, float] | None


@dataclass(frozen=True)
class _Read:
    """A trace.

    Attributes:
        coming: Arrivals in order of time.
        leaves_s: Time of each job's departure, in seconds.
    """

    coming: tuple[_Coming, ...]
    leaves_s: Mapping[str, float]


def authors(options: WorkloadOptions) -> Scenario:
    """Return the jobs of a trace. The first one arrives at 0.

    With `semantics=paper`, jobs of 32B train on one node, as in the authors' scheduler, and SLOs that the trace does not give are
    drawn from U(1.1, 2).

    Raises:
        InputError: If no trace is named or a file cannot be used. The message names file, line and column.
    """
    if options.trace is None:
        raise InputError("trace: the workload authors needs a trace file")
    read = _read_trace(Path(options.trace))
    coming = read.coming[: options.jobs or MAX_JOBS]
    times = None if options.phase_times is None else _json(Path(options.phase_times), _PhaseTimes)
    drifts = {} if options.drift is None else _json(Path(options.drift), _Drifts).jobs
    slos = draws.slos(options, len(coming), (1.1, 2.0) if options.semantics == "paper" else (1.0, 2.0))
    jobs = [_job(one, slo, read, options, times) for one, slo in zip(coming, slos, strict=True)]
    _say(options, read, coming, jobs)
    return Scenario(
        version=1,
        cluster=paper_cluster(options.max_group_size),
        jobs=tuple(_drifting(job, drifts[job.id].rollout_steps) if job.id in drifts else job for job in jobs),
    )


def _say(options: WorkloadOptions, read: _Read, coming: Sequence[_Coming], jobs: Sequence[Job]) -> None:
    """Report how many jobs the trace gives, and which of their values it does not give."""
    typed = sum(one.own is None for one in coming)
    drawn = f"; the SLOs of {typed:,} are drawn" if typed else ""
    stays_s = [read.leaves_s[one.name] - one.at_s for one in coming]
    note = draws.stays_note(options, stays_s, jobs)
    say_read(str(options.trace), f"{len(coming):,} of {len(read.coming):,} jobs{drawn}{note}")


def _job(one: _Coming, slo: float, read: _Read, options: WorkloadOptions, times: _PhaseTimes | None) -> Job:
    arrival_s, stay_s = one.at_s - read.coming[0].at_s, read.leaves_s[one.name] - one.at_s
    if one.own is not None:
        rollout_s, training_s, own_slo = one.own
        return Job(
            id=one.name,
            arrival_s=arrival_s,
            slo=own_slo if options.slo is None else slo,
            **phases(7, (rollout_s, training_s), options.switches),
            **draws.stay(options, stay_s, rollout_s + training_s),
        )
    kind = (one.kind or "").replace("_", "-")
    if kind not in PHASES_S:
        raise InputError(f"{one_line(str(options.trace), 4096)}: type: {not_one_of(kind, PHASES_S)}")
    seconds = PHASES_S[kind] if times is None else times.of(one.kind or "", str(options.phase_times))
    job = make_job(
        kind,
        one.name,
        arrival_s=arrival_s,
        slo=slo,
        with_switches=options.switches,
        training_nodes=1 if options.semantics == "paper" else None,
        **draws.stay(options, stay_s, sum(seconds[:2])),
    )
    return job if times is None else _with_seconds(job, seconds)


def _with_seconds(job: Job, seconds: Sequence[float]) -> Job:
    """Return the job with other phase times: on nodes of each pool, then on training nodes alone."""
    rollout_s, training_s, *together = seconds
    nodes = 1 if job.colocated is None else job.colocated.nodes
    return job.model_copy(
        update={
            "rollout": job.rollout.model_copy(update={"worst_case_s": rollout_s}),
            "training": job.training.model_copy(update={"worst_case_s": training_s}),
            "colocated": Colocated(nodes=nodes, rollout_s=together[0], training_s=together[1]),
        }
    )


def _drifting(job: Job, steps_s: Sequence[float]) -> Job:
    """Return the job with the given seconds of consecutive rollouts, and trainings that drift by the same factors."""
    factors = [seconds / job.rollout.worst_case_s for seconds in steps_s]
    drift = tuple(Drift(iteration=k, rollout=factor, training=factor) for k, factor in enumerate(factors))
    return job.model_copy(update={"drift": drift})


def _read_trace(path: Path) -> _Read:
    """Read and check a trace file.

    Raises:
        InputError: If the file cannot be read or a line is invalid.
    """
    name = one_line(str(path), 4096)
    coming: dict[str, _Coming] = {}
    leaves_s: dict[str, float] = {}
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        where, cells = f"{name}: line {number}", [cell.strip() for cell in line.split(",")]
        if len(cells) < 3 or cells[2] not in ("1", "-1"):
            raise InputError(f"{where}: must begin with a job, a time and 1 or -1")
        job, at_s = _name(where, cells[0]), _time_s(where, cells[1])
        if cells[2] == "1" and job not in coming:
            coming[job] = _Coming(job, at_s, *_what(where, cells[3:]))
        elif cells[2] == "-1" and job in coming and job not in leaves_s and at_s > coming[job].at_s:
            leaves_s[job] = at_s
        else:
            raise InputError(f"{where}: {describe(job)} comes twice, or does not leave once and after it has come")
    for job in coming:
        if job not in leaves_s:
            raise InputError(f"{name}: {describe(job)} never leaves")
    if not coming:
        raise InputError(f"{name}: no job comes")
    return _Read(tuple(sorted(coming.values(), key=lambda one: one.at_s)), leaves_s)


def _what(where: str, cells: Sequence[str]) -> tuple[str | None, tuple[float, float, float] | None]:
    """Return the type of a job, or its rollout seconds, training seconds and SLO."""
    if len(cells) == 1:
        return cells[0], None
    try:
        rollout_s, training_s, slo = map(float, cells)
    except ValueError:
        raise InputError(f"{where}: must end with a type, or with rollout seconds, training seconds and SLO") from None
    if not (0 < rollout_s <= 1e9 and 0 < training_s <= 1e9 and 1 <= slo <= 1e9):
        raise InputError(f"{where}: seconds must be above 0, and the SLO at least 1")
    return None, (rollout_s, training_s, slo)


def _name(where: str, text: str) -> str:
    try:
        return _NAME.validate_python(text)
    except ValidationError as error:
        raise InputError(f"{where}: job: {format_error(problems(error)[0], None)}") from None


def _time_s(where: str, text: str) -> float:
    try:
        return (datetime.fromisoformat(text) - datetime(1970, 1, 1)).total_seconds()
    except (ValueError, TypeError):
        raise InputError(f"{where}: must have a time such as 2025-07-30 15:33:33, not {describe(text)}") from None


def _json(path: Path, kind: type[T]) -> T:
    """Read a JSON file that supplements the trace.

    Raises:
        InputError: If the file cannot be read or has another form.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        read: T = adapter.validate_json(read_text(path, DATA_BYTES))
    except ValidationError as error:
        raise InputError(f"{one_line(str(path), 4096)}: {format_error(problems(error)[0], None)}") from None
    return read
