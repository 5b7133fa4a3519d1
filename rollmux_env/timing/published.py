"""Published phase times, sync times and host memory beside the model, and the fit of RollMux's calibration.

Where the papers leave values open, one assumption holds for all rows: 256 responses to prompts of 1,024 tokens (the 256
are from RollMux's Table 3); a trainer that pads sequences to the cap; for 3B, 14B-4k and 32B jobs, the lengths of the
7B job with the same cap. 4B and 8B jobs, whose lengths are not published, have a lognormal of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.calibration import ROLLMUX, Calibration
from rollmux_env.timing.hardware import GPUS, Hardware, achieved
from rollmux_env.timing.lengths import PUBLISHED, Lengths, Lognormal, Piecewise
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.rl_job import Batch, Workers, generation_s, scoring_s, update_s
from rollmux_env.timing.weights import flat_s, rollout_memory_gb, topology_aware_s, training_memory_gb
from rollmux_env.workloads.catalogue import MEMORY_GB, PHASES_S

RESPONSES, PROMPT_TOKENS = 256, 1024
THINKING_MEDIAN, THINKING_SIGMA = 4096.0, 1.2  # of 4B and 8B jobs: assumed
TENSOR_PARALLEL = {"32B": 2, "70B": 8}
GPUS_OF = {"32B": 16}  # of each pool; 8 else

Quantity = Literal["rollout", "training", "sync", "memory"]


@dataclass(frozen=True)
class Row:
    """A published figure.

    Attributes:
        name: what it is of. quantity: which part of the model it tests. unit: `s` or `GB`. published: the figure. predict: the
            model's, from a calibration. fitted: whether RollMux's is fitted to it.
    """

    name: str
    quantity: Quantity
    unit: str
    published: float
    predict: Callable[[Calibration], float]
    fitted: bool


def job_lengths(kind: str) -> Lengths:
    """Lengths of a job type such as `8B-16k`: published, or assumed as said above."""
    size, _, cap = kind.partition("-")
    if kind in PUBLISHED:
        return PUBLISHED[kind]
    if size in ("4B", "8B"):
        return Lognormal(1024 * int(cap.removesuffix("k")), THINKING_MEDIAN, THINKING_SIGMA)
    return PUBLISHED[f"7B-{cap}"]


def rows() -> list[Row]:
    """All published figures."""
    return [*_phases(), *_syncs(), *_memory(), *_rollpacker(), *_areal_hex()]


def _phases() -> Iterator[Row]:
    for kind, seconds in PHASES_S.items():
        for pool, gpu, at in (("8 H20", "H20", 0), ("8 H800", "H800", 2)):
            size = kind.partition("-")[0]
            where = pool if size not in GPUS_OF else pool.replace("8 ", "16 ", 1)
            yield Row(f"{kind} rollout, {where}", "rollout", "s", seconds[at], _rollout(kind, gpu), True)
            beside = "" if at == 0 else ", co-located"
            yield Row(f"{kind} training{beside}", "training", "s", seconds[at + 1], _training(kind), True)


def job_batch(kind: str, responses: int = 1) -> Batch:
    """The responses of a job type; so many to each prompt."""
    return Batch(RESPONSES, responses, 1, PROMPT_TOKENS, job_lengths(kind))


def _rollout(kind: str, gpu: str) -> Callable[[Calibration], float]:
    size = kind.partition("-")[0]
    workers, batch = Workers(gpu, GPUS_OF.get(size, 8), TENSOR_PARALLEL.get(size, 1)), job_batch(kind)
    return lambda calibration: generation_s(SHAPES[size], workers, batch, calibration)


def _training(kind: str) -> Callable[[Calibration], float]:
    size = kind.partition("-")[0]
    workers, batch = Workers("H800", GPUS_OF.get(size, 8)), job_batch(kind)
    return lambda calibration: sum(part(SHAPES[size], workers, batch, calibration) for part in (scoring_s, update_s))


def _weights_gb(size: str) -> float:
    return 2 * SHAPES[size].parameters / 1e9


# RollMux, flat and topology-aware: GPUs on each side -> size -> seconds.
_SYNC_S = {
    8: {"7B": (7.5, 0.9), "14B": (13.8, 1.7), "32B": (30.7, 3.9)},
    16: {"7B": (8.2, 3.1), "14B": (15.2, 5.8), "32B": (33.8, 12.3)},
}


def _syncs() -> Iterator[Row]:
    for devices, sizes in _SYNC_S.items():
        for size, (flat, aware) in sizes.items():
            name = f"{size} sync, {devices} to {devices} GPUs"
            yield Row(f"{name}, flat", "sync", "s", flat, _flat(size, "H800", devices, devices), True)
            yield Row(f"{name}, topology-aware", "sync", "s", aware, _aware(size, devices), True)


def _flat(size: str, gpu: str, copies: int, links: int) -> Callable[[Calibration], float]:
    return lambda calibration: flat_s(_weights_gb(size), copies, links, _links(gpu, calibration).cross_gb_s)


def _aware(size: str, devices: int) -> Callable[[Calibration], float]:
    def predict(calibration: Calibration) -> float:
        links = _links("H800", calibration)
        return topology_aware_s(_weights_gb(size), devices, devices // 8, links.cross_gb_s, links.inside_gb_s)

    return predict


def _links(gpu: str, calibration: Calibration) -> Hardware:
    return achieved(gpu, GPUS[gpu], calibration)


def _memory() -> Iterator[Row]:
    for billions, (rollout_gb, training_gb) in MEMORY_GB.items():
        size, nodes = f"{billions}B", {32: 2, 70: 4}.get(billions, 1)  # 70B: TP 8 and PP 4, 32 GPUs
        predicted_gb = rollout_memory_gb(SHAPES[size], 8, TENSOR_PARALLEL.get(size, 1))
        yield Row(f"{size} rollout's host memory", "memory", "GB", rollout_gb, _constant(predicted_gb), False)
        predicted_gb = training_memory_gb(SHAPES[size], 8, nodes)
        yield Row(f"{size} training's host memory", "memory", "GB", training_gb, _constant(predicted_gb), False)


def _constant(value: float) -> Callable[[Calibration], float]:
    return lambda _: value


# RollPacker (arXiv 2509.21009), rollouts of veRL with 128 x 8 responses: size, cap, H800s, of them a replica, seconds.
PACKED_JOBS = (("7B", 8192, 16, 1, 82.0), ("14B", 16384, 32, 2, 277.0), ("32B", 32768, 64, 2, 673.0))


def packed_lengths(cap: int) -> Piecewise:
    """RollPacker's lengths up to a cap: median 500 to 700, 90% at most 1.3k to 2.3k, 95 to 98% below 4k, 2 to 5% at the cap."""
    return Piecewise(cap, ((0.5, 600.0), (0.9, 1800.0), (0.965, 4096.0), (0.98, float(cap))))


