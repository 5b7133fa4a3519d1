"""Names of phases, and permits to run them."""

from __future__ import annotations

from typing import Literal

PhaseName = Literal["rollout", "training"]
HoldName = Literal["rollout", "training", "sync"]
Permit = tuple[str, HoldName]  # whose phase or sync may run, now, on all its nodes
