"""The dynamics of a job's rollouts from one decision to the next, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.rollout.actions import dropped, held_share, remembered, shifted
from rollmux_env.envs.rollout.observation import write_observation
from rollmux_env.envs.rollout.types import ATTEMPTS, CHECKPOINTS, KEEP, REBALANCE, RESIZE, SPARE, TAIL, RolloutTables
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.rollout_records import ABORTED, NEW, Rollout
from rollmux_env.kernel.rollout_rounds import begin_round, end_round, over_s, rewarded_s, run_through_instant, write_replica
from rollmux_env.kernel.rollout_trials import remember
from rollmux_env.kernel.rollouts import launch, move, observe, stop_responses
from rollmux_env.kernel.tables import Ints

_SHARES = np.array(CHECKPOINTS)


@compiled
def rollout_of(jobs: RolloutTables, e: int) -> Rollout:
    """Return the rollout of a job in the form of the kernel."""
    return Rollout(jobs.responses[e], jobs.replicas[e], jobs.groups[e], jobs.turns[e], jobs.batch[e], jobs.order[e], jobs.counts[e])


@compiled
def next_checkpoint(wanted: int, finished: int) -> Any:
    """Return the number of finished responses at the next decision, larger than any possible number after the last one."""
    best = np.iinfo(np.int64).max
    for share in _SHARES:
        for count in (max(1, int(share * wanted)), max(1, int(np.ceil(share * wanted)))):
            if finished < count < best:
                best = count
    return best


@compiled
def begin(jobs: RolloutTables, e: int) -> None:
    """Reset a job, whose record is as `write_setting` leaves it, to the time before its first rollout."""
    jobs.jobs[e].bounded = jobs.jobs[e].launching = 1
    jobs.attempts[e, :] = 0
    for s in range(len(jobs.quantiles[e])):
        jobs.quantiles[e, s, :] = 0.0
    reset_replicas(jobs, e, 0.0)


@compiled
def reset_replicas(jobs: RolloutTables, e: int, from_s: float) -> None:
    """Make all replicas idle ones of the job's current size that work from a time on."""
    job = jobs.jobs[e]
    for k in range(len(jobs.replicas[e])):
        write_replica(jobs.replicas[e], k, jobs.costs[e, job.size], jobs.kv[e, job.size], job.most, from_s)


@compiled
def _resize(jobs: RolloutTables, e: int, row: int, from_s: float) -> None:
    """Replace all replicas by ones of the size of a row that work from a time on."""
    job = jobs.jobs[e]
    job.size = row - RESIZE
    job.live = job.gpus // (1 << job.size)
    job.switches += 1
    reset_replicas(jobs, e, from_s)


@compiled
def _take_prompts(jobs: RolloutTables, e: int, count: int) -> None:
    """Choose the prompts of the next rollout: deferred ones for a long round, else new ones as far as there are any."""
    job = jobs.jobs[e]
    left = job.iterations * job.prompts - job.fresh
    from_queue = count if job.long == 1 else max(0, count - left)
    for g in range(count - from_queue):
        jobs.numbers[e, g] = job.fresh + g
    for j in range(from_queue):
        jobs.numbers[e, count - from_queue + j] = jobs.queue[e, j]
    for j in range(job.queue - from_queue):
        jobs.queue[e, j] = jobs.queue[e, j + from_queue]
    job.queue -= from_queue
    job.fresh += count - from_queue


@compiled
def launch_round(jobs: RolloutTables, e: int, rollout: Rollout, spare: bool) -> None:
    """Begin a rollout, with its responses distributed over the replicas in turns."""
    job = jobs.jobs[e]
    job.launched = job.spare_prompts if spare else job.prompts
    job.each = job.spare_responses if spare else job.responses
    _take_prompts(jobs, e, job.launched)
    for g in range(job.launched):
        prompt = jobs.numbers[e, g]
        attempt = min(jobs.attempts[e, prompt], ATTEMPTS - 1)
        jobs.attempts[e, prompt] += 1
        for k in range(job.each):
            rollout.turns[g * job.each + k, 0] = jobs.lengths[e, prompt, attempt, k]
    which = np.arange(job.launched * job.each)
    begin_round(rollout, np.full(which.size, job.prompt_tokens), job.each, job.responses, 0.0)
    job.now_s = 0.0
    job.launching = job.moved = job.resized = 0
    launch(rollout, which, which % job.live, 0.0)


@compiled
def _shift(jobs: RolloutTables, e: int, rollout: Rollout, row: int) -> None:
    """Carry out a row that moves responses."""
    job = jobs.jobs[e]
    which, where = shifted(job, rollout, jobs.quantiles[e], row)
    job.migrated += which.size
    if row >= RESIZE:
        stop_responses(rollout, which, job.now_s, NEW)
        _resize(jobs, e, row, job.now_s + job.switch_s)
    if row == TAIL:
        job.moved = 1
    move(rollout, which, where, job.now_s)


