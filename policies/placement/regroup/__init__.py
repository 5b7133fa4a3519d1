"""`regroup`: Algorithm 1 admits, and once an hour the active jobs are regrouped; every move is paid for."""

from policies.placement.regroup.policy import Regroup

__all__ = ["Regroup"]
