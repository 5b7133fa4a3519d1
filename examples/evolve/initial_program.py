"""The program that a search begins with: the cheapest place that keeps every SLO, as the paper's planner without pruning."""

from policies.api import ArrivalPolicy, CandidateTable, Job, Placement, State, candidates


# EVOLVE-BLOCK-START
def score(state: State, job: Job, table: CandidateTable, row: int) -> float:
    """How good a place is; the best one is taken."""
    return -float(table.usd_per_hour[row])


# EVOLVE-BLOCK-END


class Evolved(ArrivalPolicy):
    """Takes the best place by `score` of those that keep every SLO."""

    def place(self, state: State, job: Job) -> Placement | None:
        """The best place, or None where there is none."""
        table = candidates(state, job.id)
        rows = [row for row in range(len(table)) if table.feasible[row]]
        return table.placement(max(rows, key=lambda row: score(state, job, table, row))) if rows else None
