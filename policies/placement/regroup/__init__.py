"""`regroup`: admits with Algorithm 1 and regroups the active jobs every hour. Every move is paid for."""

from policies.placement.regroup.policy import Regroup

__all__ = ["Regroup"]
