"""RollMux's calibration of the phase-time model compared with every published phase time, sync time and amount of host memory.

python benchmarks/timing.py         # print the tables of docs/results/timing.md
python benchmarks/timing.py --fit   # fit its four numbers again
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rollmux_env.bench.suites import tables
from rollmux_env.bench.suites.tables import PublishedRow
from rollmux_env.fidelity.rl_job import phases_s
from rollmux_env.kernel.tables import Floats
from rollmux_env.published import source
from rollmux_env.report.tables import make_table, show
from rollmux_env.timing.calibration import ROLLMUX, Calibration
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.weights import flat_s, rollout_memory_gb, topology_aware_s, training_memory_gb
from rollmux_env.workloads.catalogue import MEMORY_GB, PHASES_S


@dataclass(frozen=True)
class PublishedFigure:
    """A published figure.

    Attributes:
        name: Name of what it describes.
        quantity: `rollout`, `training`, `sync` or `memory`.
        unit: `s` or `GB`.
        published: Published value, in the unit.
        predict: Function that returns the model's value for a calibration.
        fitted: Whether RollMux's calibration is fitted to it.
    """

    name: str
    quantity: str
    unit: str
    published: float
    predict: Callable[[Calibration], float]
    fitted: bool


def figures() -> list[PublishedFigure]:
    """Return all published figures of RollMux, and figures of others for the same quantities."""
    return [*_phases(tables.ROLLMUX.rows, True), *_syncs(), *_memory(), *_phases(tables.ROLLPACKER.rows, False), *_updates()]


def _phases(rows: tuple[PublishedRow, ...], fitted: bool) -> Iterator[PublishedFigure]:
    for row in rows:
        for phase, seconds in row.seconds.items():
            predict = partial(_phase_s, row, phase)
            yield PublishedFigure(
                f"{row.name}: {phase}", "rollout" if phase == "gen" else "training", "s", seconds, predict, fitted
            )


def _phase_s(row: PublishedRow, phase: str, calibration: Calibration) -> float:
    return phases_s(row.job_for(ROLLMUX), calibration)[phase]


def _syncs() -> Iterator[PublishedFigure]:
    for size, (gpus, flat, aware) in source("rollmux").table("sync_s", tuple[int, float, float]):
        name = f"{size} sync, {gpus} to {gpus} GPUs"
        yield PublishedFigure(f"{name}, flat", "sync", "s", flat, partial(_flat_s, size, "H800", gpus, gpus), True)
        yield PublishedFigure(f"{name}, topology-aware", "sync", "s", aware, partial(_aware_s, size, gpus), True)


def _updates() -> Iterator[PublishedFigure]:
    for size, (seconds,) in source("areal_hex").table("update_s", tuple[float]):
        predict = partial(_flat_s, size, "H800-areal-hex", 3, 1)
        yield PublishedFigure(f"{size} weight update (AReaL-Hex)", "sync", "s", seconds, predict, False)


def _flat_s(size: str, gpu: str, copies: int, links: int, calibration: Calibration) -> float:
    return flat_s(_weights_gb(size), copies, links, achieved(gpu, GPUS[gpu], calibration).cross_gb_s)


def _aware_s(size: str, gpus: int, calibration: Calibration) -> float:
    hardware = achieved("H800", GPUS["H800"], calibration)
    return topology_aware_s(_weights_gb(size), gpus, gpus // 8, hardware.cross_gb_s, hardware.inside_gb_s)


def _weights_gb(size: str) -> float:
    return 2 * SHAPES[size].parameters / 1e9


def _memory() -> Iterator[PublishedFigure]:
    for billions, (rollout_gb, training_gb) in MEMORY_GB.items():
        size, nodes = f"{billions}B", {32: 2, 70: 4}.get(billions, 1)  # 70B: TP 8 and PP 4, 32 GPUs
        here = rollout_memory_gb(SHAPES[size], 8, tables.TENSOR_PARALLEL.get(size, 1)), training_memory_gb(SHAPES[size], 8, nodes)
        for phase, published, predicted in zip(("rollout", "training"), (rollout_gb, training_gb), here, strict=True):
            yield PublishedFigure(f"{size} {phase}'s host memory", "memory", "GB", published, partial(_same, predicted), False)


def _same(value: float, calibration: Calibration) -> float:
    return value


def fitted_to() -> list[PublishedFigure]:
    """Return the figures to which RollMux's calibration is fitted: those of RollMux, with the streams' training time of 32B-8k."""
    of_streams = {f"{kind} apart, training: training": seconds[1] for kind, seconds in PHASES_S.items()}
    return [replace(figure, published=of_streams.get(figure.name, figure.published)) for figure in figures() if figure.fitted]


def fit() -> Calibration:
    """Return RollMux's calibration with its four numbers fitted.

    The fit minimises the squared logarithms of predicted over published values, over the figures of `fitted_to`.
    """
    from scipy.optimize import least_squares

    fitted = fitted_to()

    def calibration(logs: Floats) -> Calibration:
        step_s, arithmetic, update_s, link = np.exp(logs).tolist()
        return replace(ROLLMUX, step_s=step_s, arithmetic=arithmetic, update_s=update_s, link=link)

    def errors(logs: Floats) -> list[float]:
        return [float(np.log(figure.predict(calibration(logs)) / figure.published)) for figure in fitted]

    begin, most = (np.log(each) for each in ((0.01, 0.3, 10.0, 0.8), (1.0, 1.0, 1e4, 1.0)))
    return calibration(least_squares(errors, begin, bounds=(np.full(4, np.log(1e-6)), most)).x)


def main() -> None:
    """Print the tables, or with `--fit` the fitted calibration."""
    if "--fit" in sys.argv[1:]:
        print(fit())
        return
    table = make_table("", "published", "model", "error")
    errors: dict[tuple[str, bool], list[float]] = {}
    for figure in figures():
        predicted = figure.predict(ROLLMUX)
        error = predicted / figure.published - 1
        errors.setdefault((figure.quantity, figure.fitted), []).append(error)
        table.add_row(figure.name, f"{figure.published:g} {figure.unit}", f"{predicted:.1f} {figure.unit}", f"{100 * error:+.0f}%")
    show(table)
    summary = make_table("", "rows", "median of |error|", "largest")
    for (quantity, fitted), parts in errors.items():
        name = f"{quantity}, {'fitted to' if fitted else 'not fitted to'}"
        sizes = np.abs(parts)
        summary.add_row(name, f"{len(parts)}", f"{100 * np.median(sizes):.0f}%", f"{100 * sizes.max():.0f}%")
    show(summary)


if __name__ == "__main__":
    main()
