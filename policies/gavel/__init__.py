"""The baseline `gavel`: Gavel's linear program at job granularity, the paper's Gavel+. For `bench` only."""

from policies.gavel.policy import Gavel

__all__ = ["Gavel"]
