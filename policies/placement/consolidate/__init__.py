"""`consolidate`: an adaptive policy that moves running jobs if the moves pay for themselves."""

from policies.placement.consolidate.policy import Consolidate

__all__ = ["Consolidate"]
