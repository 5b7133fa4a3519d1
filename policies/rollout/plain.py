"""`plain`: all responses start at once, distributed evenly, and the rollout waits for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.moves import Stay
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class Plain:
    """Wait for every response on its first replica."""

    def rounds(self, prompts: int, responses: int) -> Rounds:
        """Rounds that launch what they need."""
        return Rounds(prompts, responses, 1)

    def control(self, setting: Setting) -> Stay:
        """Responses stay where they were launched."""
        return Stay()