@compiled
def _finish_round(jobs: RolloutTables, e: int, rollout: Rollout) -> None:
    """End a rollout: defer incomplete prompts, wait for the rewards, remember the lengths."""
    job, finished = jobs.jobs[e], rollout.order[: rollout.order[-1]]
    complete, counts = end_round(rollout, job.prompts, job.now_s)
    wait_s = rewarded_s(job.now_s, over_s(rollout), counts[finished], job.reward_s, job.reward_nodes) - job.now_s
    job.seconds += wait_s  # rewards hold no nodes
    job.all_s += wait_s
    for r in range(job.launched * job.each):
        if not counts[r]:
            job.lost += rollout.responses[r].sampled
    put_off = np.ones(job.launched, np.bool_)
    put_off[complete] = False
    for g in range(job.launched):
        if put_off[g]:
            jobs.queue[e, job.queue] = jobs.numbers[e, g]
            job.queue += 1
    lengths = np.empty(finished.size, np.int64)
    for j in range(lengths.size):
        lengths[j] = rollout.responses[finished[j]].sampled
    remember(jobs.quantiles[e, job.long], lengths, remembered(job))
    job.known |= 1 << job.long
    job.preempted += rollout.counts[1]
    job.iteration += 1
    job.moved = job.resized = 0
    job.launching = 1
    job.now_s = 0.0
    job.long = 1 if job.queue >= job.prompts else 0
    reset_replicas(jobs, e, 0.0)
    if job.iteration == job.iterations:
        job.over = 1


@compiled
def _run_to_checkpoint(jobs: RolloutTables, e: int, rollout: Rollout) -> None:
    """Run a rollout to its next checkpoint, or to its end."""
    job, before_s = jobs.jobs[e], jobs.jobs[e].now_s
    until = next_checkpoint(job.prompts * job.responses, rollout.order[-1])
    job.now_s, over = run_through_instant(rollout, before_s, np.inf, until, job.prompts)
    seconds, held_s = job.now_s - before_s, (job.now_s - before_s) * held_share(job)
    job.seconds += seconds
    job.held_s += held_s
    job.all_s += seconds
    job.all_held_s += held_s
    if over:
        _finish_round(jobs, e, rollout)
    else:
        observe(rollout, job.now_s)


@compiled
def carry_out(jobs: RolloutTables, e: int, rollout: Rollout, row: int) -> None:
    """Carry out a row, and run to the next decision: at once after a new size before a rollout, else at a checkpoint."""
    job = jobs.jobs[e]
    if job.launching == 1:
        if row >= RESIZE:
            _resize(jobs, e, row, job.switch_s)
            job.resized = 1
            return
        launch_round(jobs, e, rollout, row == SPARE)
    elif row in (REBALANCE, TAIL) or row >= RESIZE:
        _shift(jobs, e, rollout, row)
    elif row != KEEP:
        which = dropped(job, rollout, row)
        job.aborted += which.size
        stop_responses(rollout, which, job.now_s, ABORTED)
    _run_to_checkpoint(jobs, e, rollout)


@compiled
def ask(jobs: RolloutTables, e: int, out: Observations) -> None:
    """Run a job to its next rollout, or to a decision with more than one choice inside one, and write the observation."""
    job, rollout = jobs.jobs[e], rollout_of(jobs, e)
    while job.over == 0:
        if write_observation(job, rollout, jobs.quantiles[e], jobs.costs[e], jobs.kv[e], out, e):
            return
        carry_out(jobs, e, rollout, KEEP)
    out.job[e, :] = 0
    out.candidates[e, :, :] = 0
    out.cluster[e, :] = 0
    out.mask[e, :] = 0
    out.mask[e, KEEP] = 1


@compiled
def step_all(jobs: RolloutTables, actions: Ints, out: Observations) -> None:
    """Carry out a decision in every job that is not over, and run it to its next one. A masked row is replaced by keeping on."""
    for e in range(len(jobs.jobs)):
        job = jobs.jobs[e]
        job.seconds = 0.0
        job.held_s = 0.0
        job.invalid = 0
        if job.over == 1:
            continue
        row = actions[e]
        if row < 0 or row >= len(out.mask[e]) or out.mask[e, row] == 0:
            job.invalid = 1
            row = KEEP
        job.decisions += 1
        carry_out(jobs, e, rollout_of(jobs, e), row)
        ask(jobs, e, out)


@compiled
def keep_on(jobs: RolloutTables, e: int) -> None:
    """Play a job to its end with `plain` rollouts."""
    rollout = rollout_of(jobs, e)
    while jobs.jobs[e].over == 0:
        carry_out(jobs, e, rollout, KEEP)
