"""The features of a decision: the same numbers from a `Fleet` and in the environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.rollout.actions import ahead_of, dropped, places, remembered, tail_keeps, write_mask
from rollmux_env.envs.rollout.observation import JOB_FEATURES, STATE_FEATURES
from rollmux_env.envs.rollout.rewarding import reward_ends
from rollmux_env.envs.rollout.types import ABORT, KEEP, PUT_OFF, QUANTILES, RESIZE, ROWS, SPARE, TAIL
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.rollout_records import KV, NONE, SEQUENCE, STEP, WAITING, WEIGHTS, Rollout
from rollmux_env.kernel.rollout_trials import open_responses, rest_s
from rollmux_env.kernel.tables import Floats, Ints, Records

Array = NDArray[np.float32]
_JOB, _STATE = len(JOB_FEATURES), len(STATE_FEATURES)  # what is behind these tells of rewards


@compiled
def write_observation(job: Records, rollout: Rollout, quantiles: Floats, costs: Floats, kv: Ints, out: Observations, e: int) -> int:
    """Write the observation of a decision into row `e`, the mask included; returns how many rows may be chosen.

    Args:
        job: a record of `JOB`. rollout: the one in hand, after `observe`, or the last one before one begins.
        quantiles: (2, QUANTILES). costs: (S, 7). kv: (S,).
    """
    mask = out.mask[e]
    count = write_mask(job, rollout, kv, mask)
    rows = out.candidates[e]
    rows[:] = 0
    _write_job(job, quantiles[job.long], costs[job.size], out.job[e])
    if job.launching == 1:
        keep_s = _write_launch(job, quantiles, costs, mask, rows, out.cluster[e])
    else:
        keep_s = _write_rest(job, rollout, quantiles, costs, mask, rows, out.cluster[e])
    if out.job.shape[1] > _JOB:
        _write_rewards(job, rollout, costs[job.size], keep_s, out.job[e, _JOB:], out.cluster[e, _STATE:])
    for row in range(ROWS):
        if mask[row] == 1:
            rows[row, min(row, RESIZE)] = 1.0
            rows[row, 7] = (row - RESIZE if row >= RESIZE else job.size) / 3
    return count


@compiled
def _squash(x: float) -> Any:
    return x / (1 + abs(x))


@compiled
def _write_job(job: Records, quantiles: Floats, cost: Floats, out: Array) -> None:
    wanted = job.prompts * job.responses
    out[0] = job.gpus / (job.gpus + 8)
    out[1] = job.size / 3
    out[2] = job.configured / 3
    out[3] = _squash(wanted / (16 * job.gpus))
    out[4] = _squash(job.responses / 8)
    known = remembered(job)
    out[5] = known
    for j in range(6, 12):
        out[j] = 0.0
    if known:
        last = QUANTILES - 1
        out[6] = min(1.0, quantiles[last // 2] / job.cap)
        out[7] = min(1.0, quantiles[int(0.8 * last)] / job.cap)
        out[8] = min(1.0, quantiles[int(0.95 * last)] / job.cap)
        out[9] = min(1.0, quantiles[last] / job.cap)
        mean = 0.0
        for j in range(QUANTILES):
            mean += quantiles[j] / QUANTILES
        out[10] = min(1.0, mean / job.cap)
        out[11] = quantiles[int(0.8 * last)] / max(1.0, quantiles[last])
    out[12] = job.long
    out[13] = min(1.0, job.queue / job.prompts)
    memory_s, arithmetic_s = _step_s(job, cost)
    out[14] = cost[STEP] / max(1e-12, cost[STEP] + max(memory_s, arithmetic_s))
    out[15] = arithmetic_s / max(1e-12, arithmetic_s + memory_s)


@compiled
def _step_s(job: Records, cost: Floats) -> Any:
    """Seconds of memory and of arithmetic in a decode step with half of the wanted responses running."""
    batch = max(1.0, job.prompts * job.responses / (2 * job.live))
    return cost[WEIGHTS] + cost[KV] * batch * (job.prompt_tokens + job.cap / 8), cost[SEQUENCE] * batch


@compiled
def _write_rewards(job: Records, rollout: Rollout, cost: Floats, keep_s: float, of_job: Array, of_state: Array) -> None:
    """What rewards take, and what of them waits."""
    of_job[:] = 0
    of_state[:] = 0
    if job.reward_s == 0.0:
        return
    memory_s, arithmetic_s = _step_s(job, cost)
    longest_s = max(1e-9, job.cap * (cost[STEP] + max(memory_s, arithmetic_s)))
    wanted = job.prompts * job.responses
    all_s = np.ceil(wanted / job.reward_nodes) * job.reward_s
    of_job[0] = job.reward_s / (job.reward_s + longest_s)
    of_job[1] = all_s / (all_s + longest_s)
    if job.launching == 1:
        return
    waiting, ahead_s = 0, 0.0
    for end_s in reward_ends(job, rollout):
        waiting += end_s > job.now_s
        ahead_s = max(ahead_s, end_s - job.now_s)
    of_state[0] = min(1.0, waiting / wanted)
    of_state[1] = ahead_s / max(1e-9, ahead_s + keep_s)


@compiled
def _write_row(row: Array, rest: float, keep: float, share: float, share_keep: float, spent_s: float) -> None:
    """Columns of the seconds of the rest after a row, and what share of the GPUs it holds, beside those of `keep`."""
    keep = max(keep, 1e-9)
    row[8] = _squash(rest / keep)
    row[9] = max(-1.0, min(1.0, (keep - rest) / keep))
    row[10] = share
    row[11] = _squash(rest * share / (keep * share_keep))
    row[15] = rest / max(1e-9, rest + spent_s)


@compiled
def _write_launch(job: Records, quantiles: Floats, costs: Floats, mask: NDArray[np.int8], rows: Array, out: Array) -> float:
    """Before a rollout: forecast what it takes, with each size of replicas or with spare responses; returns that of `keep`."""
    keep_s = 0.0
    wanted = job.prompts * job.responses
    for row in range(ROWS):
        if mask[row] == 0:
            continue
        n = job.spare_prompts * job.spare_responses if row == SPARE else wanted
        size = row - RESIZE if row >= RESIZE else job.size
        live = job.gpus // (1 << size)
        sampled, where = np.zeros(n, np.int64), np.empty(n, np.int64)
        ahead, known = ahead_of(job, quantiles, sampled), remembered(job)
        context, moved = np.empty(n, np.int64), np.ones(n, np.int64)
        for j in range(n):
            ahead[j] = ahead[j] if known else job.cap
            where[j], context[j] = j % live, job.prompt_tokens
        seconds = rest_s(costs[size], context, ahead, where, moved, live, wanted)
        seconds += job.switch_s if row >= RESIZE or job.resized == 1 else 0.0
        if row == KEEP:
            keep_s = seconds
        _write_row(rows[row], seconds, keep_s, 1.0, 1.0, 0.0)
    out[:] = 0
    out[0] = 1.0
    out[12] = job.resized
    out[15] = job.switch_s / max(1e-9, job.switch_s + keep_s)
    return float(keep_s)


@compiled
def _write_rest(
    job: Records, rollout: Rollout, quantiles: Floats, costs: Floats, mask: NDArray[np.int8], rows: Array, out: Array
) -> float:
    """Inside a rollout: forecast the rest after each row; returns that of `keep`."""
    which = open_responses(rollout)
    n = which.size
    replica, sampled, context = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    waiting, total = 0, 0
    for j in range(n):
        response = rollout.responses[which[j]]
        replica[j], sampled[j] = response.replica - job.first, response.sampled
        context[j] = response.prompt + response.sampled
        waiting += response.state == WAITING
        total += response.sampled
    ahead = ahead_of(job, quantiles, sampled)
    wanted, finished = job.prompts * job.responses, rollout.order[-1]
    counting = max(1, wanted - finished)
    share = tail_keeps(job) / job.live if job.moved == 1 else 1.0
    stay = np.zeros(n, np.int64)
    keep_s = rest_s(costs[job.size], context, ahead, replica, stay, job.live, counting)
    for row in range(ROWS):
        if mask[row] == 0:
            continue
        seconds, after = keep_s, share
        if row in (PUT_OFF, ABORT):
            gone, where = dropped(job, rollout, row), replica.copy()
            tokens, at = 0, 0
            for r in gone:
                while which[at] != r:
                    at += 1
                where[at] = NONE
                tokens += sampled[at]
            seconds = rest_s(costs[job.size], context, ahead, where, stay, job.live, counting)
            rows[row, 13], rows[row, 14] = gone.size / max(1, n), tokens / max(1, total)
        elif row != KEEP:
            where = places(job, rollout, which, quantiles, row)
            moved, count = np.ones(n, np.int64), n
            size = row - RESIZE if row >= RESIZE else job.size
            if row < RESIZE:
                for j in range(n):
                    moved[j] = where[j] != replica[j]
                    count -= where[j] == replica[j]
            seconds = rest_s(costs[size], context, ahead, where, moved, job.gpus // (1 << size), counting)
            seconds += job.switch_s if row >= RESIZE else 0.0
            after = tail_keeps(job) / job.live if row == TAIL else 1.0
            rows[row, 12] = count / max(1, n)
        _write_row(rows[row], seconds, keep_s, after, share, job.now_s)
    load = np.zeros(job.live, np.int64)
    for k in replica:
        load[k] += 1
    fullest, most = 0.0, load.max()
    for j in range(job.live):
        own = rollout.replicas[job.first + j]
        fullest = max(fullest, (own.context + own.cached) / own.kv)
    incomplete = 0
    for g in range(job.launched):
        incomplete += rollout.groups[g].finished < rollout.groups[g].needed
    out[0] = 0.0
    out[1] = min(1.0, finished / wanted)
    out[2] = min(1.0, rollout.counts[0] / job.prompts)
    out[3] = n / (job.launched * job.each)
    out[4] = waiting / max(1, n)
    out[5] = min(1.0, fullest)
    out[6] = (most - n / job.live) / max(1, most)
    longest, longest_ahead, total_ahead = 0, 0, 0
    for j in range(n):
        longest, longest_ahead = max(longest, sampled[j]), max(longest_ahead, ahead[j])
        total_ahead += ahead[j]
    out[7] = min(1.0, longest / job.cap)
    out[8] = min(1.0, total / max(1, n) / job.cap)
    out[9] = min(1.0, total_ahead / max(1, n) / job.cap)
    out[10] = min(1.0, longest_ahead / job.cap)
    out[11] = job.moved
    out[12] = job.resized
    out[13] = max(0.0, (incomplete - (job.prompts - rollout.counts[0])) / max(1, incomplete))
    out[14] = job.now_s / max(1e-9, job.now_s + keep_s)
    out[15] = job.switch_s / max(1e-9, job.switch_s + keep_s)
    return float(keep_s)
