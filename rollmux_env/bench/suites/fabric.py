"""`fabric`: circuits that are set anew in slack (RFabric of OrchestrRL) beside fat trees and rails, by work per dollar.

A case is one job on several fabrics, some with circuits that a network policy sets anew. What an arm does is played for about an
hour of its own iterations. Its work is iterations for an hour, so work per dollar compares arms of one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from rollmux_env.bench.intervals import ratios
from rollmux_env.bench.suite import Column, Makers, SuiteRow, measured_row
from rollmux_env.bench.suites.published import published_suite
from rollmux_env.bench.tables import packed_lengths
from rollmux_env.network.fabric import Fabric, usd_per_hour
from rollmux_env.network.play import Forecast, NetworkPolicy, Played, Yardstick, draw_hour, forecast_of, play, topologies
from rollmux_env.network.steps import FabricJob, Iteration, iteration_of
from rollmux_env.network.traffic import Layout
from rollmux_env.timing.rl_job import Batch
from rollmux_env.workloads.catalogue import paper_cluster

SECONDS, LATE, SWITCHES = "s/iteration", "ms late", "switches"  # all of an iteration
FABRIC, PER_FABRIC, PER_CLUSTER = "$/GPU-h", "work/fabric-$", "work/$"
COLUMNS = (
    Column(SECONDS, digits=2, style=""),
    Column(LATE, digits=0, style=""),
    Column(SWITCHES, digits=0, style=""),
    Column(FABRIC, digits=3, style=""),
    Column(PER_FABRIC),
    Column(PER_CLUSTER, digits=3),
)
HOUR_S, QUICK_S = 3600.0, 900.0
CV = 0.1  # of every duration, about what is expected


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


def fabric_rows(
    cases: Sequence[FabricCase], seeds: Sequence[int], quick: bool, makers: Makers, added: Sequence[str] = ()
) -> list[SuiteRow]:
    """Measure every case: one row per case and arm, in order; policies that are added set the circuits of `ADDED`."""
    more = tuple(replace(ADDED, name=f"{name} {ADDED.name}", policy=name) for name in added)
    cases = [replace(case, arms=(*case.arms, *more)) for case in cases]
    return [row for case in cases for row in _rows(case, seeds, QUICK_S if quick else HOUR_S, makers)]


def _rows(case: FabricCase, seeds: Sequence[int], least_s: float, makers: Makers) -> Iterator[SuiteRow]:
    iteration, gpus = iteration_of(case.job), case.job.gpus
    forecasts: dict[Fabric, Forecast] = {}
    first: tuple[list[float], list[float]] | None = None
    for arm in case.arms:
        fabric = arm.build(gpus)
        if fabric not in forecasts:
            forecasts[fabric] = forecast_of(fabric, iteration, topologies(fabric, iteration), 0.0)
        forecast = replace(forecasts[fabric], reconfigure_s=arm.reconfigure_s)
        hours = [played_hour(forecast, iteration, least_s, seed, makers.network(arm.policy)) for seed in seeds]
        counts = [len(played.topologies) for played in hours]
        each_s = [played.seconds / count for played, count in zip(hours, counts, strict=True)]
        fabric_usd = usd_per_hour(fabric)
        usd = [seconds * fabric_usd for seconds in each_s]
        cluster_usd = [seconds * (fabric_usd + gpus * case.gpu_usd_per_hour) for seconds in each_s]
        first = first or (usd, cluster_usd)
        figures = {
            SECONDS: each_s,
            LATE: [1e3 * played.late_s / count for played, count in zip(hours, counts, strict=True)],
            SWITCHES: [played.switches / count for played, count in zip(hours, counts, strict=True)],
            FABRIC: [fabric_usd / gpus for _ in hours],
            PER_FABRIC: ratios(first[0], usd),
            PER_CLUSTER: ratios(first[1], cluster_usd),
        }
        yield measured_row(case.label, arm.name, figures, figures)


def played_hour(forecast: Forecast, iteration: Iteration, seconds: float, seed: int, policy: NetworkPolicy | Yardstick) -> Played:
    """Play at least so many seconds of iterations as they are expected; arms of a seed have the same durations."""
    expected_s = sum(step.before_s + step.beside_s for step in iteration.steps)
    count = ceil(seconds / max(expected_s, iteration.generation_s))
    return play(draw_hour(forecast, iteration.generation_s, count, CV, seed), policy)


# 4,096 prompts with 16 responses of at most 8k tokens each, trained on in mini-batches of 1,024; the lengths are RollPacker's.
BATCH = Batch(4096, 16, 64, 1024, packed_lengths(8192))
RECONFIGURE_MS = (0.1, 1.0, 10.0, 100.0)
TREES, RAILS = (32, 16, 8, 4), (32, 4)  # uplinks of a leaf with 32 GPUs
WIDE, NARROW = 30, 16  # optical ports of a leaf, beside two electrical uplinks: of all its links, and of half of them
ADDED = Arm(f"{WIDE}, 10 ms", partial(Fabric, uplinks=2, optical=WIDE), reconfigure_s=1e-2)  # of policies beside these


def _arms() -> tuple[Arm, ...]:
    trees = tuple(Arm(f"fat tree {32 // up}:1", partial(Fabric, uplinks=up)) for up in TREES)
    rails = tuple(Arm(f"rails {32 // up}:1", partial(Fabric, uplinks=up, rails=True)) for up in RAILS)
    wide, narrow = (partial(Fabric, uplinks=2, optical=ports) for ports in (WIDE, NARROW))
    reset = (
        Arm(f"{policy} {WIDE}, {ms:g} ms", wide, policy, ms / 1e3) for policy in ("rfabric", "oracle") for ms in RECONFIGURE_MS
    )
    few = Arm(f"static {NARROW}", narrow), Arm(f"rfabric {NARROW}, 10 ms", narrow, "rfabric", 1e-2)
    return (*trees, *rails, Arm(f"static {WIDE}", wide), *reset, *few)


def _case(model: str, gpus: int, layout: Layout, replica: int, experts: int = 1) -> FabricCase:
    job = FabricJob(model, layout, gpus - layout.gpus, replica, BATCH, experts)
    usd = paper_cluster().pools["training"].usd_per_gpu_hour
    return FabricCase(f"{model.partition('-')[0]} on {gpus:,}", job, _arms(), usd)


CASES = (
    _case("32B", 1024, Layout(0, 8, 4, 12), 4),
    _case("235B-A22B", 1024, Layout(0, 8, 3, 8), 8, experts=8),
    _case("70B", 2048, Layout(0, 8, 8, 14), 8),
    _case("235B-A22B", 2048, Layout(0, 8, 5, 8), 8, experts=8),
)

SUITE = published_suite(
    "orchestrrl",
    "fabric",
    columns=COLUMNS,
    measure=partial(fabric_rows, CASES),
    compares="network policies",
    adds="network",
)
