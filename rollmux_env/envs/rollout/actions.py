"""Possible actions in a job's rollouts at a decision, and the responses that they affect."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.rollout.types import ABORT, KEEP, PUT_OFF, REBALANCE, RESIZE, SIZES, SPARE, TAIL
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.rollout_records import Rollout
from rollmux_env.kernel.rollout_trials import (
    any_open,
    context_of,
    descending,
    forecast,
    gathered,
    open_responses,
    spread,
    surplus_prompts,
    surplus_responses,
)
from rollmux_env.kernel.tables import Floats, Ints, Records


class Open(NamedTuple):
    """The n open responses of a rollout at a decision.

    Attributes:
        which: Numbers of the responses, shape (n,).
        replica: Replica of each, from 0, shape (n,).
        sampled: Tokens sampled so far, shape (n,).
        context: Tokens so far including the prompt, shape (n,).
        ahead: Forecast of the remaining tokens, shape (n,).
        order: Positions in `which`, by falling number of remaining tokens, shape (n,).
    """

    which: Ints
    replica: Ints
    sampled: Ints
    context: Ints
    ahead: Ints
    order: Ints


@compiled
def tail_keeps(job: Records) -> Any:
    """Return the number of replicas that a migrated tail keeps: half, rounded up."""
    return (job.live + 1) // 2


@compiled
def held_share(job: Records) -> Any:
    """Return the share of the job's GPUs that its rollout holds."""
    return tail_keeps(job) / job.live if job.moved == 1 else 1.0


@compiled
def remembered(job: Records) -> bool:
    """Return whether lengths of earlier rollouts of this kind are known."""
    return bool(job.known >> job.long & 1)


@compiled
def ahead_of(job: Records, quantiles: Floats, sampled: Ints) -> Ints:
    """Forecast the remaining tokens of responses by the tokens so far, shape (n,). Without history it is the same number again."""
    if remembered(job):
        return forecast(quantiles[job.long], sampled)
    ahead = np.empty(sampled.size, np.int64)
    for j in range(ahead.size):
        ahead[j] = min(max(sampled[j], 1), max(job.cap - sampled[j], 1))
    return ahead


@compiled
def open_of(job: Records, rollout: Rollout, quantiles: Floats) -> Open:
    """Return the open responses of a rollout. `observe` must be called before."""
    which = open_responses(rollout)
    replica, sampled = np.empty(which.size, np.int64), np.empty(which.size, np.int64)
    for j in range(which.size):
        replica[j], sampled[j] = rollout.responses[which[j]].replica - job.first, rollout.responses[which[j]].sampled
    ahead = ahead_of(job, quantiles, sampled)
    return Open(which, replica, sampled, context_of(rollout, which), ahead, descending(ahead))


@compiled
def places(job: Records, unfinished: Open, row: int) -> Ints:
    """Return the replica, from 0, of each open response after a row that moves some, shape (n,)."""
    if row == TAIL:
        return gathered(unfinished.replica, unfinished.context, job.live, tail_keeps(job))
    if row == REBALANCE:
        return spread(unfinished.order, job.live)
    if row >= RESIZE:
        return spread(unfinished.order, job.gpus // (1 << (row - RESIZE)))
    return unfinished.replica.copy()


@compiled
def shifted(job: Records, rollout: Rollout, quantiles: Floats, row: int) -> tuple[Ints, Ints]:
    """Return the responses that a row moves, and the new replica of each, from 0, shape (n,). `observe` must be called before.

    Responses come in the order in which they queue on their new replicas. Replicas of another size are all new.
    """
    unfinished = open_of(job, rollout, quantiles)
    which, where = unfinished.which, places(job, unfinished, row)
    if row >= RESIZE:
        return which, where
    moving = where != unfinished.replica
    which, where = which[moving], where[moving]
    if row == TAIL:  # longest first, the order in which `gathered` places them
        order = descending(unfinished.context[moving])
        which, where = which[order], where[order]
    return which, where


@compiled
def dropped(job: Records, rollout: Rollout, row: int) -> Ints:
    """Return the responses that a row aborts, shape (n,). `observe` must be called before."""
    if row == PUT_OFF:
        return surplus_prompts(rollout, job.prompts)
    if row == ABORT:
        return surplus_responses(rollout)
    return np.empty(0, np.int64)


@compiled
def write_mask(job: Records, rollout: Rollout, kv: Ints, mask: NDArray[np.int8]) -> int:
    """Write which rows may be chosen, and return their number.

    Before a rollout: launch what is needed, or more than that unless deferred prompts are due, or change the size once. During it:
    always keep on; move if there are several replicas and the tail has not moved; drop what is not needed.
    """
    mask[:] = 0
    mask[KEEP] = 1
    if job.launching == 1:
        enough = job.bounded == 0 or job.iterations * job.prompts - job.fresh >= job.spare_prompts
        mask[SPARE] = job.long == 0 and enough
    else:
        several = job.moved == 0 and job.live > 1 and any_open(rollout)
        mask[REBALANCE] = several
        mask[TAIL] = several
        mask[PUT_OFF] = surplus_prompts(rollout, job.prompts).size > 0
        mask[ABORT] = surplus_responses(rollout).size > 0
    for s in range(len(SIZES)):
        other = s != job.size and kv[s] > 0
        free = job.resized == 0 if job.launching == 1 else job.moved == 0
        mask[RESIZE + s] = other and free
    return int(mask.sum())
