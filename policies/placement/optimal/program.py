"""The set partitioning program for HiGHS: columns that cover every job exactly once, at the least cost."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot

ALL_AT_ONCE = 3000  # columns that the solver takes without choosing
TOLERANCE = 1e-9  # relative, of costs
_MISSED = 100.0  # price of a training node too many or too few, in dearest columns
_OPTIMAL = highspy.HighsModelStatus.kOptimal
_SETTLED = (_OPTIMAL, highspy.HighsModelStatus.kInfeasible)


@dataclass(frozen=True)
class Program:
    """Which jobs and nodes every column has.

    Attributes:
        positions: (N, M) jobs of each column as numbers below `jobs`, padded with `jobs`.
        jobs: how many jobs there are.
        nodes: (N, 2) rollout and training nodes of each column.
        nodes_max: most of either over all chosen columns; infinite where there is no limit.
        prices: of a rollout node and of a training node, where they make up the whole cost of every column; else None.
    """

    positions: Ints
    jobs: int
    nodes: Ints
    nodes_max: tuple[float, float]
    prices: tuple[float, float] | None = None

    @property
    def limited(self) -> bool:
        """Whether a pool has a limit, which couples the groups."""
        return bool(np.isfinite(self.nodes_max).any())


class Relaxation:
    """The linear program over all columns; columns enter the solver where their reduced cost is negative.

    Attributes (of the last `solve`):
        value: what it costs, made safe against rounding: no partition costs less.
        reduced: (N,) reduced costs: a partition that uses the column costs at least value + reduced.
        support: the columns of the solution; chosen: the same where it is whole, else None.
        training_nodes: of the solution, with fractions.
    """

    def __init__(self, program: Program, cost: Floats) -> None:
        self._program = program
        self._cost = cost
        size = (program.positions < program.jobs).sum(axis=1)
        self._used = np.arange(size.size)
        if size.size > ALL_AT_ONCE and not program.limited:
            self._used = np.union1d(np.flatnonzero(size == 1), np.argpartition(cost / size, ALL_AT_ONCE)[:ALL_AT_ONCE])
        self._highs = _model(program, cost, self._used)
        # While only some columns are in, the solver may miss the number of training nodes at a price above any column's: a program
        # that allows more costs no more, so its value is a bound all the same.
        self._first = self._used.size
        self._elastic = self._used.size < size.size
        if self._elastic:
            row = np.array([program.jobs + 1], np.int32)
            for sign in (-1.0, 1.0):
                self._highs.addCol(_MISSED * float(np.abs(cost).max()), 0.0, highspy.kHighsInf, 1, row, np.array([sign]))

    def solve(self, training_nodes: int | None = None) -> bool:
        """Solve it, with so many training nodes altogether or with any; False where there is no solution."""
        program, cost, highs = self._program, self._cost, self._highs
        least, most = (0.0, program.nodes_max[1]) if training_nodes is None else (training_nodes, training_nodes)
        highs.changeRowBounds(program.jobs + 1, least, min(most, highspy.kHighsInf))
        while True:
            highs.run()
            if highs.getModelStatus() != _OPTIMAL:
                return False
            solution = highs.getSolution()
            duals = np.array(solution.row_dual)
            price = np.append(duals[: program.jobs], 0.0)
            reduced = cost - price[program.positions].sum(axis=1) - (program.nodes * duals[program.jobs :]).sum(axis=1)
            missing = np.ones(cost.size, dtype=bool)
            missing[self._used] = False
            entering = np.flatnonzero(missing & (reduced < -TOLERANCE * max(1.0, float(np.abs(price).max()))))
            if entering.size == 0:
                break
            if entering.size > ALL_AT_ONCE:
                entering = entering[np.argpartition(reduced[entering], ALL_AT_ONCE)[:ALL_AT_ONCE]]
            self._enter(entering)
        x = np.array(solution.col_value)
        missed = 0.0
        if self._elastic:
            first = self._first
            missed = float(x[first : first + 2].sum())
            x = np.delete(x, [first, first + 1])
        self.reduced = reduced
        # A partition has at most as many columns as jobs, so this is a bound whatever the solver's tolerance.
        self.value = float(highs.getInfo().objective_function_value) + program.jobs * min(0.0, float(reduced.min()))
        self.support = np.sort(self._used[x > 1e-6])
        self.chosen = self.support if missed < 1e-6 and (np.abs(x - np.round(x)) < 1e-6).all() else None
        self.training_nodes = dot(x, program.nodes[self._used, 1])
        return True

    def _enter(self, columns: Ints) -> None:
        _add(self._highs, self._program, self._cost, columns)
        self._used = np.concatenate([self._used, columns])


def whole_solution(
    program: Program, cost: Floats, columns: Ints, training_nodes: int, rollout_nodes: int | None, node_limit: int | None
) -> tuple[Ints | None, float | None]:
    """Solve the integer program over some of the columns, with so many training nodes altogether.

    Args:
        rollout_nodes: None to minimise the cost; else any partition with at most so many rollout nodes will do.

    Returns:
        The chosen columns, None where there are none; and where the node limit bit a bound of the cost, else None.
    """
    highs = _model(program, cost if rollout_nodes is None else np.zeros(cost.size), columns)
    highs.changeRowBounds(program.jobs + 1, training_nodes, training_nodes)
    if rollout_nodes is not None:
        highs.changeRowBounds(program.jobs, 0.0, rollout_nodes)
    highs.changeColsIntegrality(columns.size, np.arange(columns.size, dtype=np.int32), np.ones(columns.size, dtype=np.uint8))
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", TOLERANCE)
    if node_limit is not None:
        highs.setOptionValue("mip_max_nodes", node_limit)
    highs.run()
    info = highs.getInfo()
    chosen = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        chosen = np.sort(columns[np.array(highs.getSolution().col_value) > 0.5])
    if highs.getModelStatus() in _SETTLED:
        return chosen, None
    return chosen, float(info.mip_dual_bound) if rollout_nodes is None else -np.inf


def _model(program: Program, cost: Floats, columns: Ints) -> highspy.Highs:
    """A solver with a row a job, a row a pool, and these columns; one thread, no output."""
    highspy.Highs.resetGlobalScheduler(True)  # another user of the library may have given it more threads
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    empty = np.zeros(0, np.int32)
    least = np.concatenate([np.ones(program.jobs), np.zeros(2)])
    most = np.concatenate([np.ones(program.jobs), np.minimum(program.nodes_max, highspy.kHighsInf)])
    highs.addRows(program.jobs + 2, least, most, 0, empty, empty, np.zeros(0))
    _add(highs, program, cost, columns)
    return highs


def _add(highs: highspy.Highs, program: Program, cost: Floats, columns: Ints) -> None:
    n = columns.size
    pools = np.broadcast_to([program.jobs + 1, program.jobs + 2], (n, 2))  # the padding is number `jobs`: one too many here
    numbers = np.concatenate([program.positions[columns], pools], axis=1)
    values = np.concatenate([np.ones((n, numbers.shape[1] - 2)), program.nodes[columns]], axis=1)
    nonzero = numbers != program.jobs
    rows = (numbers - (numbers > program.jobs))[nonzero].astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(nonzero.sum(axis=1))[:-1]]).astype(np.int32)
    highs.addCols(n, cost[columns], np.zeros(n), np.full(n, highspy.kHighsInf), rows.size, starts, rows, values[nonzero])
