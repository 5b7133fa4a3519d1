"""Steps of NVIDIA's NeMo-RL on H100 and GB200: GRPO on OpenMathInstruct-2, colocated or one or more steps off-policy.

NVIDIA-NeMo/RL, performance-summary.md (docs, about): release 0.4 at commit 06beed91bac9, 0.5 at 4c1a0cd493a0, 0.6 at 7ea279abfebb.
GPUs of each side of the overlapped jobs, and prompts of a step, from examples/configs/recipes/llm/performance at the last commit.
"""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.bench.tables.table import NotCovered, Row, Table
from rollmux_env.timing.lengths import lognormal_of_mean
from rollmux_env.timing.rl_job import Batch, RlJob, Workers

PROMPT_TOKENS = 110  # tokens a second and GPU, times seconds and GPUs, less the printed mean: 90 to 150
SIGMA = 1.0  # assumed
ON, OFF = False, True  # policy


class _Line(NamedTuple):
    """One printed line: sizes, lengths, GPUs, responses, parallelism (training: of a copy, and its stages), seconds."""

    model: str
    overlapped: bool
    cap: int
    mean: float
    gpus: int
    responses: int
    rollout_parallel: int
    training_parallel: int
    stages: int
    seconds: float
    rollout_gpus: int = 0  # half of them


_DEEPSEEK, _QWEN, _SMALL = "671B-A37B", "235B-A22B", "30B-A3B"
_RELEASE_4 = (
    _Line("Llama-8B", ON, 4096, 1060, 16, 2048, 1, 2, 2, 97.7),
    _Line("Llama-8B", OFF, 4096, 1129, 16, 2048, 1, 2, 2, 74.6),
    _Line(_DEEPSEEK, ON, 1536, 745, 256, 512, 32, 16, 16, 154.0),
    _Line(_DEEPSEEK, OFF, 1536, 744, 512, 512, 32, 16, 16, 77.9),
    _Line(_QWEN, ON, 8192, 5671, 128, 512, 16, 32, 8, 506.0),
    _Line(_QWEN, OFF, 8192, 5691, 256, 512, 8, 32, 8, 241.0),
    _Line(_SMALL, ON, 4096, 3154, 32, 2048, 4, 2, 1, 225.0),
    _Line(_SMALL, OFF, 4096, 3158, 32, 2048, 2, 2, 2, 244.0),
    _Line("32B", ON, 4096, 3206, 32, 2048, 4, 16, 4, 393.0),
    _Line("32B", OFF, 4096, 3207, 64, 2048, 4, 16, 4, 215.0),
)
_RELEASE_5 = (
    _Line("Llama-8B", ON, 4096, 1019, 16, 2048, 1, 2, 2, 92.8),
    _Line("Llama-8B", OFF, 4096, 1123, 16, 2048, 1, 1, 1, 64.8),
    _Line(_DEEPSEEK, ON, 1536, 744, 256, 512, 32, 16, 16, 134.0),
    _Line(_DEEPSEEK, OFF, 1536, 738, 512, 512, 32, 16, 16, 64.9),
    _Line(_QWEN, ON, 8192, 5700, 128, 512, 16, 32, 8, 431.0),
    _Line(_QWEN, OFF, 8192, 5707, 256, 512, 8, 32, 8, 203.0),
    _Line(_SMALL, ON, 4096, 3196, 32, 2048, 2, 1, 1, 198.0),
    _Line(_SMALL, OFF, 4096, 3201, 32, 2048, 2, 2, 2, 154.0),
    _Line("32B", ON, 4096, 3251, 32, 2048, 4, 16, 4, 376.0),
    _Line("32B", OFF, 4096, 3252, 64, 2048, 4, 16, 4, 200.0),
)
_RELEASE_5_FP8 = (
    _Line("Llama-8B", OFF, 4096, 1128, 16, 2048, 1, 1, 1, 53.0),
    _Line(_DEEPSEEK, OFF, 1536, 761, 512, 512, 16, 16, 16, 67.6),
)
_RELEASE_5_GB200 = (
    _Line("Llama-8B", ON, 4096, 1066, 8, 2048, 1, 1, 1, 91.0),
    _Line("Llama-8B", OFF, 4096, 1107, 8, 2048, 1, 1, 1, 71.1),
    _Line(_DEEPSEEK, ON, 1536, 996, 128, 512, 32, 8, 8, 128.0),
    _Line(_DEEPSEEK, OFF, 1536, 994, 256, 512, 16, 8, 8, 64.5),
    _Line(_QWEN, ON, 8192, 5711, 64, 512, 8, 16, 4, 332.0),
    _Line(_QWEN, OFF, 8192, 5711, 128, 512, 8, 16, 4, 268.0),
    _Line(_SMALL, ON, 4096, 3198, 16, 2048, 1, 1, 1, 232.0),
    _Line(_SMALL, OFF, 4096, 3204, 32, 2048, 1, 1, 1, 136.0),
    _Line("32B", ON, 4096, 3253, 16, 2048, 1, 2, 1, 381.0),
    _Line("32B", OFF, 4096, 3258, 32, 2048, 1, 2, 1, 210.0),
)
_RELEASE_6 = (
    _Line(_DEEPSEEK, ON, 1536, 701, 256, 512, 32, 16, 16, 134.0),
    _Line(_DEEPSEEK, ON, 1536, 697, 512, 512, 32, 16, 16, 111.0),
    _Line(_DEEPSEEK, OFF, 1536, 710, 512, 512, 32, 16, 16, 64.1),
    _Line(_QWEN, ON, 8192, 5698, 128, 512, 16, 32, 8, 395.0),
    _Line(_QWEN, ON, 8192, 5713, 256, 512, 16, 32, 8, 312.0),
    _Line(_QWEN, OFF, 8192, 5721, 256, 512, 8, 32, 8, 231.0),
    _Line(_SMALL, ON, 4096, 3203, 32, 2048, 2, 1, 1, 192.0),
    _Line(_SMALL, OFF, 4096, 3201, 32, 2048, 2, 2, 2, 152.0),
    _Line(_SMALL, OFF, 4096, 3206, 192, 2048, 2, 1, 1, 34.5, 64),
)
_RELEASE_6_FP8 = (_Line(_DEEPSEEK, OFF, 1536, 721, 512, 512, 16, 16, 16, 59.2),)
_RELEASE_6_GB200 = (
    _Line(_DEEPSEEK, ON, 1536, 711, 128, 512, 32, 8, 8, 108.0),
    _Line(_DEEPSEEK, ON, 1536, 700, 256, 512, 32, 8, 8, 98.7),
    _Line(_DEEPSEEK, OFF, 1536, 708, 256, 512, 16, 8, 8, 61.7),
    _Line(_QWEN, ON, 8192, 5709, 64, 512, 8, 16, 4, 286.0),
    _Line(_QWEN, ON, 8192, 5693, 128, 512, 8, 16, 4, 345.0),
    _Line(_QWEN, OFF, 8192, 5705, 128, 512, 8, 16, 4, 278.0),
    _Line(_SMALL, ON, 4096, 3199, 16, 2048, 1, 1, 1, 221.0),
    _Line(_SMALL, OFF, 4096, 3197, 16, 2048, 1, 1, 1, 301.0),
)


