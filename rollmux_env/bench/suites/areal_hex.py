"""`areal-hex`: GPUs of two types for one asynchronous job (AReaL-Hex, arXiv 2511.00796), beside the paper's figures.

A case divides budgets of GPUs by allocators. A row is an allocator on a budget. Its gain is over the best division of a budget of
one type that costs as much or less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rollmux_env.allocation.allocation import Allocation, GpuBudget
from rollmux_env.bench.suite import Column, Makers, SuiteRow, make_measured_row
from rollmux_env.bench.suites.published import make_published_suite
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.work import IterationWork

RATE, PRICE, GAIN, CHEAPER = "responses/s", "$/h", "gain over {}", "$ a response over {}"
GAP, PLANNER = "iteration over exhaustive's", "planner CPU s"


@dataclass(frozen=True)
class AllocationCase:
    """Allocators and budgets for the same work.

    Attributes:
        label: Name of the case within the suite.
        work: Work of an iteration.
        rows: Allocator and budget by the name of a row.
        against: Names of the rows over which the others' gains are computed.
    """

    label: str
    work: IterationWork
    rows: Mapping[str, tuple[str, GpuBudget]]
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class GapCase:
    """Allocators compared with the yardstick, over several kinds of work on one budget.

    Attributes:
        label: Name of the case within the suite.
        works: Kinds of work of an iteration.
        budget: Budget for all of them.
    """

    label: str
    works: tuple[IterationWork, ...]
    budget: GpuBudget


def columns(against: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of the suite, with gains over rows of the given names."""
    gains = (Column(heading.format(name)) for name in against for heading in (GAIN, CHEAPER))
    return (
        Column(RATE, digits=2, style=""),
        Column(PRICE, digits=2, style=""),
        *gains,
        Column(GAP, digits=1, style="%"),
        Column(PLANNER, digits=1, style=""),
    )


def allocation_rows(
    cases: Sequence[AllocationCase | GapCase], against: Sequence[str], seeds: Sequence[int], quick: bool, makers: Makers
) -> list[SuiteRow]:
    """Measure every case, in order."""
    headings = [column.heading for column in columns(against)]
    rows: list[SuiteRow] = []
    for case in cases:
        measured = _gaps(case, makers) if isinstance(case, GapCase) else _budgets(case, makers)
        for name, figures in measured.items():
            rows.append(make_measured_row(case.label, name, headings, {heading: [value] for heading, value in figures.items()}))
    return rows


def _budgets(case: AllocationCase, makers: Makers) -> dict[str, dict[str, float]]:
    measured: dict[str, dict[str, float]] = {}
    for name, (allocator, budget) in case.rows.items():
        allocation, planner_s = _time_division(makers.allocator(allocator), case.work, budget)
        rate = case.work.responses / allocation.iteration_s
        measured[name] = {RATE: rate, PRICE: allocation.usd_per_hour or 0.0, PLANNER: planner_s}
    for name, figures in measured.items():
        for base in case.against if name not in case.against else ():
            rate, price = measured[base][RATE], measured[base][PRICE]
            figures[GAIN.format(base)] = figures[RATE] / rate
            figures[CHEAPER.format(base)] = figures[RATE] / figures[PRICE] / (rate / price)
    return measured


def _gaps(case: GapCase, makers: Makers) -> dict[str, dict[str, float]]:
    """Return the largest gap over all kinds of work, and the longest time of a plan."""
    yardstick = makers.allocator("exhaustive")
    best = [yardstick(work, case.budget).iteration_s for work in case.works]
    measured = {}
    for name in ("hex", "uniform"):
        divide = makers.allocator(name)
        plans = [_time_division(divide, work, case.budget) for work in case.works]
        gaps = [100 * (plan.iteration_s / least_s - 1) for (plan, _), least_s in zip(plans, best, strict=True)]
        measured[name] = {GAP: max(gaps), PLANNER: max(planner_s for _, planner_s in plans)}
    return measured


def _time_division(
    divide: Callable[[IterationWork, GpuBudget], Allocation], work: IterationWork, budget: GpuBudget
) -> tuple[Allocation, float]:
    """Return a division and the seconds of processor time that it took."""
    begin = time.process_time()
    allocation = divide(work, budget)
    return allocation, time.process_time() - begin


H800, H20 = "H800-areal-hex", "H20-areal-hex"
ALL_H800, ALL_H20 = "all H800", "all H20"
AGAINST = (ALL_H800, ALL_H20)
STALENESS = 4

SIZES = ("1.5B", "7B", "14B")

MIXED_BUDGET, H800_BUDGET, H20_BUDGET = GpuBudget({H800: 24, H20: 24}), GpuBudget({H800: 32}), GpuBudget({H20: 88})
_SMALL, _EQUAL = GpuBudget({H800: 8, H20: 24}), GpuBudget({H800: 24})
_FEW_H800, _FEWER_H20 = GpuBudget({H800: 8, H20: 48}), GpuBudget({H20: 68})
_GAP_BUDGETS = ((8, 8), (16, 8), (8, 16), (16, 16), (24, 8))

# Labels by whether decoding pays for reading the KV cache, which the paper's model leaves out.
_CACHE = {False: "", True: ", cache read"}


def _work(size: str, staleness: int = STALENESS, responses: int = 8192, reads_cache: bool = True) -> IterationWork:
    return IterationWork(SHAPES[size], responses, staleness=staleness, reads_cache=reads_cache)


_SAME_BUDGET, _SMALLER_BUDGET, _SAME_THROUGHPUT = "{}, same budget{}", "{}, smaller budget{}", "{}, same throughput{}"
_DIVISIONS = (
    (
        _SAME_BUDGET,
        {
            "hex": ("hex", MIXED_BUDGET),
            "exhaustive": ("exhaustive", MIXED_BUDGET),
            "uniform": ("uniform", MIXED_BUDGET),
            ALL_H800: ("exhaustive", H800_BUDGET),
            ALL_H20: ("exhaustive", H20_BUDGET),
        },
        AGAINST,
    ),
    (
        _SMALLER_BUDGET,
        {"hex": ("hex", _FEW_H800), ALL_H800: ("exhaustive", _EQUAL), ALL_H20: ("exhaustive", _FEWER_H20)},
        AGAINST,
    ),
    (_SAME_THROUGHPUT, {"hex": ("hex", _SMALL), ALL_H800: ("exhaustive", _EQUAL)}, (ALL_H800,)),
)
_BUDGETS = tuple(
    AllocationCase(label.format(size, _CACHE[reads_cache]), _work(size, reads_cache=reads_cache), rows, against)
    for label, rows, against in _DIVISIONS
    for reads_cache in _CACHE
    for size in SIZES
)
_GAPS = tuple(
    GapCase(
        f"{first} H800 + {second} H20, staleness {staleness}",
        tuple(_work(size, staleness, responses) for size in SIZES for responses in (256, 8192)),
        GpuBudget({H800: first, H20: second}),
    )
    for first, second in _GAP_BUDGETS
    for staleness in (0, STALENESS)
)
CASES: tuple[AllocationCase | GapCase, ...] = (*_BUDGETS, *_GAPS)

SUITE = make_published_suite(
    "areal_hex",
    "areal-hex",
    columns=columns(AGAINST),
    measure=partial(allocation_rows, CASES, AGAINST),
    compares="allocators, and has its own",
)
