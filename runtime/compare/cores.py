"""What other programs took of the cores that a run had: how long its processes were ready to run and had none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runtime.compare.parts import slices_of
from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord

_MUCH = 0.01  # of the phases' seconds, from which on it is worth another prediction


class CoreWaits(NamedTuple):
    """How long warm phases had no core.

    Attributes:
        before, after: shares of these phases' seconds, in the first iterations and in the others.
    """

    before: float
    after: float

    @property
    def is_much(self) -> bool:
        """Whether phases took noticeably longer for it."""
        return max(self.before, self.after) > _MUCH


def core_waits(record: RunRecord, prefix: Mapping[str, int]) -> CoreWaits | None:
    """How long warm phases had no core; None of a run that does not tell.

    Args:
        prefix: how many iterations of each job are the first ones.
    """
    if not any(part.core_wait_s for part in record.phases):
        return None
    early: list[PhaseSlice] = []
    late: list[PhaseSlice] = []
    for job_id, first in prefix.items():
        for number, own in slices_of(record, job_id).items():
            (late if number >= first else early).extend(part for part in own if not part.cold and part.phase != "init")
    return CoreWaits(_share(early), _share(late))


def without_core_s(part: PhaseSlice) -> float:
    """Seconds of a phase in which it had no core; nothing of a cold one, whose processes are new."""
    return 0.0 if part.cold else min(part.core_wait_s, part.end_s - part.start_s)


def _share(parts: Iterable[PhaseSlice]) -> float:
    waited_s, total_s = 0.0, 0.0
    for part in parts:
        waited_s += without_core_s(part)
        total_s += part.end_s - part.start_s
    return waited_s / total_s if total_s else 0.0
