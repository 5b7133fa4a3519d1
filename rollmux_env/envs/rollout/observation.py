"""Observations of a rollout decision: names and values of the features, the same in the environment and for a `Fleet`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.rollout.actions import (
    Open,
    ahead_of,
    dropped,
    held_share,
    open_of,
    places,
    remembered,
    tail_keeps,
    write_mask,
)
from rollmux_env.envs.rollout.types import KEEP, RESIZE, ROWS, SPARE, TAIL
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Names, Observations, columns
from rollmux_env.kernel.rollout_records import KV, MESSAGE, NONE, SEQUENCE, STEP, WAITING, Rollout
from rollmux_env.kernel.rollout_rounds import over_s, reward_ends
from rollmux_env.kernel.rollout_trials import QUANTILES, descending, rest_s
from rollmux_env.kernel.rollouts import weights_s
from rollmux_env.kernel.tables import Floats, Ints, Records

Array = NDArray[np.float32]

JOB_FEATURES = (
    "gpus",
    "size",  # current size of the replicas, log2 of their GPUs over 3
    "configured size",
    "responses a gpu",  # wanted responses over the GPUs
    "group",  # responses to a prompt
    "known",  # whether lengths of earlier rollouts of this kind are remembered
    "median",  # from here to `mean`: quantiles and mean of the remembered lengths, over the cap
    "80%",
    "95%",
    "longest",
    "mean",
    "tail",  # the 80% quantile over the longest remembered length
    "long",  # whether the round runs deferred prompts
    "put off",  # deferred prompts, over those of an iteration
    "fixed",  # share of fixed seconds in a decode step with half of the responses running
    "arithmetic",  # share of arithmetic in the seconds of arithmetic and memory of such a step
)
ROW_FEATURES = (
    "keep",
    "launch spare",
    "rebalance",
    "migrate tail",
    "put off",
    "abort",
    "resize",
    "size",  # size of the replicas after it
    "seconds",  # forecast seconds of the rest after it, over those of keep
    "gain",  # those of keep minus these, over those of keep
    "held",  # share of the GPUs that is held after it
    "held seconds",  # forecast seconds times that share, over those of keep
    "moved",  # share of the open responses that it moves
    "dropped",  # share of the open responses that it aborts
    "dropped tokens",  # their tokens, over those of all open responses
    "rest",  # forecast seconds of the rest after it, over those plus the elapsed seconds
)
STATE_FEATURES = (
    "launching",
    "finished",  # finished responses, over the wanted ones
    "complete",  # complete prompts, over the wanted ones
    "open",  # open responses, over the launched ones
    "waiting",  # share of the open responses
    "cache",  # the fullest cache
    "uneven",  # most responses on a replica minus the mean, over the most
    "longest so far",  # of the open responses, over the cap
    "mean so far",
    "ahead",  # mean forecast of the remaining tokens of the open responses, over the cap
    "longest ahead",
    "tail moved",
    "resized",
    "surplus prompts",  # share of the incomplete prompts
    "elapsed",  # seconds so far, over those plus the forecast rest
    "switch",  # seconds of a switch to another size, over those plus the forecast rest
)
# Further features if rewards take time, after the others of their kind.
JOB_REWARD_FEATURES = (
    "reward",  # seconds of one reward, over those plus the decoding of the longest response with half of the responses running
    "rewards",  # seconds of all wanted rewards on the reward nodes, over those plus the same
)
STATE_REWARD_FEATURES = (
    "rewards waiting",  # finished responses whose reward has not ended, over the wanted ones
    "rewards ahead",  # seconds until the last of these rewards ends, over those plus the forecast rest
)


_OF_JOB, _OF_ROW = columns(JOB_FEATURES + JOB_REWARD_FEATURES), columns(ROW_FEATURES)
_OF_STATE = columns(STATE_FEATURES + STATE_REWARD_FEATURES)
_JOB = len(JOB_FEATURES)


def feature_names(rewards: bool) -> Names:
    """Return the names of the features of the job, of a row and of the rollout."""
    if not rewards:
        return Names(JOB_FEATURES, ROW_FEATURES, STATE_FEATURES)
    return Names(JOB_FEATURES + JOB_REWARD_FEATURES, ROW_FEATURES, STATE_FEATURES + STATE_REWARD_FEATURES)


@compiled
def write_observation(
    job: Records, rollout: Rollout, quantiles: Floats, costs: Floats, kv: Ints, out: Observations, e: int
) -> bool:
    """Write the observation of a decision, including the mask, into row `e`.

    Args:
        job: Record of type `JOB`.
        rollout: The current rollout after `observe`, or the last one before a rollout begins.
        quantiles: Remembered lengths of short and of long rounds, shape (2, QUANTILES).
        costs: Costs of a replica of each of S sizes, shape (S, COSTS).
        kv: Tokens in the cache of a replica of each size, shape (S,).
        out: Observations to write.
        e: Row to write.

    Returns:
        False if a running rollout can only be kept on. Then only the mask is written.
    """
    mask, rows, of_job, state = out.mask[e], out.candidates[e], out.job[e], out.cluster[e]
    if write_mask(job, rollout, kv, mask) == 1 and job.launching == 0:
        return False
    rows[:] = 0
    of_job[:] = 0
    state[:] = 0
    _write_job(job, quantiles[job.long], costs[job.size], of_job)
    if job.launching == 1:
        keep_s = _write_launch(job, quantiles, costs, mask, rows)
        state[_OF_STATE.launching] = 1.0
    else:
        keep_s = _write_rest(job, rollout, quantiles, costs, mask, rows, state)
        state[_OF_STATE.tail_moved] = job.moved
        state[_OF_STATE.elapsed] = job.now_s / max(1e-9, job.now_s + keep_s)
    state[_OF_STATE.resized] = job.resized
    state[_OF_STATE.switch] = job.switch_s / max(1e-9, job.switch_s + keep_s)
    if len(of_job) > _JOB and job.reward_s > 0.0:
        _write_rewards(job, rollout, costs[job.size], keep_s, of_job, state)
    for row in range(ROWS):
        if mask[row] == 1:
            rows[row, min(row, RESIZE)] = 1.0  # the columns of the kinds of rows are in the order of their codes
            rows[row, _OF_ROW.size] = _size_after(job, row) / 3
    return True


@compiled
def _squash(x: float) -> Any:
    return x / (1 + abs(x))


@compiled
def _size_after(job: Records, row: int) -> Any:
    """Return the index of the size that replicas have after a row."""
    return row - RESIZE if row >= RESIZE else job.size


@compiled
def _write_job(job: Records, quantiles: Floats, cost: Floats, out: Array) -> None:
    out[_OF_JOB.gpus] = job.gpus / (job.gpus + 8)
    out[_OF_JOB.size] = job.size / 3
    out[_OF_JOB.configured_size] = job.configured / 3
    out[_OF_JOB.responses_a_gpu] = _squash(job.prompts * job.responses / (16 * job.gpus))
    out[_OF_JOB.group] = _squash(job.responses / 8)
    if remembered(job):
        last, mean = QUANTILES - 1, 0.0
        for j in range(QUANTILES):
            mean += quantiles[j] / QUANTILES
        out[_OF_JOB.known] = 1.0
        out[_OF_JOB.median] = min(1.0, quantiles[last // 2] / job.cap)
        out[_OF_JOB.at_80] = min(1.0, quantiles[int(0.8 * last)] / job.cap)
        out[_OF_JOB.at_95] = min(1.0, quantiles[int(0.95 * last)] / job.cap)
        out[_OF_JOB.longest] = min(1.0, quantiles[last] / job.cap)
        out[_OF_JOB.mean] = min(1.0, mean / job.cap)
        out[_OF_JOB.tail] = quantiles[int(0.8 * last)] / max(1.0, quantiles[last])
    out[_OF_JOB.long] = job.long
    out[_OF_JOB.put_off] = min(1.0, job.queue / job.prompts)
    fixed_s, memory_s, arithmetic_s = _step_s(job, cost)
    out[_OF_JOB.fixed] = fixed_s / max(1e-12, fixed_s + max(memory_s, arithmetic_s))
    out[_OF_JOB.arithmetic] = arithmetic_s / max(1e-12, arithmetic_s + memory_s)


@compiled
def _step_s(job: Records, cost: Floats) -> Any:
    """Return the fixed seconds with messages, those of memory and those of arithmetic in a decode step of half of the responses."""
    batch = max(1.0, job.prompts * job.responses / (2 * job.live))
    memory_s = weights_s(cost, int(batch)) + cost[KV] * batch * (job.prompt_tokens + job.cap / 8)
    return cost[STEP] + cost[MESSAGE] * batch, memory_s, cost[SEQUENCE] * batch


@compiled
def _write_rewards(job: Records, rollout: Rollout, cost: Floats, keep_s: float, of_job: Array, state: Array) -> None:
    """Write the features about rewards."""
    fixed_s, memory_s, arithmetic_s = _step_s(job, cost)
    longest_s = max(1e-9, job.cap * (fixed_s + max(memory_s, arithmetic_s)))
    wanted = job.prompts * job.responses
    all_s = np.ceil(wanted / job.reward_nodes) * job.reward_s
    of_job[_OF_JOB.reward] = job.reward_s / (job.reward_s + longest_s)
    of_job[_OF_JOB.rewards] = all_s / (all_s + longest_s)
    if job.launching == 1:
        return
    waiting, ahead_s = 0, 0.0
    for end_s in reward_ends(over_s(rollout), job.reward_s, job.reward_nodes):
        waiting += end_s > job.now_s
        ahead_s = max(ahead_s, end_s - job.now_s)
    state[_OF_STATE.rewards_waiting] = min(1.0, waiting / wanted)
    state[_OF_STATE.rewards_ahead] = ahead_s / max(1e-9, ahead_s + keep_s)


@compiled
def _write_row(row: Array, rest: float, keep: float, share: float, share_keep: float, spent_s: float) -> None:
    """Write the features about the seconds of the rest after a row and the held share of the GPUs, relative to `keep`."""
    keep = max(keep, 1e-9)
    row[_OF_ROW.seconds] = _squash(rest / keep)
    row[_OF_ROW.gain] = max(-1.0, min(1.0, (keep - rest) / keep))
    row[_OF_ROW.held] = share
    row[_OF_ROW.held_seconds] = _squash(rest * share / (keep * share_keep))
    row[_OF_ROW.rest] = rest / max(1e-9, rest + spent_s)


@compiled
def _write_launch(job: Records, quantiles: Floats, costs: Floats, mask: NDArray[np.int8], rows: Array) -> float:
    """Forecast the next rollout for each size of replicas, and with spare responses. Return the seconds of `keep`."""
    keep_s, wanted, spare = 0.0, job.prompts * job.responses, job.spare_prompts * job.spare_responses
    ahead = ahead_of(job, quantiles, np.zeros(spare, np.int64)) if remembered(job) else np.full(spare, job.cap)
    context, moved, order = np.full(spare, job.prompt_tokens), np.ones(spare, np.int64), descending(ahead[:wanted])
    for row in range(ROWS):
        if mask[row] == 0:
            continue
        n, own = (spare, descending(ahead)) if row == SPARE else (wanted, order)
        size = _size_after(job, row)
        live = job.gpus // (1 << size)
        seconds = rest_s(costs[size], context, ahead[:n], own, np.arange(n) % live, moved, live, wanted)
        seconds += job.switch_s if row >= RESIZE or job.resized == 1 else 0.0
        if row == KEEP:
            keep_s = seconds
        _write_row(rows[row], seconds, keep_s, 1.0, 1.0, 0.0)
    return float(keep_s)


@compiled
def _write_rest(
    job: Records, rollout: Rollout, quantiles: Floats, costs: Floats, mask: NDArray[np.int8], rows: Array, state: Array
) -> float:
    """Forecast the rest of a running rollout after each row. Return the seconds of `keep`."""
    unfinished = open_of(job, rollout, quantiles)
    n, keep_s = unfinished.which.size, 0.0
    counting, total = max(1, job.prompts * job.responses - rollout.order[-1]), max(1, unfinished.sampled.sum())
    for row in range(ROWS):
        if mask[row] == 0:
            continue
        where, moved = places(job, unfinished, row), np.zeros(n, np.int64)
        gone = dropped(job, rollout, row)
        tokens, at = 0, 0
        for r in gone:
            while unfinished.which[at] != r:
                at += 1
            where[at] = NONE
            tokens += unfinished.sampled[at]
        for j in range(n):
            moved[j] = row >= RESIZE or (where[j] != NONE and where[j] != unfinished.replica[j])
        size = _size_after(job, row)
        live = job.gpus // (1 << size)
        seconds = rest_s(costs[size], unfinished.context, unfinished.ahead, unfinished.order, where, moved, live, counting)
        seconds += job.switch_s if row >= RESIZE else 0.0
        if row == KEEP:
            keep_s = seconds
        after = tail_keeps(job) / job.live if row == TAIL else 1.0 if row >= RESIZE else held_share(job)
        rows[row, _OF_ROW.moved] = moved.sum() / max(1, n)
        rows[row, _OF_ROW.dropped], rows[row, _OF_ROW.dropped_tokens] = gone.size / max(1, n), tokens / total
        _write_row(rows[row], seconds, keep_s, after, held_share(job), job.now_s)
    _write_state(job, rollout, unfinished, state)
    return float(keep_s)


@compiled
def _write_state(job: Records, rollout: Rollout, unfinished: Open, out: Array) -> None:
    """Write the features about finished and open responses and the load of the replicas."""
    n, wanted, waiting, incomplete, fullest = unfinished.which.size, job.prompts * job.responses, 0, 0, 0.0
    for r in unfinished.which:
        waiting += rollout.responses[r].state == WAITING
    load = np.zeros(job.live, np.int64)
    for k in unfinished.replica:
        load[k] += 1
    for j in range(job.live):
        own = rollout.replicas[job.first + j]
        fullest = max(fullest, (own.context + own.cached) / own.kv)
    for g in range(job.launched):
        incomplete += rollout.groups[g].finished < rollout.groups[g].needed
    longest, longest_ahead = 0, 0
    for j in range(n):
        longest, longest_ahead = max(longest, unfinished.sampled[j]), max(longest_ahead, unfinished.ahead[j])
    most = load.max()
    out[_OF_STATE.finished] = min(1.0, rollout.order[-1] / wanted)
    out[_OF_STATE.complete] = min(1.0, rollout.counts[0] / job.prompts)
    out[_OF_STATE.open] = n / (job.launched * job.each)
    out[_OF_STATE.waiting] = waiting / max(1, n)
    out[_OF_STATE.cache] = min(1.0, fullest)
    out[_OF_STATE.uneven] = (most - n / job.live) / max(1, most)
    out[_OF_STATE.longest_so_far] = min(1.0, longest / job.cap)
    out[_OF_STATE.mean_so_far] = min(1.0, unfinished.sampled.sum() / max(1, n) / job.cap)
    out[_OF_STATE.ahead] = min(1.0, unfinished.ahead.sum() / max(1, n) / job.cap)
    out[_OF_STATE.longest_ahead] = min(1.0, longest_ahead / job.cap)
    out[_OF_STATE.surplus_prompts] = max(0.0, (incomplete - (job.prompts - rollout.counts[0])) / max(1, incomplete))
