"""What allocators search: the training plans and replicas of a budget, each made once, and the rollout plans asked for so far."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from math import inf

from policies.allocation.rollout import Kind, RolloutPlan, replica_kinds, rollout_plan
from policies.allocation.training import Timed, training_plans
from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.timing.allocation import Allocation, Budget, Counts
from rollmux_env.timing.work import Work


class PlanTable:
    """The plans of a budget.

    Args:
        work: of an iteration. budget: what is divided.

    Raises:
        InputError: the budget holds no training plan or no replica, or not both at once; one line.
    """

    def __init__(self, work: Work, budget: Budget) -> None:
        self.work = work
        self.budget = budget
        self._rollouts: dict[Counts, RolloutPlan | None] = {}
        names = ", ".join(f"{count} x {name}" for name, count in budget.gpus.items())
        if not self.plans:
            raise InputError(f"budget: {names} cannot hold a training of this model")
        if not self.kinds:
            raise InputError(f"budget: {names} cannot hold a copy of this model for rollouts")
        if all(self.rollout(budget.beside(plan.gpus)) is None for plan in self.plans):
            raise InputError(f"budget: {names} cannot hold a training of this model and a copy for rollouts beside it")

    @cached_property
    def plans(self) -> tuple[Timed, ...]:
        """Training plans, the fastest first."""
        return training_plans(self.work, self.budget)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of replicas, the one with the largest throughput first."""
        return replica_kinds(self.work, self.budget)

    def rollout(self, counts: Counts) -> RolloutPlan | None:
        """The best rollout plan on so many GPUs of each type; None where not one replica fits."""
        if counts not in self._rollouts:
            self._rollouts[counts] = rollout_plan(self.kinds, counts, self.work.in_flight)
        return self._rollouts[counts]

    def complete(self, timed: Timed, limit_s: float = inf) -> Allocation | None:
        """A training plan with the rollout plan beside it whose iteration is the shortest.

        The update of the weights depends on how many machines of each type sample, and on nothing else of the rollout plan: so for
        every number of machines the plan with the largest throughput is enough.

        Returns:
            None where no replica fits beside it, or no iteration is shorter than the limit.
        """
        best: Allocation | None = None
        for counts in _fillings(self.budget.beside(timed.gpus), self.budget.machine):
            if self.least_s(timed, counts) >= limit_s:
                continue
            rollout = self.rollout(counts)
            if rollout is not None:
                allocation = Allocation(self.work, self.budget, timed.plan, rollout.replicas)
                if allocation.iteration_s < limit_s:
                    best, limit_s = allocation, allocation.iteration_s
        return best

    def least_s(self, timed: Timed, counts: Counts | None = None) -> float:
        """A bound on the iteration with a training plan, and so many GPUs that sample; without them, all that it leaves."""
        beside = self.budget.beside(timed.gpus) if counts is None else counts
        most = sum(count * each for count, each in zip(beside, self._speeds, strict=True))
        if not most:
            return inf
        return alone_s(self.work.responses / most + self.budget.rewards_s(self.work), timed.seconds, 0.0, self.work.staleness)

    @cached_property
    def _speeds(self) -> tuple[float, ...]:
        """For each type, a bound on the responses per second that one of its GPUs adds to any plan."""
        return tuple(
            max((kind.responses_per_s / sum(kind.gpus) for kind in self.kinds if kind.gpus[k]), default=0.0)
            for k in range(len(self.budget.gpus))
        )


def _fillings(counts: Counts, machine: int) -> Iterator[Counts]:
    """GPUs that fill so many machines of each type, all that there are first."""
    return product(*(sorted({count, *range(0, count, machine)}, reverse=True) for count in counts))
