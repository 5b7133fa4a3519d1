"""The yardsticks `optimal` and `optimal-work`: the exact reference points, for `bench` and `plan`. They cannot run jobs."""

from policies.placement.optimal.policy import Optimal, OptimalGroup, OptimalPlan

__all__ = ["Optimal", "OptimalGroup", "OptimalPlan"]
