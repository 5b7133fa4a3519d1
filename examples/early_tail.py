"""A rollout policy example: once half of the responses are done, the others continue at half of the replicas."""

from dataclasses import dataclass

import numpy as np

from policies.api import Fleet, JobPolicy, Round, Rounds, Setting, StaticControl, Wake, deal, gather


@dataclass(frozen=True)
class EarlyTail:
    """Launch what is needed, in turns, and gather the rest once, when the share `at` of the responses is done."""

    at: float = 0.5

    def begin_job(self, setting: Setting) -> JobPolicy:
        return JobPolicy(Rounds(setting.prompts, setting.responses, eta=1), GatherOnce(self.at))


class GatherOnce(StaticControl):
    def __init__(self, at: float) -> None:
        self.at = at

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        deal(fleet, np.arange(fleet.size))
        return Wake(finished=max(1, int(self.at * round.wanted * round.needed)))

    def act(self, fleet: Fleet) -> Wake:
        gather(fleet, keep=max(1, fleet.size // 2))
        return Wake()
