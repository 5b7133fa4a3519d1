"""Cases of the suite `fabric`: one job on several fabrics, some with circuits that a network policy sets anew.

What an arm does is played for about an hour of its own iterations. Its work is iterations for an hour, so work per dollar compares
arms of one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.bench.suite import Column, SuiteRow
from rollmux_env.network.fabric import Fabric
from rollmux_env.network.play import Forecast, NetworkPolicy, Played, Yardstick, draw_hour, forecast_of, play, topologies
from rollmux_env.network.prices import usd_per_hour
from rollmux_env.network.steps import FabricJob, Iteration, iteration_of

SECONDS, LATE, SWITCHES = "s/iteration", "ms late", "switches"  # all of an iteration
FABRIC, PER_FABRIC, PER_CLUSTER = "$/GPU-h", "work/fabric-$", "work/$"
COLUMNS = (
    Column(SECONDS, lambda own, _: 0.0, digits=2, style=""),
    Column(LATE, lambda own, _: 0.0, digits=0, style=""),
    Column(SWITCHES, lambda own, _: 0.0, digits=0, style=""),
    Column(FABRIC, lambda own, _: 0.0, digits=3, style=""),
    Column(PER_FABRIC, lambda own, _: 0.0),
    Column(PER_CLUSTER, lambda own, _: 0.0, digits=3),
)
HOUR_S, QUICK_S = 3600.0, 900.0
CV = 0.1  # of every duration, about what is expected

MakeNetwork = Callable[[str], NetworkPolicy | Yardstick]


@dataclass(frozen=True)
class Arm:
    """A fabric, and who sets its circuits.

    Attributes:
        name: of its line. build: the fabric, given how many GPUs. policy: by name. reconfigure_s: to set circuits anew.
    """

    name: str
    build: Callable[[int], Fabric]
    policy: str = "static"
    reconfigure_s: float = 0.0


@dataclass(frozen=True)
class FabricCase:
    """A job and its arms; work per dollar is relative to the first.

    Attributes:
        label: what tells it from the others. gpu_usd_per_hour: price of a GPU, for dollars of the cluster.
    """

    label: str
    job: FabricJob
    arms: tuple[Arm, ...]
    gpu_usd_per_hour: float


def fabric_rows(cases: Sequence[FabricCase], seeds: Sequence[int], quick: bool, make: MakeNetwork) -> list[SuiteRow]:
    """Measure every case: one row per case and arm, in order."""
    return [row for case in cases for row in _rows(case, seeds, quick, make)]


def _rows(case: FabricCase, seeds: Sequence[int], quick: bool, make: MakeNetwork) -> Iterator[SuiteRow]:
    iteration, gpus = iteration_of(case.job), case.job.gpus
    forecasts: dict[Fabric, Forecast] = {}
    base: list[tuple[float, float]] = []
    for arm in case.arms:
        fabric = arm.build(gpus)
        if fabric not in forecasts:
            forecasts[fabric] = forecast_of(fabric, iteration, topologies(fabric, iteration), 0.0)
        forecast = forecasts[fabric].at(arm.reconfigure_s)
        hours = [played_hour(forecast, iteration, HOUR_S if not quick else QUICK_S, seed, make(arm.policy)) for seed in seeds]
        counts = [played.topologies.shape[0] for played in hours]
        each_s = [played.seconds / count for played, count in zip(hours, counts, strict=True)]
        fabric_usd = usd_per_hour(fabric)
        costs = [(seconds * fabric_usd, seconds * (fabric_usd + gpus * case.gpu_usd_per_hour)) for seconds in each_s]
        base = base or costs
        figures = {
            SECONDS: each_s,
            LATE: [1e3 * played.late_s / count for played, count in zip(hours, counts, strict=True)],
            SWITCHES: [played.switches / count for played, count in zip(hours, counts, strict=True)],
            FABRIC: [fabric_usd / gpus for _ in hours],
            PER_FABRIC: [first[0] / own[0] for first, own in zip(base, costs, strict=True)],
            PER_CLUSTER: [first[1] / own[1] for first, own in zip(base, costs, strict=True)],
        }
        yield SuiteRow(case.label, arm.name, {heading: mean_interval(values) for heading, values in figures.items()})


def played_hour(forecast: Forecast, iteration: Iteration, seconds: float, seed: int, policy: NetworkPolicy | Yardstick) -> Played:
    """Play at least so many seconds of iterations as they are expected; arms of a seed have the same durations."""
    expected_s = sum(step.before_s + step.beside_s for step in iteration.steps)
    count = ceil(seconds / max(expected_s, iteration.generation_s))
    return play(draw_hour(forecast, iteration.generation_s, count, CV, seed), policy)
