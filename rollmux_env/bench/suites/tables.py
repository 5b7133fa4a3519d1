"""Published tables of phase seconds and the jobs that they describe, for `rollmux bench --suite fidelity`.

A table has rows of figures, the job of each row, and a list of what the model cannot express. The figures are in
`rollmux_env.published`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.fidelity.rl_job import RlJob, Workers
from rollmux_env.fidelity.streaming import StreamLimits
from rollmux_env.published import source
from rollmux_env.timing import calibration as calibrations
from rollmux_env.timing.lengths import PUBLISHED, LengthDistribution, Lognormal, Piecewise, lognormal_of_mean
from rollmux_env.workloads.catalogue import PUBLISHED_S
from rollmux_env.workloads.modelled import THINKING_MEDIAN, THINKING_SIGMA, published_lengths


class PublishedRow(NamedTuple):
    """One line of a table.

    Attributes:
        name: Name of the row within the table.
        machine: Machine on which the seconds were measured.
        seconds: Printed seconds by phase.
        job: Job that the seconds describe.
        fitted: Job as it was described when RollMux's calibration was fitted, or None if it is the same.
    """

    name: str
    machine: str
    seconds: Mapping[str, float]
    job: RlJob
    fitted: RlJob | None = None

    def job_for(self, calibration: calibrations.Calibration) -> RlJob:
        """Return the job as a calibration describes it."""
        return self.fitted or self.job if calibration is calibrations.ROLLMUX else self.job


class NotCovered(NamedTuple):
    """Figures that the model does not express.

    Attributes:
        number: Number of figures.
        which: Description of the figures.
        why: Reason why the model does not express them.
    """

    number: int
    which: str
    why: str


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        name: Name in the suite.
        source: Repository or paper, file and commit.
        rows: Rows that the model predicts.
        not_covered: Figures that the model does not express.
        assumed: Assumptions about what the source leaves open.
    """

    name: str
    source: str
    rows: tuple[PublishedRow, ...]
    not_covered: tuple[NotCovered, ...]
    assumed: tuple[str, ...]


def make_published_table(file: str, rows: Iterable[PublishedRow]) -> Table:
    """Return a table with the name, source and assumptions of a file.

    Args:
        file: Name of a file of `rollmux_env.published`.
        rows: Rows of the table.
    """
    texts = source(file)
    name, whence = (texts.value(key, str) for key in ("name", "source"))
    not_covered = texts.value("not_covered", tuple[NotCovered, ...])
    return Table(name, whence, (*rows,), not_covered, texts.value("assumed", tuple[str, ...], ()))


# RollMux's phases and RollPacker's rollouts. If the papers leave a value open, one assumption holds for all rows: 256 responses
# to prompts of 1,024 tokens (the 256 are from RollMux's Table 3); for 3B, 14B-4k and 32B jobs, the lengths of the 7B job with the
# same cap. The lengths of 4B and 8B jobs are not published; they have another lognormal.
RESPONSES, PROMPT_TOKENS = 256, 1024
GROUP = 8  # responses per prompt, assumed; with one, training would reach 4% of the peak
TENSOR_PARALLEL = {"32B": 2, "70B": 8}
GPUS_OF = {"32B": 16}  # number of GPUs of each pool; 8 for other sizes


def job_lengths(kind: str) -> LengthDistribution:
    """Return the lengths of a job type such as `8B-16k`, published or assumed as above."""
    if (name := published_lengths(kind)) is not None:
        return PUBLISHED[name]
    return Lognormal(1024 * int(kind.partition("-")[2].removesuffix("k")), THINKING_MEDIAN, THINKING_SIGMA)


def _phases() -> Iterator[PublishedRow]:
    for kind, (rollout_s, training_s, together_s, trained_s) in PUBLISHED_S.items():
        size = kind.partition("-")[0]
        gpus, parallel = GPUS_OF.get(size, 8), TENSOR_PARALLEL.get(size, 1)
        batch = ResponseBatch(RESPONSES, GROUP, 1, PROMPT_TOKENS, job_lengths(kind))
        jobs = [RlJob(size, Workers(gpu, gpus, parallel), Workers("H800", gpus), batch) for gpu in ("H20", "H800")]
        apart, together = [(job, replace(job, batch=replace(batch, responses=1))) for job in jobs]
        yield PublishedRow(f"{kind} apart, rollout", "H20", {"gen": rollout_s}, *apart)
        yield PublishedRow(f"{kind} apart, training", "H800", {"training": training_s}, *apart)
        yield PublishedRow(f"{kind} co-located", "H800", {"gen": together_s, "training": trained_s}, *together)


ROLLMUX = make_published_table("rollmux", _phases())


def make_packed_lengths(cap: int) -> Piecewise:
    """Return RollPacker's lengths up to a cap.

    They have a median of 500 to 700, 90% at most 1.3k to 2.3k, 95 to 98% below 4k, and 2 to 5% at the cap.
    """
    return Piecewise(cap, ((0.5, 600.0), (0.9, 1800.0), (0.965, 4096.0), (0.98, float(cap))))


class PackedJob(NamedTuple):
    """A job of RollPacker's table.

    Attributes:
        size: Size name of the model.
        cap: Largest number of tokens of a response.
        gpus: Number of H800.
        parallel: Number of H800 per replica.
        plain_s: Seconds of a plain rollout.
        batched_s: Seconds of a rollout with tail batching.
    """

    size: str
    cap: int
    gpus: int
    parallel: int
    plain_s: float
    batched_s: float


PACKED_JOBS = dict(source("rollpacker").table("rollouts", PackedJob))


