"""`plain`: everything is launched at once, dealt out evenly, and waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.rollout.rounds import Rounds
from rollmux_env.kernel.tables import Ints
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Round, Wake
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class Plain:
    """Wait for every response, where it was launched."""

    def rounds(self, prompts: int, responses: int) -> Rounds:
        """Rounds that launch what they need."""
        return Rounds(prompts, responses, 1)

    def control(self, setting: Setting) -> Stay:
        """Responses stay where they were launched."""
        return Stay()


class Stay:
    """Deal the responses out in turns and leave them there."""

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """See `rollmux_env.rollout.policy.Control`."""
        deal(fleet, np.arange(fleet.size))
        return Wake()

    def act(self, fleet: Fleet) -> Wake:
        """Nothing."""
        return Wake()

    def end(self, fleet: Fleet) -> None:
        """Nothing."""


def deal(fleet: Fleet, replicas: Ints) -> None:
    """Launch every response, at these replicas in turns."""
    responses = np.arange(fleet.state.size)
    fleet.launch(responses, replicas[responses % replicas.size])
