"""`gavel`: Gavel's linear program at job granularity, as the RollMux paper's baseline Gavel+. It benches; it cannot run."""

from policies.placement.gavel.policy import Gavel

__all__ = ["Gavel"]
