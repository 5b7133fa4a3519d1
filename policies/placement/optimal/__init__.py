"""`optimal` and `optimal-work`: the exact yardstick. They bench and plan; they cannot run."""

from policies.placement.optimal.plan import OptimalGroup, OptimalPlan
from policies.placement.optimal.policy import Optimal

__all__ = ["Optimal", "OptimalGroup", "OptimalPlan"]
