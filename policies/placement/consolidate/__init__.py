"""The policy `consolidate`: moves running jobs between groups if the moves pay for themselves."""

from policies.placement.consolidate.policy import Consolidate

__all__ = ["Consolidate"]
