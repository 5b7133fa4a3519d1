"""Set partitioning, solved exactly by HiGHS: a linear program by column generation, then the integer program over what is left.

Reduced costs say which columns can matter: with the linear program's value L, a partition that uses a column of reduced cost c
costs at least L + c. So the integer program needs only the columns below the gap to the best partition known (linear
programming duality; the same argument that fixes variables in branch and bound).
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from rollmux_env.kernel.tables import Floats, Ints

ALL_AT_ONCE = 3000  # columns that the solver takes without choosing
TOLERANCE = 1e-9  # relative, of costs


@dataclass(frozen=True)
class Program:
    """Choose columns that cover every job exactly once, at least total cost.

    Attributes:
        positions: (N, M) jobs of each column as numbers below `jobs`, padded with `jobs`.
        jobs: how many jobs there are.
        nodes: (N, 2) rollout and training nodes of each column.
        nodes_max: most of either over all chosen columns; infinite where there is no limit.
    """

    positions: Ints
    jobs: int
    nodes: Ints
    nodes_max: tuple[float, float]

    @property
    def limited(self) -> bool:
        """Whether a pool has a limit, which couples the groups."""
        return bool(np.isfinite(self.nodes_max).any())


@dataclass(frozen=True)
class Partition:
    """An answer.

    Attributes:
        columns: (G,) chosen columns, ascending.
        value: their total cost.
        bound: no partition costs less; equal to `value` where it is proven optimal.
    """

    columns: Ints
    value: float
    bound: float


def partition(program: Program, cost: Floats, node_limit: int | None, fallback: Ints | None) -> Partition | None:
    """Find the cheapest partition.

    Args:
        cost: (N,) of the columns.
        node_limit: most branch-and-bound nodes; where it bites, `bound` is below `value`. None is no limit.
        fallback: columns of some partition, the answer where the limit leaves none.

    Returns:
        None where there is no partition, or none was found within the limit.
    """
    reduced = _linear(program, cost)
    if reduced is None:
        return None
    bound, reduced_cost, whole = reduced
    if whole is not None:
        value = float(cost[whole].sum())
        return Partition(whole, value, value)
    best = None if fallback is None else Partition(fallback, float(cost[fallback].sum()), bound)
    slack = float(np.partition(reduced_cost, ALL_AT_ONCE)[ALL_AT_ONCE]) if cost.size > ALL_AT_ONCE else np.inf
    while True:
        kept = np.flatnonzero(reduced_cost <= slack)
        chosen, least = _integer(program, cost, kept, node_limit)
        if chosen is not None and (best is None or cost[chosen].sum() < best.value):
            best = Partition(chosen, float(cost[chosen].sum()), bound)
        if least is not None:  # the limit bit
            return best and Partition(best.columns, best.value, min(best.value, max(bound, min(least, bound + slack))))
        if best is None and np.isinf(slack):
            return None
        gap = np.inf if best is None else best.value - bound
        if best is not None and gap <= slack:
            return Partition(best.columns, best.value, best.value)
        slack = gap + TOLERANCE * max(1.0, abs(bound))


def _linear(program: Program, cost: Floats) -> tuple[float, Floats, Ints | None] | None:
    """Solve the linear program over all columns.

    Returns:
        Its value, made safe against rounding; the columns' reduced costs; and the columns of its solution where that is whole.
        None where there is no solution.
    """
    n = cost.size
    if program.limited or n <= ALL_AT_ONCE:
        used = np.arange(n)
    else:
        share = cost / (program.positions < program.jobs).sum(axis=1)
        alone = np.flatnonzero((program.positions < program.jobs).sum(axis=1) == 1)
        used = np.union1d(alone, np.argpartition(share, ALL_AT_ONCE)[:ALL_AT_ONCE])
    highs = _model(program, cost, used)
    while True:
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = highs.getSolution()
        duals = np.array(solution.row_dual)
        price = np.append(duals[: program.jobs], 0.0)
        reduced = cost - price[program.positions].sum(axis=1)
        if program.limited:
            reduced = reduced - program.nodes @ duals[program.jobs :]
        scale = max(1.0, float(np.abs(price).max()))
        missing = np.flatnonzero(reduced < -TOLERANCE * scale)
        missing = missing[~np.isin(missing, used, assume_unique=True)] if used.size < n else missing[:0]
        if missing.size == 0:
            break
        if missing.size > ALL_AT_ONCE:
            missing = missing[np.argpartition(reduced[missing], ALL_AT_ONCE)[:ALL_AT_ONCE]]
        _add(highs, program, cost, missing)
        used = np.concatenate([used, missing])
    value = float(price.sum())
    if program.limited:
        limit = np.array(program.nodes_max)
        finite = np.isfinite(limit)
        value += float(duals[program.jobs :][finite] @ limit[finite])
    # Every partition has at most as many columns as jobs, so this is a bound whatever the solver's tolerance.
    value += program.jobs * min(0.0, float(reduced.min()))
    x = np.array(solution.col_value)
    whole = np.sort(used[x > 0.5]) if ((x < 1e-6) | (x > 1 - 1e-6)).all() else None
    return value, reduced, whole


def _integer(program: Program, cost: Floats, kept: Ints, node_limit: int | None) -> tuple[Ints | None, float | None]:
    """Solve the integer program over some columns.

    Returns:
        The chosen columns, None where there are none; and the bound where the node limit bit, else None.
    """
    highs = _model(program, cost, kept)
    highs.changeColsIntegrality(kept.size, np.arange(kept.size, dtype=np.int32), np.ones(kept.size, dtype=np.uint8))
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", TOLERANCE)
    if node_limit is not None:
        highs.setOptionValue("mip_max_nodes", node_limit)
    highs.run()
    status = highs.getModelStatus()
    info = highs.getInfo()
    chosen = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        chosen = kept[np.array(highs.getSolution().col_value) > 0.5]
    if status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible):
        return chosen, None
    return chosen, float(info.mip_dual_bound)


def _model(program: Program, cost: Floats, columns: Ints) -> highspy.Highs:
    """A solver with one row a job, one a limited pool, and these columns; one thread, no output."""
    highspy.Highs.resetGlobalScheduler(True)
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    nothing = np.zeros(0, np.int32)
    ones = np.ones(program.jobs)
    highs.addRows(program.jobs, ones, ones, 0, nothing, nothing, np.zeros(0))
    if program.limited:
        limit = np.minimum(program.nodes_max, highspy.kHighsInf)
        highs.addRows(2, np.full(2, -highspy.kHighsInf), limit, 0, nothing, nothing, np.zeros(0))
    _add(highs, program, cost, columns)
    return highs


def _add(highs: highspy.Highs, program: Program, cost: Floats, columns: Ints) -> None:
    positions = program.positions[columns]
    values = np.ones(positions.shape)
    if program.limited:
        pools = np.broadcast_to([program.jobs + 1, program.jobs + 2], (columns.size, 2))
        positions = np.concatenate([positions, pools], axis=1)
        values = np.concatenate([values, program.nodes[columns]], axis=1)
    held = positions != program.jobs  # the padding; the rows of the pools are counted from jobs + 1 until here
    rows = positions[held]
    rows = np.where(rows > program.jobs, rows - 1, rows).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(held.sum(axis=1))[:-1]]).astype(np.int32)
    n = columns.size
    highs.addCols(n, cost[columns], np.zeros(n), np.full(n, highspy.kHighsInf), rows.size, starts, rows, values[held])
