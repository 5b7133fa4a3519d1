"""Set partitioning, solved exactly with HiGHS.

Without limits on pools, jobs that share no feasible group, directly or through others, are independent. Each such block is then
solved on its own. A block starts with the linear program. If its solution is fractional, the search branches on the number of
training nodes, the expensive ones. If this number is given and each side has one pool, the rest of the cost is a whole number of
rollout nodes, so the bound can be rounded up. The value of the linear program is convex in that number (parametric linear
programming), so only a few numbers need a solve.

Reduced costs limit the columns. If L is the value of the linear program, a partition that uses a column of reduced cost c costs at
least L + c. An integer program thus needs only the columns with reduced costs below the gap to the best known partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from policies.placement.optimal.program import TOLERANCE, Program, Relaxation, whole_solution
from rollmux_env.kernel.tables import Floats, Ints

__all__ = ["Partition", "Program", "partition"]

FIRST = 1000  # number of columns of the first integer program of a branch


@dataclass(frozen=True)
class Partition:
    """Solution of the set partitioning program.

    Attributes:
        columns: Chosen columns, ascending, shape (G,).
        value: Total cost of the chosen columns.
        bound: Lower bound of the cost of all partitions, equal to `value` if the partition is proven optimal.
    """

    columns: Ints
    value: float
    bound: float


def partition(program: Program, cost: Floats, node_limit: int | None, known: Ints | None) -> Partition | None:
    """Find the cheapest partition.

    Args:
        program: Jobs and nodes of the columns.
        cost: Cost of each column, shape (N,).
        node_limit: Largest number of branch-and-bound nodes of an integer program, or None. If it is reached, `bound` is below
            `value`.
        known: Columns of some partition, or None. It is the starting point, and the answer if the limit leaves nothing better.

    Returns:
        The partition, or None if there is none or the limit left none found.
    """
    best_parts: list[Partition] = []
    for columns, block in _blocks(program):
        start = None if known is None else np.flatnonzero(np.isin(columns, known))
        best = _BlockSearch(block, cost[columns], node_limit, start).run()
        if best is None:
            return None
        best_parts.append(replace(best, columns=columns[best.columns]))
    chosen = np.sort(np.concatenate([part.columns for part in best_parts]))
    return Partition(chosen, sum(part.value for part in best_parts), sum(part.bound for part in best_parts))


def _blocks(program: Program) -> list[tuple[Ints, Program]]:
    """Split a program into independent blocks, each with the indices of its columns."""
    n = program.jobs
    first = program.positions.min(axis=1)
    links = (np.repeat(first, len(program.positions.T)), program.positions.ravel())
    real = links[1] < n
    graph = coo_array((np.ones(int(real.sum())), (links[0][real], links[1][real])), (n, n))
    count, label = connected_components(graph, directed=False)
    if count == 1 or program.limited:
        return [(np.arange(first.size), program)]
    blocks = []
    for k in range(count):
        columns = np.flatnonzero(label[first] == k)
        jobs = np.flatnonzero(label == k)
        number = np.full(n + 1, jobs.size)
        number[jobs] = np.arange(jobs.size)
        part = replace(
            program,
            positions=number[program.positions[columns]],
            jobs=jobs.size,
            nodes=program.nodes[columns],
            pools=program.pools[columns],
        )
        blocks.append((columns, part))
    return blocks


@dataclass(frozen=True)
class _Branch:
    """Relaxation with a given number of training nodes.

    Attributes:
        training_nodes: The given number.
        value: Value of the linear program.
        bound: Lower bound for whole solutions.
        reduced: Reduced cost of each column.
        support: Columns of the linear program's solution.
    """

    training_nodes: int
    value: float
    bound: float
    reduced: Floats
    support: Ints


class _BlockSearch:
    """Branch-and-bound search on the number of training nodes of one block."""

    def __init__(self, program: Program, cost: Floats, node_limit: int | None, start: Ints | None) -> None:
        self._program = program
        self._cost = cost
        self._node_limit = node_limit
        self._relaxation = Relaxation(program, cost)
        self._best: Ints | None = None
        self._value = np.inf
        self._bound = np.inf  # lowest bound of the branches that a node limit left open
        if start is not None:
            self._offer(start)

    def run(self) -> Partition | None:
        relaxation = self._relaxation
        if not relaxation.solve():
            return None
        root = relaxation.value
        if relaxation.chosen is not None:
            self._offer(relaxation.chosen)
        elif root < self._value - self._tolerance:
            self._branch(relaxation.training_nodes)
        if self._best is None:
            return None
        return Partition(self._best, self._value, min(self._value, max(root, self._bound)))

    @property
    def _tolerance(self) -> float:
        return TOLERANCE * max(1.0, float(np.abs(self._cost).max()))

    def _offer(self, columns: Ints) -> None:
        value = float(self._cost[columns].sum())
        if value < self._value:
            self._best, self._value = columns, value

    def _branch(self, middle: float) -> None:
        open_branches: list[_Branch] = []
        down, up = floor(middle + 1e-6), floor(middle + 1e-6) + 1
        # The linear program's values at both ends of the solved range. Being convex, they only rise beyond.
        reached = {-1: -np.inf, 1: -np.inf}
        following = {-1: down, 1: up}
        while True:
            for step in (-1, 1):
                while reached[step] < min([self._value, *(branch.bound for branch in open_branches)]) - self._tolerance:
                    branch = self._relax(following[step])
                    following[step] += step
                    reached[step] = np.inf if branch is None else branch.value
                    if branch is not None:
                        open_branches.append(branch)
            open_branches = [branch for branch in open_branches if branch.bound < self._value - self._tolerance]
            if not open_branches:
                return
            first = min(open_branches, key=lambda branch: (branch.bound, branch.training_nodes))
            open_branches.remove(first)
            again = self._explore(first)
            if again is not None:
                open_branches.append(again)

    def _relax(self, training_nodes: int) -> _Branch | None:
        relaxation, program = self._relaxation, self._program
        if not 0 <= training_nodes <= program.counts_max[-1] or not relaxation.solve(training_nodes):
            return None
        value = bound = relaxation.value
        rollout_usd, training_usd = program.prices or (0.0, 0.0)
        if rollout_usd > 0:
            training_cost = training_nodes * training_usd
            bound = max(value, training_cost + ceil((value - training_cost) / rollout_usd - 1e-6) * rollout_usd)
        if relaxation.chosen is not None:
            self._offer(relaxation.chosen)
        return _Branch(training_nodes, value, bound, relaxation.reduced, relaxation.support)

    def _explore(self, branch: _Branch) -> _Branch | None:
        """Solve the integer program of a branch. Return the branch with a higher bound if it needs another solve, else None."""
        program, reduced = self._program, branch.reduced
        rollout_nodes = None
        rollout_usd, training_usd = program.prices or (0.0, 0.0)
        if rollout_usd > 0:
            rollout_nodes = round((branch.bound - branch.training_nodes * training_usd) / rollout_usd)
            if rollout_nodes > program.counts_max[0] or rollout_nodes > program.jobs * program.nodes[:, 0].max():
                return None
        order = np.argsort(reduced, kind="stable")
        some = FIRST
        while True:
            wanted = self._value if rollout_nodes is None else branch.bound
            needed = int(np.count_nonzero(reduced <= wanted - branch.value + self._tolerance))
            some = needed if needed < 3 * some else some
            columns = np.union1d(order[:some], branch.support)
            chosen, bound = whole_solution(program, self._cost, columns, branch.training_nodes, rollout_nodes, self._node_limit)
            if chosen is not None:
                self._offer(chosen)
            # A partition that uses a column outside this program costs at least this much.
            others = branch.value + float(reduced[order[some]]) if some < order.size else np.inf
            if bound is not None:
                self._bound = min(self._bound, max(branch.bound, min(bound, others)))
                return None
            if self._value <= max(others, branch.bound) + self._tolerance:
                return None
            if some == needed:
                # No partition has this few rollout nodes, so the branch continues with one more.
                return None if rollout_nodes is None else replace(branch, bound=branch.bound + rollout_usd)
            some *= 4