def _packed() -> Iterator[PublishedRow]:
    for name, packed in PACKED_JOBS.items():
        batch = ResponseBatch(128, 8, 1, PROMPT_TOKENS, make_packed_lengths(packed.cap))
        job = RlJob(packed.size, Workers("H800", packed.gpus, packed.parallel), Workers("H800", packed.gpus), batch)
        yield PublishedRow(f"{name} rollout, {packed.gpus} GPUs", "H800", {"gen": packed.plain_s}, job)


ROLLPACKER = make_published_table("rollpacker", _packed())


# verl's fully asynchronous policy against its colocated trainer, on H20.
VERL_PROMPT_TOKENS = 200
MATH = (420.0, 1.05)  # median and sigma of a response, assumed
MIXTURE = (1000.0, 0.9)
TOOLS = (3500.0, 0.8)
TOOL_S = 6.0  # seconds of a call and its queue, assumed
TURNS = 8  # mean number of turns of a response, of at most 16, assumed
SERVER_PROMPTS = 16  # number of prompts that a rollout server decodes at once
SCORED = ("old_log_prob", "ref")


class _Kind(NamedTuple):
    """The common part of several rows.

    Attributes:
        model: Name of the model.
        parallel: Number of GPUs per copy.
        eager: Whether rollouts decode without CUDA graphs.
        batch: Responses of a step.
    """

    model: str
    parallel: int
    eager: bool
    batch: ResponseBatch


_KINDS = {
    "7B-28k": _Kind("7B", 4, False, ResponseBatch(512, 16, 16, VERL_PROMPT_TOKENS, Lognormal(28 * 1024, *MATH))),
    "30B-A3B-8k": _Kind("30B-A3B", 4, True, ResponseBatch(512, 16, 4, VERL_PROMPT_TOKENS, Lognormal(8192, *MIXTURE))),
    "7B-10k": _Kind("7B", 1, False, ResponseBatch(512, 16, 16, VERL_PROMPT_TOKENS, Lognormal(10 * 1024, *MATH))),
    "7B-16k tools": _Kind("7B", 4, False, ResponseBatch(64, 16, 4, VERL_PROMPT_TOKENS, Lognormal(16384, *TOOLS), TURNS, TOOL_S)),
}


class _VerlLine(NamedTuple):
    """One printed line, as in the file. Streamed jobs have separate GPUs for training."""

    job: str
    rollout_gpus: int
    training_gpus: int | None
    fetched: int | None
    staleness: float | None
    step: float
    gen: float
    old_log_prob: float | None
    ref: float | None
    update: float


def _verl_row(name: str, line: _VerlLine) -> PublishedRow:
    model, parallel, eager, batch = _KINDS[line.job]
    seconds = {phase: value for phase in ("step", "gen", *SCORED, "update") if (value := getattr(line, phase)) is not None}
    scored = tuple(phase for phase in SCORED if phase in seconds)
    rollout, training, stream = Workers("H20", line.rollout_gpus, parallel, eager=eager), None, None
    if line.training_gpus and line.fetched and line.staleness is not None:
        training, prompts = Workers("H20", line.training_gpus, parallel), int(batch.prompts * (1 + line.staleness))
        stream = StreamLimits(batch.prompts // line.fetched, line.staleness, min(SERVER_PROMPTS * rollout.copies, prompts))
    return PublishedRow(name, "H20", seconds, RlJob(model, rollout, training or rollout, batch, scored, stream=stream))


VERL = make_published_table("verl", (_verl_row(name, line) for name, line in source("verl").table("steps", _VerlLine)))


# Steps of NVIDIA's NeMo-RL on H100 and GB200: GRPO on OpenMathInstruct-2, colocated or one or more steps off-policy.
NEMO_PROMPT_TOKENS = 110  # printed tokens per second and GPU, times seconds and GPUs, minus the printed mean: 90 to 150
NEMO_SIGMA = 1.0  # assumed


class _NemoLine(NamedTuple):
    """One printed line, as in the file."""

    release: str
    gpu: str
    precision: Literal["BF16", "FP8"]
    policy: Literal["on", "off"]
    cap: int
    mean: float
    gpus: int
    rollout_gpus: int | None
    responses: int
    rollout_parallel: int
    training_parallel: int
    stages: int
    step_s: float


def _nemo_row(model: str, line: _NemoLine) -> PublishedRow:
    overlapped, gpu, fp8 = line.policy == "off", line.gpu, line.precision == "FP8"
    group = 16 if model == "671B-A37B" else 32
    lengths = lognormal_of_mean(line.cap, line.mean, NEMO_SIGMA)
    batch = ResponseBatch(line.responses // group, group, line.responses // 512, NEMO_PROMPT_TOKENS, lengths)
    rollout_gpus = (line.rollout_gpus or line.gpus // 2) if overlapped else line.gpus
    training_gpus = line.gpus - rollout_gpus if overlapped else line.gpus
    rollout = Workers(gpu, rollout_gpus, line.rollout_parallel, number_bytes=1.0 if fp8 else 2.0)
    training = Workers(gpu, training_gpus, line.training_parallel, line.stages, number_bytes=rollout.number_bytes)
    job = RlJob(model, rollout, training, batch, ("old_log_prob", "ref"), overlapped)
    how = "overlapped" if overlapped else "colocated"
    return PublishedRow(f"{line.release} {model} {how}, {line.gpus} {gpu}{' FP8' if fp8 else ''}", gpu, {"step": line.step_s}, job)


NEMO_RL = make_published_table("nemo_rl", (_nemo_row(model, line) for model, line in source("nemo_rl").table("steps", _NemoLine)))
