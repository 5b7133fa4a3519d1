"""The table that allocators search: all training plans and kinds of replicas of a budget, and rollout plans computed on demand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from math import inf

from policies.allocation.plans import ReplicaKind, RolloutPlan, TimedPlan, replica_kinds, rollout_plan, training_plans
from rollmux_env.allocation.allocation import Allocation, Counts, GpuBudget
from rollmux_env.errors import InputError
from rollmux_env.timing.work import IterationWork


class PlanTable:
    """Plans that a budget can hold.

    Args:
        work: Work of one iteration of the job.
        budget: GPUs to divide between training and rollouts.

    Raises:
        InputError: The budget holds no training plan, no replica, or no training plan with a replica beside it.
    """

    def __init__(self, work: IterationWork, budget: GpuBudget) -> None:
        self.work = work
        self.budget = budget
        self._rollouts: dict[Counts, RolloutPlan | None] = {}
        names = ", ".join(f"{count} x {name}" for name, count in budget.gpus.items())
        if not self.plans:
            raise InputError(f"budget: {names} cannot hold a training of this model")
        if not self.kinds:
            raise InputError(f"budget: {names} cannot hold a copy of this model for rollouts")
        if all(self.rollout(counts) is None for plan in self.plans for counts in self._sides(plan)):
            raise InputError(f"budget: {names} cannot hold a training of this model and a copy for rollouts beside it")

    @cached_property
    def plans(self) -> tuple[TimedPlan, ...]:
        """All useful training plans, fastest first."""
        plans = training_plans(self.work, self.budget)
        return tuple(plan for plan in plans if _types(plan.gpus) == 1) if self.budget.one_type else plans

    @cached_property
    def kinds(self) -> tuple[ReplicaKind, ...]:
        """All useful kinds of replicas, smallest first, then by falling throughput."""
        return replica_kinds(self.work, self.budget)

    def rollout(self, counts: Counts) -> RolloutPlan | None:
        """Return the best rollout plan on `counts` GPUs of each type, or None if not even one replica fits."""
        if counts not in self._rollouts:
            self._rollouts[counts] = rollout_plan(self.kinds, counts, self.work.in_flight)
        return self._rollouts[counts]

    def complete(self, timed: TimedPlan, limit_s: float = inf) -> Allocation | None:
        """Return the allocation with the shortest iteration that has this training plan.

        The update of the weights depends on the number of machines of each type that sample, and on nothing else in the rollout
        plan. For each number of machines it is therefore enough to look at the rollout plan with the largest throughput.

        Args:
            timed: Training plan of the allocation.
            limit_s: Only iterations shorter than this count, in seconds.

        Returns:
            The allocation, or None if no replica fits beside the training or no iteration is shorter than the limit.
        """
        best: Allocation | None = None
        for counts in self._sides(timed):
            if self.least_s(timed, counts) >= limit_s:
                continue
            rollout = self.rollout(counts)
            if rollout is not None:
                allocation = Allocation(self.work, self.budget, timed.plan, rollout.replicas)
                if allocation.iteration_s < limit_s:
                    best, limit_s = allocation, allocation.iteration_s
        return best

    def _sides(self, timed: TimedPlan) -> Iterator[Counts]:
        """Yield the GPUs of each type that may sample beside a training plan."""
        fillings = _fillings(self.budget.beside(timed.gpus), self.budget.machine)
        return (counts for counts in fillings if _types(counts) == 1 or not self.budget.one_type)

    def least_s(self, timed: TimedPlan, counts: Counts | None = None) -> float:
        """Return a lower bound in seconds on an iteration with this training plan.

        Args:
            timed: Training plan of the allocation.
            counts: GPUs of each type that sample, or None for all that the training plan leaves.
        """
        beside = self.budget.beside(timed.gpus) if counts is None else counts
        most = sum(count * each for count, each in zip(beside, self._speeds, strict=True))
        if not most:
            return inf
        return self.work.iteration_s(self.work.responses / most + self.budget.rewards_s(self.work), timed.seconds)

    @cached_property
    def _speeds(self) -> tuple[float, ...]:
        """Upper bound on the responses per second that one GPU of each type adds to any rollout plan."""
        return tuple(
            max((kind.responses_per_s / sum(kind.gpus) for kind in self.kinds if kind.gpus[k]), default=0.0)
            for k in range(len(self.budget.gpus))
        )


def _types(counts: Counts) -> int:
    """Return the number of GPU types of which there is at least one."""
    return sum(count > 0 for count in counts)


def _fillings(counts: Counts, machine: int) -> Iterator[Counts]:
    """Yield GPU counts made of whole machines of each type, plus the full count, the largest first."""
    return product(*(sorted({count, *range(0, count, machine)}, reverse=True) for count in counts))
