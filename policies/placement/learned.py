"""`learned`: a network scores the candidate table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from policies.placement.policy_file import PolicyConfig, read_policy
from policies.placement.scorer import random_weights, score
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.features import features
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.complaint import describe
from rollmux_env.errors import InputError
from rollmux_env.kernel.features import CANDIDATE_FEATURES, CLUSTER_FEATURES, JOB_FEATURES

SHIPPED = Path(__file__).parent / "weights"


class Learned:
    """Place an arriving job where a trained network's score is highest, of all feasible candidates.

    Args:
        path: of a policy file; `default` is what comes with this package; `random` the same network before it has learned anything.
        seed: of the weights of `random`.
        moves: move running jobs too, where the network was trained to. `default` has a network of its own for each.

    Attributes:
        config: what the file says of the network. weights: the network.

    Raises:
        InputError: no policy file, a damaged one, or one for other features.
    """

    keeps_slo = True

    def __init__(self, path: str = "default", seed: int = 0, moves: bool = True) -> None:
        if not isinstance(moves, bool):
            raise InputError(f"moves: must be true or false, not {moves!r}")
        shipped = SHIPPED / "admission.safetensors"
        config, weights = read_policy(shipped if path in ("default", "random") else path)
        self._columns = _columns(path, config)
        if path == "random":
            dims = (len(config.job_features), len(config.candidate_features), len(config.cluster_features))
            weights = random_weights(*dims, config.widths, seed)
        self.config = config
        self.weights = weights

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with the feasible candidate of the highest score, or let the job wait."""
        if not isinstance(event, Arrived):
            return ()
        job_id = event.job.id
        table = candidates(state, job_id)
        # The environment's order, which decides between equal scores: a new group first, then the rest of the table.
        rows = np.roll(np.arange(len(table)), 1)
        rows = rows[table.feasible[rows]]
        if rows.size == 0:
            return (Wait(job_id),)
        first_s = state.job(state.job_id(0)).arrival_s
        seen = features(state, table, first_s, self.config.known_stays)
        job, row, cluster = self._columns
        scores = score(self.weights, seen.job[job], seen.candidates[rows][:, row], seen.cluster[cluster])
        return (Place(job_id, table.placement(int(rows[np.argmax(scores)]))),)


def _columns(path: str, config: PolicyConfig) -> tuple[list[int], list[int], list[int]]:
    """Which of the features that are computed here the file's network reads, in its order."""
    known = {"job_features": JOB_FEATURES, "candidate_features": CANDIDATE_FEATURES, "cluster_features": CLUSTER_FEATURES}
    columns = []
    for field, names in known.items():
        for name in getattr(config, field):
            if name not in names:
                raise InputError(f"{path}: {field}: there is no feature {describe(name)} in this version")
        columns.append([names.index(name) for name in getattr(config, field)])
    return columns[0], columns[1], columns[2]
