"""Steps of NVIDIA's NeMo-RL on H100 and GB200: GRPO on OpenMathInstruct-2, colocated or one or more steps off-policy."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rollmux_env.bench.tables.table import Row, published_table
from rollmux_env.published import source
from rollmux_env.timing.lengths import lognormal_of_mean
from rollmux_env.timing.rl_job import Batch, RlJob, Workers

PROMPT_TOKENS = 110  # tokens a second and GPU, times seconds and GPUs, less the printed mean: 90 to 150
SIGMA = 1.0  # assumed


class _Line(NamedTuple):
    """One printed line, as the file has it."""

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


def _row(model: str, line: _Line) -> Row:
    overlapped, gpu, fp8 = line.policy == "off", line.gpu, line.precision == "FP8"
    group = 16 if model == "671B-A37B" else 32
    lengths = lognormal_of_mean(line.cap, line.mean, SIGMA)
    batch = Batch(line.responses // group, group, line.responses // 512, PROMPT_TOKENS, lengths)
    rollout_gpus = (line.rollout_gpus or line.gpus // 2) if overlapped else line.gpus
    training_gpus = line.gpus - rollout_gpus if overlapped else line.gpus
    rollout = Workers(gpu, rollout_gpus, line.rollout_parallel, number_bytes=1.0 if fp8 else 2.0)
    training = Workers(gpu, training_gpus, line.training_parallel, line.stages, number_bytes=rollout.number_bytes)
    job = RlJob(model, rollout, training, batch, ("old_log_prob", "ref"), overlapped)
    how = "overlapped" if overlapped else "colocated"
    return Row(f"{line.release} {model} {how}, {line.gpus} {gpu}{' FP8' if fp8 else ''}", gpu, {"step": line.step_s}, job)


TABLE = published_table("nemo_rl", (_row(model, line) for model, line in source("nemo_rl").table("steps", _Line)))
