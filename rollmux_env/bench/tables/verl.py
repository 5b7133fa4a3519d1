"""verl's fully asynchronous policy against its colocated trainer, on H20; a line that is printed several times is here once."""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.bench.tables.table import Row, published_table
from rollmux_env.published import source
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.rl_job import Batch, RlJob, Workers
from rollmux_env.timing.streaming import Stream

GPU = "H20"
PROMPT_TOKENS = 200
MATH = (420.0, 1.05)  # median and sigma of a response: assumed
MIXTURE = (1000.0, 0.9)
TOOLS = (3500.0, 0.8)
TOOL_S = 6.0  # of a call and its queue: assumed
TURNS = 8  # of a response, on average, of 16 at most: assumed
SERVER_PROMPTS = 16  # that a rollout server decodes at once
SCORED = ("old_log_prob", "ref")


class _Kind(NamedTuple):
    """Jobs of several rows: model, GPUs of a copy, whether rollouts decode without graphs, and the responses of a step."""

    model: str
    parallel: int
    eager: bool
    batch: Batch


_KINDS = {
    "7B-28k": _Kind("7B", 4, False, Batch(512, 16, 16, PROMPT_TOKENS, Lognormal(28 * 1024, *MATH))),
    "30B-A3B-8k": _Kind("30B-A3B", 4, True, Batch(512, 16, 4, PROMPT_TOKENS, Lognormal(8192, *MIXTURE))),
    "7B-10k": _Kind("7B", 1, False, Batch(512, 16, 16, PROMPT_TOKENS, Lognormal(10 * 1024, *MATH))),
    "7B-16k tools": _Kind("7B", 4, False, Batch(64, 16, 4, PROMPT_TOKENS, Lognormal(16384, *TOOLS), TURNS, TOOL_S)),
}


class _Line(NamedTuple):
    """One printed line, as the file has it; those that stream have GPUs of their own for training."""

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


def _row(name: str, line: _Line) -> Row:
    model, parallel, eager, batch = _KINDS[line.job]
    seconds = {phase: value for phase in ("step", "gen", *SCORED, "update") if (value := getattr(line, phase)) is not None}
    scored = tuple(phase for phase in SCORED if phase in seconds)
    rollout, training, stream = Workers(GPU, line.rollout_gpus, parallel, eager=eager), None, None
    if line.training_gpus and line.fetched and line.staleness is not None:
        training, prompts = Workers(GPU, line.training_gpus, parallel), int(batch.prompts * (1 + line.staleness))
        stream = Stream(batch.prompts // line.fetched, line.staleness, min(SERVER_PROMPTS * rollout.copies, prompts))
    return Row(name, GPU, seconds, RlJob(model, rollout, training or rollout, batch, scored, stream=stream))


TABLE = published_table("verl", (_row(name, line) for name, line in source("verl").table("steps", _Line)))
