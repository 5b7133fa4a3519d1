"""`gavel`: Gavel's linear program at job granularity, the paper's baseline Gavel+. For `bench` only."""

from policies.placement.gavel.policy import Gavel

__all__ = ["Gavel"]
