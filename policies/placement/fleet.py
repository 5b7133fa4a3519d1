"""The policy `fleet`: for nodes that are owned, it places jobs where all of them together make the most progress."""

from __future__ import annotations

from policies.api import ArrivalPolicy, CandidateTable, Move, Placement, State, candidates
from policies.placement.fleet_moves import best_moves
from policies.placement.weighted_progress import Urgency, gains, largest
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats
from rollmux_env.keys.job import Job


class MostProgress(ArrivalPolicy):
    """Placement policy that places a job where the weighted progress V gains most, and never looks at dollars.

    `policies.placement.weighted_progress` defines V. The candidates are those of `rollmux,prune=false`. If none of them gains, the
    job waits. After the queue has been served, running jobs that share their nodes move to better places
    (`policies.placement.fleet_moves`).

    Args:
        moves: Whether to move running jobs.
        alpha: Exponent of the remaining length in the urgency of a job: 0 for throughput, 1 for short jobs first.
        known_stays: Whether the remaining lengths are known.

    Raises:
        InputError: An option has an invalid value.
    """

    def __init__(self, moves: bool = True, alpha: float = 0.5, known_stays: bool = True) -> None:
        if not isinstance(moves, bool):
            raise InputError(f"moves: must be true or false, not {moves!r}")
        self._moves = moves
        self._urgency = Urgency(alpha, known_stays)

    def place(self, state: State, job: Job) -> Placement | None:
        """Return the candidate with the largest gain of V, or None if no candidate gains."""
        table = candidates(state, job.id)
        row = largest(gains(state, table, self._urgency))
        return None if row is None else table.placement(row)

    def rearrange(self, state: State) -> tuple[Move, ...]:
        """Return the moves that gain most, after the queue has been served."""
        return best_moves(state, self._urgency) if self._moves else ()

    def scores(self, state: State, table: CandidateTable) -> Floats:
        """Return the gain of V of each candidate, for `rollmux explain`, shape (R,)."""
        return gains(state, table, self._urgency)
