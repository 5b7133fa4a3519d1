"""Gavel's program: the fraction of time of each job on each resource type at the lowest dollars per hour, solved by HiGHS.

x[j, k] is the fraction, v[j, k] the speed (1 is solo), N[k] the number of worker sets of type k, and p[k] the price of one in $/h:

    minimise    sum over k of p[k] N[k]
    subject to  sum over k of x[j, k] <= 1             every job (it is in one place at a time)
                sum over k of v[j, k] x[j, k] >= 1/slo  every job (its effective throughput keeps its SLO)
                sum over j of x[j, k] <= N[k]          every type
                nodes of all sets <= max_nodes         every pool
                x >= 0, N >= 0 and whole

These are the constraints of Gavel (Narayanan et al., OSDI 2020, section 3.1) and of its cost policy with SLOs (section 4.2). There
is one difference: Gavel's workers are given, ours are bought, so their number is a variable. Whole numbers of worker sets leave
some time unused. It is then distributed by the cost policy's own objective for these workers, the largest sum of speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from policies.solver import make_solver
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot

FEASIBILITY = 1e-9  # tolerance of the solver for rows, fractions and whole numbers


@dataclass(frozen=True)
class ProgramInput:
    """Input of the program, for J jobs, K types of worker sets and P pools.

    Attributes:
        speed: Speed of each job on each type, 1 for solo, 0 where it cannot run, shape (J, K).
        least: Lowest effective speed that keeps each job's SLO, 1 / slo, shape (J,).
        nodes: Nodes of each pool in one worker set of each type, shape (K, P).
        usd_per_hour: Price of one worker set of each type, $/h, shape (K,).
        nodes_max: Largest number of nodes of each pool, infinite without a limit, shape (P,).
    """

    speed: Floats
    least: Floats
    nodes: Ints
    usd_per_hour: Floats
    nodes_max: Sequence[float]


def solve(problem: ProgramInput) -> tuple[Floats, float] | None:
    """Find the cheapest worker sets, and the fractions with the most throughput on them.

    Returns:
        Fraction of time of each job on each type, shape (J, K), and the lowest price in $/h if worker sets could be bought in
        fractions, a lower bound for whole ones. None if `max_nodes` allows no solution.
    """
    types = len(problem.usd_per_hour)
    usd = np.concatenate([np.zeros(problem.speed.size), problem.usd_per_hour])
    relaxed = _optimum(problem, usd)
    whole = None if relaxed is None else _optimum(problem, usd, whole=True)
    if relaxed is None or whole is None:
        return None
    work = np.concatenate([-problem.speed.ravel(), np.zeros(types)])
    best = _optimum(problem, work, sets=np.rint(whole[-types:]).astype(np.int64))
    if best is None:  # a rounding error of the solver
        best = whole
    return np.clip(best[:-types], 0.0, 1.0).reshape(-1, types), dot(usd, relaxed)


def _optimum(problem: ProgramInput, cost: Floats, whole: bool = False, sets: Ints | None = None) -> Floats | None:
    """Minimise a cost over the columns x, row by row, and N. `sets` fixes N. Return None if the program is infeasible."""
    jobs, types, pools = len(problem.least), len(problem.usd_per_hour), len(problem.nodes_max)
    infinite = highspy.kHighsInf
    job, kind = np.repeat(np.arange(jobs), types), np.tile(np.arange(types), jobs)
    n = job.size
    # Rows: time of a job, its effective speed, sets of a type, nodes of a pool. Columns: fractions of time, then sets of a type.
    of_sets = [2 * jobs + np.arange(types), *(np.full(types, 2 * jobs + types + k) for k in range(pools))]
    rows = np.concatenate([np.stack([job, jobs + job, 2 * jobs + kind], axis=1).ravel(), np.stack(of_sets, axis=1).ravel()])
    speeds = np.stack([np.ones(n), problem.speed.ravel(), np.ones(n)], axis=1)
    values = np.concatenate([speeds.ravel(), np.column_stack([-np.ones(types), problem.nodes]).ravel()])
    slack = 0.0 if sets is None else FEASIBILITY
    low = np.concatenate([np.full(jobs, -infinite), problem.least * (1 - slack), np.full(types + pools, -infinite)])
    nodes_max = np.minimum(np.asarray(problem.nodes_max, dtype=np.float64), infinite)
    high = np.concatenate([np.ones(jobs), np.full(jobs, infinite), np.zeros(types), nodes_max])
    column_low = np.concatenate([np.zeros(n), np.zeros(types) if sets is None else sets])
    column_high = np.concatenate([(problem.speed.ravel() > 0).astype(float), np.full(types, jobs) if sets is None else sets])

    highs = make_solver()
    highs.setOptionValue("mip_rel_gap", 0.0)
    for name in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
        highs.setOptionValue(name, FEASIBILITY)
    nothing = np.zeros(0, np.int32)
    highs.addRows(low.size, low, high, 0, nothing, nothing, np.zeros(0))
    first = np.concatenate([3 * np.arange(n), 3 * n + (1 + pools) * np.arange(types)])  # three entries a fraction, 1 + pools a type
    starts = first.astype(np.int32)
    highs.addCols(n + types, cost, column_low, column_high, rows.size, starts, rows.astype(np.int32), values)
    if whole:
        highs.changeColsIntegrality(types, np.arange(n, n + types, dtype=np.int32), np.ones(types, dtype=np.uint8))
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(highs.getSolution().col_value)