def _rollpacker() -> Iterator[Row]:
    for size, cap, devices, parallel, seconds in PACKED_JOBS:
        lengths = packed_lengths(cap)
        name = f"{size}-{cap // 1024}k rollout, {devices} H800 (RollPacker)"
        yield Row(name, "rollout", "s", seconds, _packed(size, devices, parallel, lengths), False)


def _packed(size: str, devices: int, parallel: int, lengths: Lengths) -> Callable[[Calibration], float]:
    workers, batch = Workers("H800", devices, parallel), Batch(1024, 1, 1, PROMPT_TOKENS, lengths)
    return lambda calibration: generation_s(SHAPES[size], workers, batch, calibration)


# AReaL-Hex (arXiv 2511.00796): one link of 1.5 GB/s, a whole copy to each of three machines (24 H20).
def _areal_hex() -> Iterator[Row]:
    for size, seconds in (("1.5B", 10.0), ("7B", 58.0), ("14B", 113.0)):
        yield Row(f"{size} weight update (AReaL-Hex)", "sync", "s", seconds, _flat(size, "H800-areal-hex", 3, 1), False)


def fit(published_rows: list[Row] | None = None) -> Calibration:
    """RollMux's calibration with the four numbers that make the squared logarithms of predicted over published least, over the rows
    that are fitted to."""
    from scipy.optimize import least_squares

    fitted = [row for row in (rows() if published_rows is None else published_rows) if row.fitted]

    def calibration(logs: Floats) -> Calibration:
        step_s, arithmetic, update_s, link = np.exp(logs).tolist()
        return replace(ROLLMUX, step_s=step_s, arithmetic=arithmetic, update_s=update_s, link=link)

    def errors(logs: Floats) -> list[float]:
        return [float(np.log(row.predict(calibration(logs)) / row.published)) for row in fitted]

    begin, most = (np.log(each) for each in ((0.01, 0.3, 10.0, 0.8), (1.0, 1.0, 1e4, 1.0)))
    return calibration(least_squares(errors, begin, bounds=(np.full(4, np.log(1e-6)), most)).x)
