"""`plain`: all responses start at once, distributed evenly, and the rollout waits for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.policy import JobPolicy, Stay
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class Plain:
    """Wait for every response on its first replica."""

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Responses stay where they were launched."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), Stay())
