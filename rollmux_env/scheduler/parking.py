"""The running jobs that may be parked for a waiting job, as the rules of the queue say (`park=true`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import islice
from math import inf

from rollmux_env.cluster.plan import has_run_enough, may_park
from rollmux_env.cluster.state import State
from rollmux_env.scheduler.ranking import Ranker

_MAX_CANDIDATES = 10  # largest number of running jobs that are tried for a waiting job


class ParkingCandidates:
    """The running jobs that may be parked in a state, in the order in which they are tried.

    The order is the same for every waiting job: the lowest priority first, then the highest key, then the latest arrival. A running
    job may be parked for a waiting one if it has a lower priority, or the same one and a key above `factor` times that of the
    waiting job. So these are the first jobs of the order, and they are fewer for a job further back in the queue.

    Args:
        state: State of the cluster, which may not change while the object is used.
        ranker: Ranker that has ranked the queue in this state.
        factor: Ratio of a running job's key to that of a waiting job of its priority above which it may be parked for that job.
        job_ids: Identifiers of the waiting jobs that may be asked about, at least one, in the order of the queue.
        declined: Pairs of ids of a waiting job and a running one. The policy has no place for the first without the second, so
            the pair is not tried again.
    """

    def __init__(
        self, state: State, ranker: Ranker, factor: float, job_ids: Sequence[str], declined: Collection[tuple[str, str]]
    ) -> None:
        self._state, self._ranker, self._factor, self._job_ids, self._declined = state, ranker, factor, job_ids, declined
        rows, models, arrival_s = state.tables.job_rows, state.tables.models, state.tables.job_records["arrival_s"]
        priority, least = limit = self._limit(job_ids[0])

        def may_be_tried(other: str) -> bool:
            own = models[rows[other]].priority
            return own < priority or (own == priority and ranker.may_exceed(other, -least))

        others = [other for other in state.stays.placed_at_s if may_be_tried(other) and has_run_enough(state, other)]
        if len(job_ids) == 1 and len(others) <= _MAX_CANDIDATES:  # all are tried, so those left out make no room for others
            others = [other for other in others if (job_ids[0], other) not in declined]
        keys = ranker.keys_of_running(state, others)
        order = sorted(
            (models[rows[other]].priority, -keys[other], -float(arrival_s[rows[other]]), -rows[other], other) for other in others
        )
        legal = (one for one in order if one[:2] < limit and may_park(state, one[-1]))
        self._order = [*islice(legal, _MAX_CANDIDATES)]

    def list_candidates(self, job_id: str) -> list[str]:
        """Return the running jobs that are to be tried for a waiting one, in order, without declined pairs."""
        first = self._order[: bisect_left(self._order, self._limit(job_id))]
        return [other for *_, other in first if (job_id, other) not in self._declined]

    def has_candidates(self) -> list[bool]:
        """Return whether there is a running job to try for each of `job_ids`."""
        has_some = [False] * len(self._job_ids)
        for at, job_id in enumerate(self._job_ids):
            if not self._order or self._order[0] >= self._limit(job_id):
                break
            has_some[at] = bool(self.list_candidates(job_id))
        return has_some

    def _limit(self, job_id: str) -> tuple[int, float]:
        """Return a bound of the order: the running jobs before it may be parked for a waiting job."""
        return self._state.job(job_id).priority, -self._factor * self._ranker.get_key(job_id)


def next_park_s(state: State, after_s: float) -> float:
    """Return the first time after `after_s` at which a running job has had its place for `min_run_s`, or infinity."""
    least_s = state.cluster.min_run_s
    ends_s = [since_s + least_s for since_s in state.stays.placed_at_s.values()]
    return min([end_s for end_s in ends_s if end_s > after_s], default=inf)
