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
from rollmux_env.rollout.policy import JobPolicy, Round, Stay, Wake, deal, gather
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.migration import AT, SHARE, Migration


@dataclass(frozen=True)
class TailMigration:
    """When a share of the responses is done, the rest goes on at a share of the replicas.

    Args:
        at: share of the wanted responses that are done then. share: of the replicas that the tail keeps.
        careful: in an event replay the tail of a job that is its group's bound stays, which the paper does not say.
    """

    at: float = AT
    share: float = SHARE
    careful: bool = False

    def __post_init__(self) -> None:
        Migration(self.at, self.share)
        if not isinstance(self.careful, bool):
            raise ValueError(f"careful must be true or false, not {self.careful}")

    @property
    def migration(self) -> Migration:
        """For the dispatch policy in an event replay."""
        return Migration(self.at, self.share)

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Responses move once."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), Consolidate(self.migration))


class Consolidate(Stay):
    """Move the tail once."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """See `rollmux_env.rollout.policy.Control`."""
        deal(fleet, np.arange(fleet.size))
        return Wake(finished=max(1, ceil(self._migration.at * round.wanted * round.needed)))

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses to the replicas that have most of them."""
        keep = self._migration.keeps(fleet.size)
        if keep < fleet.size:
            gather(fleet, keep)
        return Wake()
