"""The policy `learned:FILE` of a file for the queue: a network that serves waiting jobs, trained in `RollMux/Queue-v0`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np

from policies.api import ArrivalPolicy, CandidateTable, Job, Place, Placement, Plan, State
from policies.placement.policy_file import read_known
from policies.placement.scorer import score
from rollmux_env.envs.queue.choices import NAMES, Choice, MostChoices, cluster_features, decision_of, queue_features
from rollmux_env.envs.queue.known import rules_for
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats
from rollmux_env.scheduler.order import QueueRules


class LearnedQueue(ArrivalPolicy):
    """Placement policy whose network scores the places of the first waiting jobs, and to serve no job now.

    The job of the place with the highest score is the first in the queue and gets this place, unless serving none has a higher
    score while a job is running. The first jobs are those of the order of the network's track. No job is parked.

    Args:
        path: Path of a policy file for the queue.

    Attributes:
        weights: Weights of the network.

    Raises:
        InputError: The file is missing, damaged, for something else, or reads features that this version does not give.
    """

    def __init__(self, path: str | Path) -> None:
        config, self.weights = read_known(path, "queue", (NAMES,))
        if config.parks:
            raise InputError(f"{path}: was trained to park jobs, which only the environment lets it; train with park=false")
        self._most, self._track = MostChoices(), rules_for(config.known, park=False)
        self.queue_rules = QueueRules(self, "score", backfill=False)

    def place(self, state: State, job: Job) -> Placement | None:
        """Return the place of the job with the highest score, or None if it has none, or it is better to serve no job now."""
        choices, scores = self._scored(state)
        own = [number for number, choice in enumerate(choices) if choice.plan and choice.plan[0].job_id == job.id]
        best = max(own, key=scores.__getitem__, default=None)
        if best is None or (scores[best] < scores[0] and state.stays.placed_at_s):
            return None
        place = choices[best].plan[0]
        assert isinstance(place, Place)
        return place.placement

    def scores(self, state: State, table: CandidateTable) -> Floats:
        """Return the score of each place of a job, for `rollmux explain`, NaN for one that is no choice, shape (R,)."""
        choices, scores = self._scored(state)
        known = {choice.plan: float(own) for choice, own in zip(choices, scores, strict=True)}
        plans: list[Plan] = [(Place(table.job_id, table.placement(row)),) for row in range(len(table))]
        return np.array([known.get(plan, np.nan) for plan in plans])

    def keys(self, state: State, job_ids: Sequence[str]) -> list[float]:
        """Return minus the highest score of each job's places, infinite for a job without any, which reports leave out."""
        choices, scores = self._scored(state)
        keys = dict.fromkeys(job_ids, inf)
        for choice, key in zip(choices[1:], (-scores[1:]).tolist(), strict=True):
            keys[choice.plan[0].job_id] = min(key, keys.get(choice.plan[0].job_id, key))
        return [keys[job_id] for job_id in job_ids]

    def _scored(self, state: State) -> tuple[list[Choice], Floats]:
        """Return the choices in a state, the one to serve no job first, and their scores."""
        choices = decision_of(state, self._track, self, self._most).choices
        rows = np.array([choice.features for choice in choices], dtype=np.float32)
        job, cluster = (np.array(values, dtype=np.float32) for values in (queue_features(state), cluster_features(state)))
        return choices, score(self.weights, job, rows, cluster).astype(float)
