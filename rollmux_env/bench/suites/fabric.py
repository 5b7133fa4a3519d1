"""`fabric`: circuits that are set anew in slack (RFabric of OrchestrRL) beside fat trees and rails, by work per dollar.

A case is one job on several fabrics, some with circuits that a network policy sets anew. What an arm does is played for about an
hour of its own iterations. Its work is iterations for an hour, so work per dollar compares arms of one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

from rollmux_env.bench.intervals import ratios
from rollmux_env.bench.suite import Column, Makers, SuiteRow, measured_row
from rollmux_env.bench.suites.published import published_suite
from rollmux_env.errors import InputError
from rollmux_env.keys.fabric import OUR_PRICES, FabricEntry, FabricStudy, Prices
from rollmux_env.network.fabric import Fabric, usd_per_hour
from rollmux_env.network.flows import read_flows
from rollmux_env.network.play import Forecast, NetworkPolicy, Played, Yardstick, draw_hour, forecast_of, play, topologies
from rollmux_env.network.steps import FabricJob, Iteration, iteration_of
from rollmux_env.network.traffic import Layout
from rollmux_env.timing.batch import Batch
from rollmux_env.timing.hardware import GPUS
from rollmux_env.timing.lengths import Piecewise
from rollmux_env.timing.models import ALL_SHAPES
from rollmux_env.validation_errors import not_one_of

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
CV = FabricStudy().cv


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
        prices: of the parts of a fabric. cv: coefficient of variation of every duration, about what is expected.
    """

    label: str
    job: FabricJob
    arms: tuple[Arm, ...]
    gpu_usd_per_hour: float
    prices: Prices = OUR_PRICES
    cv: float = CV


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
        hours = [played_hour(forecast, iteration, least_s, seed, makers.network(arm.policy), case.cv) for seed in seeds]
        counts = [len(played.topologies) for played in hours]
        each_s = [played.seconds / count for played, count in zip(hours, counts, strict=True)]
        fabric_usd = usd_per_hour(fabric, case.prices)
        usd = [seconds * fabric_usd for seconds in each_s]
        cluster_usd = [seconds * (fabric_usd + gpus * case.gpu_usd_per_hour) for seconds in each_s]
        first = first or (usd, cluster_usd)
        figures: dict[str, Sequence[float | None]] = {
            SECONDS: each_s,
            LATE: [1e3 * played.late_s / count for played, count in zip(hours, counts, strict=True)],
            SWITCHES: [played.switches / count for played, count in zip(hours, counts, strict=True)],
            FABRIC: [fabric_usd / gpus for _ in hours],
            PER_FABRIC: ratios(first[0], usd),
            PER_CLUSTER: ratios(first[1], cluster_usd),
        }
        yield measured_row(case.label, arm.name, figures, figures)


def played_hour(
    forecast: Forecast, iteration: Iteration, seconds: float, seed: int, policy: NetworkPolicy | Yardstick, cv: float = CV
) -> Played:
    """Play at least so many seconds of iterations as they are expected; arms of a seed have the same durations."""
    expected_s = sum(step.before_s + step.beside_s for step in iteration.steps)
    count = ceil(seconds / max(expected_s, iteration.generation_s))
    return play(draw_hour(forecast, iteration.generation_s, count, cv, seed), policy)


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


OURS = tuple(
    FabricEntry(
        label=f"{model.partition('-')[0]} on {gpus:,}", model=model, gpus=gpus, tensor=8, pipeline=p, data=d, replica=r, experts=e
    )
    for model, gpus, p, d, r, e in (
        ("32B", 1024, 4, 12, 4, 1),
        ("235B-A22B", 1024, 3, 8, 8, 8),
        ("70B", 2048, 8, 14, 8, 1),
        ("235B-A22B", 2048, 5, 8, 8, 8),
    )
)


def fabric_cases(study: FabricStudy, folder: Path = Path()) -> tuple[FabricCase, ...]:
    """The cases of a study.

    Args:
        folder: what the paths of its traffic are relative to.

    Raises:
        InputError: a job with a model or a GPU that is not known, with numbers that do not go together, or with flows that are
            none; one line.
    """
    return tuple(_case(entry, study, folder, f"fabric.jobs[{k}]") for k, entry in enumerate(study.jobs or OURS))


def _case(entry: FabricEntry, study: FabricStudy, folder: Path, where: str) -> FabricCase:
    for key, value, known in (("model", entry.model, ALL_SHAPES), ("gpu", entry.gpu, GPUS)):
        if value not in known:
            raise InputError(f"{where}.{key}: {not_one_of(value, known)}")
    try:
        lengths = entry.lengths
        batch = Batch(lengths.batch, 1, entry.updates, lengths.prompt_tokens, Piecewise(lengths.cap, lengths.quantiles))
        flows = {} if entry.traffic is None else read_flows(folder / entry.traffic, entry.gpus)
        layout = Layout(0, entry.tensor, entry.pipeline, entry.data)
        job = FabricJob(entry.model, layout, entry.gpus - layout.gpus, entry.replica, batch, entry.experts, entry.gpu, flows)
        for arm in _arms():
            arm.build(job.gpus)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return FabricCase(entry.label, job, _arms(), entry.usd_per_gpu_hour, study.prices, study.cv)


CASES = fabric_cases(FabricStudy())

SUITE = published_suite(
    "orchestrrl",
    "fabric",
    columns=COLUMNS,
    measure=partial(fabric_rows, CASES),
    compares="network policies",
    adds="network",
)
