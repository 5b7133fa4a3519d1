"""Measures what taking turns could gain on these nodes: phases of two jobs one at a time, then in pairs, one on each pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from rollmux_env.scheduler.view import GroupView, WaitingPhase
from runtime.journal.facts import Bound
from runtime.machine import Pool

Mode = Literal["alone", "paired"]


class OverlapProbe:
    """A dispatch policy for two members.

    Attributes:
        mode: `alone`: one phase at a time. `paired`: two, of different members on different pools, that begin together.
    """

    def __init__(self) -> None:
        self.mode: Mode = "alone"
        self._second: WaitingPhase | None = None

    def choose(self, group: GroupView) -> WaitingPhase | None:
        """The next phase, or the second of a pair."""
        if self._second is not None:
            second, self._second = self._second, None
            return second
        if group.busy:
            return None
        first = group.waiting[0]
        if self.mode == "alone" or len(group.members) < 2:
            return first
        if len(group.waiting) < len(group.members):
            return None  # until the other one is ready too
        other = next((request for request in group.waiting if not request.nodes & first.nodes), None)
        self._second = other
        return first


class Timings:
    """Seconds of phases, by how they ran."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Mode, str, Pool], list[float]] = defaultdict(list)

    def add(self, mode: Mode, job_id: str, pool: Pool, seconds: float) -> None:
        """A phase has run."""
        self._seconds[mode, job_id, pool].append(seconds)

    def bounds(self, job_ids: Sequence[str]) -> list[Bound]:
        """One for each way of pairing a rollout with the training of the other job."""
        bounds = []
        for a, b in (job_ids, job_ids[::-1]):
            keys: tuple[tuple[str, Pool], tuple[str, Pool]] = ((a, "rollout"), (b, "training"))
            alone, paired = ([self._seconds[mode, *key] for key in keys] for mode in ("alone", "paired"))
            if all((*alone, *paired)):
                names = f"{a} rollout", f"{b} training"
                bounds.append(Bound(names, (fmean(alone[0]), fmean(alone[1])), (fmean(paired[0]), fmean(paired[1]))))
        return bounds
