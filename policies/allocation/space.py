"""What allocators search: the training plans and replicas of a budget, each made once, and the rollout plans asked for so far."""

from __future__ import annotations

from functools import cached_property

from policies.allocation.rollout import Kind, RolloutPlan, replica_kinds, rollout_plan
from policies.allocation.training import Timed, fastest, training_plans
from rollmux_env.errors import InputError
from rollmux_env.timing.allocation import Allocation, Budget, Counts
from rollmux_env.timing.work import Work


class Space:
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
        given = ", ".join(f"{count} x {name}" for name, count in budget.gpus.items())
        if not self.plans:
            raise InputError(f"budget: {given} cannot hold a training of this model")
        if not self.kinds:
            raise InputError(f"budget: {given} cannot hold a copy of this model for rollouts")
        if all(self.rollout(budget.beside(plan.gpus)) is None for plan in self.plans):
            raise InputError(f"budget: {given} cannot hold a training of this model and a copy for rollouts beside it")

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

    def divide(self, counts: Counts) -> Allocation | None:
        """The best plans with so many GPUs of each type for the training, and for rollouts what its plan leaves.

        Returns:
            None where one of the sides can hold nothing.
        """
        timed = fastest(self.plans, counts)
        rollout = self.rollout(self.budget.beside(timed.gpus)) if timed is not None else None
        if timed is None or rollout is None:
            return None
        return self.allocation(timed, rollout)

    def allocation(self, timed: Timed, rollout: RolloutPlan) -> Allocation:
        """Two plans together."""
        return Allocation(self.work, self.budget, timed.plan, rollout.replicas)
