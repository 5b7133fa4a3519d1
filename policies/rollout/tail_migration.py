"""`tail-migration` (RollMux, arXiv 2512.11306, section 4): the last responses move to a few replicas and free the others.

Another job uses the free replicas. The rollout itself gains nothing and loses a little. In an event replay the dispatch
policy moves a tail when another rollout waits for its nodes. In this module, inside a single rollout, it moves as soon
as it may.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.moves import Stay, deal, gather
from rollmux_env.rollout.policy import Round, Wake
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class TailMigration:
    """When a share of the responses is done, the rest goes on at a share of the replicas.

    Args:
        at: share of the wanted responses that are done then. share: of the replicas that the tail keeps, at least one. The paper
            says a few; with half of them the pairs of its evaluation gain most (docs/reference/rollout_policies.md).
        careful: in an event replay the tail of a job that is its group's bound stays, which the paper does not say.
    """

    at: float = 0.8
    share: float = 0.5
    careful: bool = False

    def __post_init__(self) -> None:
        for name in ("at", "share"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise ValueError(f"{name} must be a number between 0 and 1, not {value}")
        if not isinstance(self.careful, bool):
            raise ValueError(f"careful must be true or false, not {self.careful}")

    @property
    def migrates_at(self) -> float:
        """The threshold for the dispatch policy in an event replay."""
        return self.at

    def rounds(self, prompts: int, responses: int) -> Rounds:
        """Rounds that launch what they need."""
        return Rounds(prompts, responses, 1)

    def control(self, setting: Setting) -> Consolidate:
        """Responses move once."""
        return Consolidate(self.at, self.share)


class Consolidate(Stay):
    """Move the tail once."""

    def __init__(self, at: float, share: float) -> None:
        self._at, self._share = at, share

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """See `rollmux_env.rollout.policy.Control`."""
        deal(fleet, np.arange(fleet.size))
        return Wake(finished=max(1, ceil(self._at * round.wanted * round.needed)))

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses to the replicas that have most of them."""
        keep = max(1, round(self._share * fleet.size))
        if keep < fleet.size:
            gather(fleet, keep)
        return Wake()
