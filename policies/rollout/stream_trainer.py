"""`stream-trainer` (RollPacker, arXiv 2509.21009): half of the GPUs start to train while the last responses are sampled.

When 20 to 50% of the required responses are done (checked every 5%) and the cache of half of the replicas can hold the
others, the others continue there, prefilled again. The other half accumulates gradients of complete prompts: an advantage
is relative to all responses of its prompt. For jobs that sample and train on the same GPUs. The future length of the
remaining responses is unknown and projected as twice their present context.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import JobPolicy, Round, Stay, Wake, deal, gather
from rollmux_env.rollout.setting import Setting

_CHECKPOINTS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
_GROWS = 2  # times its present context, that the rest is projected to need


@dataclass(frozen=True)
class StreamTrainer:
    """Leave half of the replicas to training as soon as the rest fits into the others."""

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Responses move once, or never."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), Halve(setting))


class Halve(Stay):
    """One job's rollouts."""

    def __init__(self, setting: Setting) -> None:
        self._room = setting.replicas[0].kv_tokens
        self._checkpoints: list[int] = []

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """See `rollmux_env.rollout.policy.Control`."""
        deal(fleet, np.arange(fleet.size))
        wanted = round.wanted * round.needed
        self._checkpoints = sorted({ceil(share * wanted) for share in _CHECKPOINTS}) if fleet.size > 1 else []
        return self._next()

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses, if they fit."""
        keep = fleet.size - fleet.size // 2
        if _GROWS * int(fleet.context()[fleet.open].sum()) <= keep * self._room:
            gather(fleet, keep)
            self._checkpoints = []
        return self._next()

    def _next(self) -> Wake:
        return Wake(finished=self._checkpoints.pop(0)) if self._checkpoints else Wake()
