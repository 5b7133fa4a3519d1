"""Gavel's program: the fraction of time that each job spends on each resource type, least dollars per hour, by HiGHS.

With x[j, k] the fraction, v[j, k] the speed (1 is solo) and N[k] the worker sets of type k, at a price of p[k] $/h each:

    minimise    sum over k of p[k] N[k]
    subject to  sum over k of x[j, k] <= 1             every job (it is in one place at a time)
                sum over k of v[j, k] x[j, k] >= 1/slo  every job (its effective throughput keeps its SLO)
                sum over j of x[j, k] <= N[k]          every type
                nodes of all sets <= max_nodes         every pool
                x >= 0, N >= 0 and whole

These are the constraints of Gavel (Narayanan et al., OSDI 2020, section 3.1) and of its cost policy with SLOs (section 4.2), with
one difference: Gavel is given its workers, here they are bought, so their number is a variable. The time that whole numbers leave
over is then given out by the cost policy's own objective at those workers: most throughput, as a sum of speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot

FEASIBILITY = 1e-9  # of the solver, on rows, fractions and whole numbers


@dataclass(frozen=True)
class Problem:
    """The input of the program.

    Attributes:
        speed: (J, K) of each job on each type, 1 is solo; 0 where it cannot run.
        least: (J,) least effective speed of each job: 1 / slo.
        nodes: (K, P) nodes of each pool of a worker set.
        usd_per_hour: (K,) price of a worker set.
        nodes_max: (P,) most nodes of each pool; infinite where there is no limit.
    """

    speed: Floats
    least: Floats
    nodes: Ints
    usd_per_hour: Floats
    nodes_max: Sequence[float]


@dataclass(frozen=True)
class Fractions:
    """A solution.

    Attributes:
        time: (J, K) fraction of time of each job on each type.
        sets: (K,) worker sets of each type.
        usd_per_hour: their price.
        relaxed_usd_per_hour: least price if worker sets came in fractions: no whole numbers cost less.
    """

    time: Floats
    sets: Ints
    usd_per_hour: float
    relaxed_usd_per_hour: float


def solve(problem: Problem) -> Fractions | None:
    """Find the cheapest worker sets and, on them, the fractions with the most throughput; None where `max_nodes` allows none."""
    jobs, types = problem.speed.shape
    usd = np.concatenate([np.zeros(problem.speed.size), problem.usd_per_hour])
    relaxed = _optimum(problem, usd)
    whole = None if relaxed is None else _optimum(problem, usd, whole=True)
    if relaxed is None or whole is None:
        return None
    sets = np.rint(whole[-types:]).astype(np.int64)
    work = np.concatenate([-problem.speed.ravel(), np.zeros(types)])
    best = _optimum(problem, work, sets=sets)
    if best is None:  # by a rounding error of the solver
        best = whole
    time = np.clip(best[:-types], 0.0, 1.0).reshape(jobs, types)
    return Fractions(time, sets, dot(problem.usd_per_hour, sets), dot(usd, relaxed))


def _optimum(problem: Problem, cost: Floats, whole: bool = False, sets: Ints | None = None) -> Floats | None:
    """Minimise a cost of the columns x, row by row, and N; `sets` fixes N. None where the rows allow nothing."""
    jobs, types = problem.speed.shape
    infinite = highspy.kHighsInf
    job, kind = (axis.ravel() for axis in np.indices(problem.speed.shape))
    n = job.size
    # Rows: time of a job, its effective speed, sets of a type, nodes of a pool.
    rows = np.concatenate(
        [np.stack([job, jobs + job, 2 * jobs + kind], axis=1).ravel(), _set_rows(jobs, types, problem.nodes.shape[1])]
    )
    values = np.concatenate([np.stack([np.ones(n), problem.speed.ravel(), np.ones(n)], axis=1).ravel(), _set_values(problem)])
    slack = 0.0 if sets is None else FEASIBILITY
    low = np.concatenate(
        [np.full(jobs, -infinite), problem.least * (1 - slack), np.full(types + problem.nodes.shape[1], -infinite)]
    )
    pools = np.minimum(np.asarray(problem.nodes_max, dtype=np.float64), infinite)
    high = np.concatenate([np.ones(jobs), np.full(jobs, infinite), np.zeros(types), pools])
    column_low = np.concatenate([np.zeros(n), np.zeros(types) if sets is None else sets])
    column_high = np.concatenate([(problem.speed.ravel() > 0).astype(float), np.full(types, jobs) if sets is None else sets])

    highspy.Highs.resetGlobalScheduler(True)
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    for name in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
        highs.setOptionValue(name, FEASIBILITY)
    highs.setOptionValue("mip_rel_gap", 0.0)
    nothing = np.zeros(0, np.int32)
    highs.addRows(low.size, low, high, 0, nothing, nothing, np.zeros(0))
    of_sets = 3 * n + (1 + problem.nodes.shape[1]) * np.arange(types)
    starts = np.concatenate([3 * np.arange(n), of_sets]).astype(np.int32)  # three entries a fraction, one and the pools a type
    highs.addCols(n + types, cost, column_low, column_high, rows.size, starts, rows.astype(np.int32), values)
    if whole:
        highs.changeColsIntegrality(types, np.arange(n, n + types, dtype=np.int32), np.ones(types, dtype=np.uint8))
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(highs.getSolution().col_value)


def _set_rows(jobs: int, types: int, pools: int) -> Ints:
    first = 2 * jobs + types  # row of the first pool
    return np.stack([np.arange(2 * jobs, first), *(np.full(types, first + k) for k in range(pools))], axis=1).ravel()


def _set_values(problem: Problem) -> Floats:
    return np.column_stack([-np.ones(len(problem.nodes)), problem.nodes]).ravel()
