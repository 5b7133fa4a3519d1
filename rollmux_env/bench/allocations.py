"""Cases of the suite `areal-hex`: budgets of GPUs for one asynchronous job, divided by allocators.

A row is an allocator on a budget. Its gain is over the best division of a budget of one type alone, which costs as much or less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollmux_env.bench.intervals import Mean, mean_interval
from rollmux_env.bench.suite import Column, SuiteRow
from rollmux_env.timing.allocation import Allocation, Budget
from rollmux_env.timing.work import Work

RATE, PRICE, GAIN, CHEAPER = "responses/s", "$/h", "gain over {}", "$ a response over {}"
GAP, PLANNER = "iteration over exhaustive's", "planner CPU s"

Allocator = Callable[[Work, Budget], Allocation]
MakeAllocator = Callable[[str], Allocator]


@dataclass(frozen=True)
class AllocationCase:
    """Budgets for the same work.

    Attributes:
        label: what tells it from the others. work: of an iteration.
        rows: by the name of a row, the allocator and the budget. against: names of rows that the others' gains are over.
    """

    label: str
    work: Work
    rows: Mapping[str, tuple[str, Budget]]
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class GapCase:
    """Allocators beside the yardstick, over several kinds of work on one budget.

    Attributes:
        label: what tells it from the others. works: of an iteration, each. budget: of all. allocators: compared with `exhaustive`.
    """

    label: str
    works: tuple[Work, ...]
    budget: Budget
    allocators: tuple[str, ...] = field(default=("hex", "uniform"))


def columns(against: Sequence[str]) -> tuple[Column, ...]:
    """Of the suite, with gains over rows of these names."""
    gains = (column for name in against for column in (Column(GAIN.format(name), _nothing), Column(CHEAPER.format(name), _nothing)))
    return (
        Column(RATE, _nothing, digits=2, style=""),
        Column(PRICE, _nothing, digits=2, style=""),
        *gains,
        Column(GAP, _nothing, digits=1, style="%"),
        Column(PLANNER, _nothing, digits=1, style=""),
    )


def allocation_rows(
    cases: Sequence[AllocationCase | GapCase], against: Sequence[str], make_allocator: MakeAllocator
) -> list[SuiteRow]:
    """Measure every case, in order."""
    headings = [column.heading for column in columns(against)]
    rows: list[SuiteRow] = []
    for case in cases:
        measured = _gaps(case, make_allocator) if isinstance(case, GapCase) else _budgets(case, make_allocator)
        rows += [
            SuiteRow(case.label, name, {heading: figures.get(heading) for heading in headings})
            for name, figures in measured.items()
        ]
    return rows


def _budgets(case: AllocationCase, make_allocator: MakeAllocator) -> dict[str, dict[str, Mean]]:
    rates: dict[str, float] = {}
    prices: dict[str, float] = {}
    measured: dict[str, dict[str, float]] = {}
    for name, (allocator, budget) in case.rows.items():
        divide = make_allocator(allocator)
        begin = time.process_time()
        allocation = divide(case.work, budget)
        planner_s = time.process_time() - begin
        rates[name] = case.work.responses / allocation.iteration_s
        prices[name] = allocation.usd_per_hour or 0.0
        measured[name] = {RATE: rates[name], PRICE: prices[name], PLANNER: planner_s}
    for name, figures in measured.items():
        for base in case.against:
            if name not in case.against:
                figures[GAIN.format(base)] = rates[name] / rates[base]
                figures[CHEAPER.format(base)] = rates[name] / prices[name] / (rates[base] / prices[base])
    return {name: {heading: mean_interval([value]) for heading, value in figures.items()} for name, figures in measured.items()}


def _gaps(case: GapCase, make_allocator: MakeAllocator) -> dict[str, dict[str, Mean]]:
    """The largest gap of all kinds of work, and the longest time of a plan."""
    yardstick = make_allocator("exhaustive")
    best = [yardstick(work, case.budget).iteration_s for work in case.works]
    measured = {}
    for name in case.allocators:
        divide = make_allocator(name)
        gaps, seconds = [], []
        for work, least_s in zip(case.works, best, strict=True):
            begin = time.process_time()
            gaps.append(100 * (divide(work, case.budget).iteration_s / least_s - 1))
            seconds.append(time.process_time() - begin)
        measured[name] = {GAP: mean_interval([max(gaps)]), PLANNER: mean_interval([max(seconds)])}
    return measured


def _nothing(own: object, base: object) -> float:
    return 0.0
