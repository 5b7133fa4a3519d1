"""What a job may do again after something has died: the iterations behind its newest checkpoint, which is written beside them."""

from __future__ import annotations

from runtime.journal.record import RunRecord


def repeats_only_what_was_not_saved(record: RunRecord, job_id: str, died_s: float) -> bool:
    """Whether a job has repeated nothing that a checkpoint held when something died.

    Args:
        died_s: when the journal says that it did.
    """
    saved = [fact.iterations for fact in record.checkpointed if fact.job_id == job_id and fact.at_s <= died_s]
    repeated = [done.number for done in record.repeated if done.job_id == job_id]
    return all(number >= max(saved, default=0) for number in repeated)