def _rows(release: str, gpu: str, lines: tuple[_Line, ...], number_bytes: float = 2.0) -> list[Row]:
    rows = []
    for line in lines:
        group = 16 if line.model == _DEEPSEEK else 32
        lengths = lognormal_of_mean(line.cap, line.mean, SIGMA)
        batch = Batch(line.responses // group, group, line.responses // 512, PROMPT_TOKENS, lengths)
        rollout_gpus = (line.rollout_gpus or line.gpus // 2) if line.overlapped else line.gpus
        training_gpus = line.gpus - rollout_gpus if line.overlapped else line.gpus
        job = RlJob(
            line.model,
            Workers(gpu, rollout_gpus, line.rollout_parallel, number_bytes=number_bytes),
            Workers(gpu, training_gpus, line.training_parallel, line.stages, number_bytes=number_bytes),
            batch,
            ("old_log_prob", "ref"),
            line.overlapped,
        )
        precision = "" if number_bytes == 2 else " FP8"
        name = f"{release} {line.model} {'overlapped' if line.overlapped else 'colocated'}, {line.gpus} {gpu}{precision}"
        rows.append(Row(name, gpu, {"step": line.seconds}, job))
    return rows


TABLE = Table(
    "NeMo-RL",
    "NVIDIA-NeMo/RL, performance-summary.md (docs, about) at 06beed91bac9 (release 0.4), 4c1a0cd493a0 (0.5), 7ea279abfebb (0.6)",
    (
        *_rows("0.4", "H100", _RELEASE_4),
        *_rows("0.5", "H100", _RELEASE_5),
        *_rows("0.5", "H100", _RELEASE_5_FP8, 1.0),
        *_rows("0.5", "GB200", _RELEASE_5_GB200),
        *_rows("0.6", "H100", _RELEASE_6),
        *_rows("0.6", "H100", _RELEASE_6_FP8, 1.0),
        *_rows("0.6", "GB200", _RELEASE_6_GB200),
    ),
    (
        NotCovered(
            1, "step of DAPO on DeepSeek V3", "it samples until prompts are neither easy nor hard; how often is not printed"
        ),
        NotCovered(1, "step of Nemotron-3-Nano", "half of its layers are no attention, and its turns wait for a sandbox"),
    ),
    (
        "lengths have the printed mean, a lognormal's of sigma 1.0 cut at the cap; prompts are what tokens a second leave.",
        "opened once, when constants were final; none was changed after. Messages count in all phases since: 40.8% before.",
    ),
)
