"""`optimal` and `optimal-work`: the exact reference points, for `bench` and `plan`. They cannot run jobs."""

from policies.placement.optimal.plan import OptimalGroup, OptimalPlan
from policies.placement.optimal.policy import Optimal

__all__ = ["Optimal", "OptimalGroup", "OptimalPlan"]
