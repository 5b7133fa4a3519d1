"""`fabric`: circuits that are reconfigured in slack (RFabric of OrchestrRL) compared with fat trees and rails, by work per dollar.

A case is one job on several fabrics, some with circuits that a network policy reconfigures. Each arm is simulated for about an hour
of iterations. Its work is the number of iterations per hour, so work per dollar compares the arms of one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path

from rollmux_env.bench.intervals import ratios
from rollmux_env.bench.suite import Column, Makers, SuiteRow, make_measured_row
from rollmux_env.bench.suites.published import make_published_suite
from rollmux_env.errors import InputError
from rollmux_env.fabric.flows import read_flows
from rollmux_env.fabric.play import FabricOutcome, Forecast, NetworkPolicy, Yardstick, draw_hour, forecast_of, play, topologies
from rollmux_env.fabric.steps import ExpectedIteration, FabricJob, iteration_of
from rollmux_env.fabric.topology import Fabric, usd_per_hour
from rollmux_env.fabric.traffic import RankLayout
from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.keys.fabric import OUR_PRICES, FabricEntry, FabricStudy, Prices
from rollmux_env.timing.hardware import GPUS
from rollmux_env.timing.lengths import Piecewise
from rollmux_env.timing.models import ALL_SHAPES
from rollmux_env.validation_errors import not_one_of

SECONDS, LATE, SWITCHES = "s/iteration", "ms late", "switches"  # per iteration
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
    """A fabric and the policy that sets its circuits.

    Attributes:
        name: Name of its row.
        build: Function that returns the fabric for a number of GPUs.
        policy: Name of the network policy.
        reconfigure_s: Seconds of a reconfiguration of the circuits.
    """

    name: str
    build: Callable[[int], Fabric]
    policy: str = "static"
    reconfigure_s: float = 0.0


@dataclass(frozen=True)
class FabricCase:
    """A job and its arms. Work per dollar is relative to the first arm.

    Attributes:
        label: Name of the case within the suite.
        job: Job that fills the cluster.
        arms: Fabrics and policies to compare.
        gpu_usd_per_hour: Price of a GPU in $/h, for the dollars of the cluster.
        prices: Prices of the parts of a fabric.
        cv: Coefficient of variation of every duration.
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
    """Measure every case: one row per case and arm, in order.

    Args:
        cases: Cases to measure.
        seeds: Seeds of the durations.
        quick: Whether to simulate a shorter time.
        makers: Factories of policies.
        added: Further network policies, which set the circuits of `ADDED`.
    """
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
        hours = [play_hour(forecast, iteration, least_s, seed, makers.network(arm.policy), case.cv) for seed in seeds]
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
        yield make_measured_row(case.label, arm.name, figures, figures)


def play_hour(
    forecast: Forecast, iteration: ExpectedIteration, seconds: float, seed: int, policy: NetworkPolicy | Yardstick, cv: float = CV
) -> FabricOutcome:
    """Simulate iterations for at least some expected seconds. All arms of a seed have the same durations.

    Args:
        forecast: Expected iteration on the arm's fabric.
        iteration: Expected iteration of the job.
        seconds: Expected seconds to simulate.
        seed: Seed of the durations.
        policy: Policy that sets the circuits.
        cv: Coefficient of variation of every duration.
    """
    expected_s = sum(step.before_s + step.beside_s for step in iteration.steps)
    count = ceil(seconds / max(expected_s, iteration.generation_s))
    return play(draw_hour(forecast, iteration.generation_s, count, cv, seed), policy)


RECONFIGURE_MS = (0.1, 1.0, 10.0, 100.0)
TREES, RAILS = (32, 16, 8, 4), (32, 4)  # numbers of uplinks of a leaf with 32 GPUs
WIDE, NARROW = 30, 16  # numbers of optical ports of a leaf with two electrical uplinks
ADDED = Arm(f"{WIDE}, 10 ms", partial(Fabric, uplinks=2, optical=WIDE), reconfigure_s=1e-2)  # fabric of added policies


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
    """Return the cases of a study.

    Args:
        study: Jobs, prices and variation of durations.
        folder: Directory to which the paths of its traffic are relative.

    Raises:
        InputError: If a job's model or GPU is unknown, its numbers do not fit together, or its flows are invalid.
    """
    return tuple(_case(entry, study, folder, f"fabric.jobs[{k}]") for k, entry in enumerate(study.jobs or OURS))


def _case(entry: FabricEntry, study: FabricStudy, folder: Path, where: str) -> FabricCase:
    for key, value, known in (("model", entry.model, ALL_SHAPES), ("gpu", entry.gpu, GPUS)):
        if value not in known:
            raise InputError(f"{where}.{key}: {not_one_of(value, known)}")
    try:
        lengths = entry.lengths
        batch = ResponseBatch(lengths.batch, 1, entry.updates, lengths.prompt_tokens, Piecewise(lengths.cap, lengths.quantiles))
        flows = {} if entry.traffic is None else read_flows(folder / entry.traffic, entry.gpus)
        layout = RankLayout(0, entry.tensor, entry.pipeline, entry.data)
        job = FabricJob(entry.model, layout, entry.gpus - layout.gpus, entry.replica, batch, entry.experts, entry.gpu, flows)
        for arm in _arms():
            arm.build(job.gpus)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return FabricCase(entry.label, job, _arms(), entry.usd_per_gpu_hour, study.prices, study.cv)


CASES = fabric_cases(FabricStudy())

SUITE = make_published_suite(
    "orchestrrl",
    "fabric",
    columns=COLUMNS,
    measure=partial(fabric_rows, CASES),
    compares="network policies",
    adds="network",
)
