"""The names needed to write a policy, in one place."""

from rollmux_env.cluster.candidates import CandidateTable, candidates, cheapest
from rollmux_env.cluster.events import Arrived, Departed, Event, Placement, Ticked, isolated
from rollmux_env.cluster.group import Group
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, Wait, may_move
from rollmux_env.cluster.state import State

__all__ = [
    "Arrived",
    "CandidateTable",
    "Departed",
    "Event",
    "Group",
    "Move",
    "Place",
    "Placement",
    "Plan",
    "Policy",
    "State",
    "Ticked",
    "Wait",
    "candidates",
    "cheapest",
    "isolated",
    "may_move",
]
