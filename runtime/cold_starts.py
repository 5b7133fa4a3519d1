"""Cold starts that a profile measured under worse circumstances than the next ones have: those that are observed replace them."""

from __future__ import annotations

from runtime.facts import PhaseSlice, Pool, Profiled
from runtime.jobs.spec import JobSpec


class ColdStarts:
    """Which cold starts of jobs are provisional; the same for a run and for whoever reads its journal."""

    def __init__(self) -> None:
        self._provisional: dict[str, set[Pool]] = {}

    def profiled(self, fact: Profiled) -> None:
        """A job is known."""
        self._provisional[fact.job.id] = {*fact.provisional}

    def is_provisional(self, job_id: str) -> bool:
        """Whether a cold start of a job still is."""
        return bool(self._provisional.get(job_id))

    def observed(self, part: PhaseSlice, spec: JobSpec) -> float | None:
        """Seconds of the cold start that a phase of a job began with, where they replace what is known; None: they do not.

        They have to be of what a profile measures: the job's own number of nodes, and processes that had loaded nothing. A stale
        job has loaded its engines when its first rollout begins.
        """
        provisional = self._provisional.get(part.job_id, set())
        if part.phase not in provisional or not (part.ok and part.cold) or part.profile or part.extra:
            return None
        if (spec.staleness and part.phase == "rollout") or len(part.nodes) != getattr(spec, part.phase).nodes:
            return None
        provisional.discard(part.phase)
        return part.run_s - part.start_s - part.permit_s


def words_of(fact: Profiled) -> str:
    """How far what is known of a profiled job may be trusted, in words; nothing where it was measured well in this run."""
    words = ["from the cache of profiles"] if fact.cached else []
    if fact.provisional:
        words.append(f"the cold start of its {_and(fact.provisional)} is provisional")
    if fact.without_core:
        words.append(f"its {_and(fact.without_core)} had no core for a good part of the time, which is left out")
    return "; ".join(words)


def _and(phases: tuple[Pool, ...]) -> str:
    return " and ".join(phases)
