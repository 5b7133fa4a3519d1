"""What other programs took of the cores that a run had: how long its processes were ready to run and had none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from runtime.compare.parts import Parts, slices_of
from runtime.record import RunRecord
from runtime.report.figures import PHASES

_MUCH = 0.002  # of an iteration, from which on a change is worth another prediction


def core_waits(
    record: RunRecord, prefix: Mapping[str, int], measured: Mapping[str, Sequence[Parts]]
) -> tuple[dict[str, float] | None, dict[str, dict[str, float]]]:
    """How long warm phases had no core.

    Args:
        prefix: how many iterations of each job are the first ones. measured: parts of all its iterations.

    Returns:
        `before` and `after`: shares of the phases' seconds in the first iterations and in the others; and by job and phase, the
        seconds by which a phase waited longer in the others. None of a run that does not tell, and no seconds where they hardly
        changed.
    """
    if not any(part.core_wait_s for part in record.phases):
        return None, {}
    waited_s, ran_s = [0.0, 0.0], [0.0, 0.0]
    longer_s: dict[str, dict[str, float]] = {job_id: {} for job_id in prefix}
    for job_id, first in prefix.items():
        for phase in PHASES:
            both = _waits_s(record, job_id, phase, first)
            if all(both):
                longer_s[job_id][phase] = fmean(both[1]) - fmean(both[0])
            for k, own in enumerate(both):
                waited_s[k] += sum(own)
        for k, parts in enumerate((measured[job_id][:first], measured[job_id][first:])):
            ran_s[k] += sum(one.rollout + one.training for one in parts)
    is_much = any(
        abs(sum(own.values())) > _MUCH * fmean(sum(parts) for parts in measured[job_id]) for job_id, own in longer_s.items()
    )
    shares = {when: waited_s[k] / ran_s[k] if ran_s[k] else 0.0 for k, when in enumerate(("before", "after"))}
    return shares, longer_s if is_much else {}


def _waits_s(record: RunRecord, job_id: str, phase: str, first: int) -> tuple[list[float], list[float]]:
    """Of each warm phase of the first iterations of a job, and of each of the others."""
    waits: tuple[list[float], list[float]] = ([], [])
    for number, own in slices_of(record, job_id).items():
        waits[number >= first].extend(part.core_wait_s for part in own if part.phase == phase and not part.cold)
    return waits
