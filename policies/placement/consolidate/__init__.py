"""`consolidate`: an adaptive policy that moves running jobs where a move pays for itself."""

from policies.placement.consolidate.policy import Consolidate

__all__ = ["Consolidate"]
