"""How well the run knows its jobs: cold starts that were measured under worse circumstances than the next ones have are replaced by
those that are observed."""

from __future__ import annotations

from runtime.jobs.spec import JobSpec
from runtime.journal.facts import PhaseSlice, Profiled
from runtime.journal.record import RunRecord
from runtime.machine import Pool


class ColdStarts:
    """Which cold starts of jobs are provisional; the same for a run and for whoever reads its journal."""

    def __init__(self) -> None:
        self._facts: dict[str, Profiled] = {}
        self._provisional: dict[str, list[Pool]] = {}

    def profiled(self, fact: Profiled) -> None:
        """A job is known."""
        self._facts[fact.job.id] = fact
        self._provisional[fact.job.id] = [*fact.provisional]

    def observed(self, part: PhaseSlice, spec: JobSpec) -> float | None:
        """Seconds of the cold start that a phase of a job began with, where they replace what is known; None: they do not.

        They have to be of what a profile measures: the job's own number of nodes, and processes that had loaded nothing. A stale
        job has loaded its engines when its first rollout begins.
        """
        provisional = self._provisional.get(part.job_id, [])
        if part.phase == "init" or part.phase not in provisional or not (part.ok and part.cold) or part.profile or part.extra:
            return None
        if (spec.staleness and part.phase == "rollout") or len(part.nodes) != getattr(spec, part.phase).nodes:
            return None
        provisional.remove(part.phase)
        return part.run_s - part.start_s - part.permit_s

    def words(self, job_id: str) -> str:
        """How far what is known of a job may be trusted, for a reason or a line; nothing where it was measured well, or stated."""
        fact = self._facts.get(job_id)
        if fact is None:
            return ""
        words = ["from the cache of profiles"] if fact.cached else []
        if provisional := self._provisional[job_id]:
            words.append(f"the cold start of its {' and '.join(provisional)} is provisional")
        if fact.without_core:
            words.append(f"its {' and '.join(fact.without_core)} had no core for a good part of the time, which is left out")
        return "; ".join(words)


def cold_starts_of(record: RunRecord) -> ColdStarts:
    """Those of a recorded run, as it ended."""
    known, specs = ColdStarts(), {fact.spec.id: fact.spec for fact in record.submitted}
    for fact in record.profiled:
        if fact.job.id in specs and not specs[fact.job.id].is_attached:  # such a job states what it takes
            known.profiled(fact)
    for part in record.phases:
        if part.job_id in specs:
            known.observed(part, specs[part.job_id])
    return known
