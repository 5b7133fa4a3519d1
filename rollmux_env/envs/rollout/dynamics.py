"""What happens in the rollouts of a job, compiled: `rollmux_env.rollout.job.play` over tables, from one decision to the next."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.rollout.actions import dropped, held_share, remembered, shifted
from rollmux_env.envs.rollout.observation import write_observation
from rollmux_env.envs.rollout.types import ATTEMPTS, CHECKPOINTS, KEEP, LAST, QUANTILES, REBALANCE, RESIZE, SPARE, TAIL, Jobs
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.rollout_records import ABORTED, FINISHED, NEW, NONE, Rollout
from rollmux_env.kernel.rollout_trials import open_responses, over_s, quantiles_of
from rollmux_env.kernel.rollouts import complete_groups, go_on, launch, move, observe, reward_ends, take_off
from rollmux_env.kernel.tables import Floats, Ints, Records

_SHARES = np.array(CHECKPOINTS)


@compiled
def rollout_of(jobs: Jobs, e: int) -> Rollout:
    """The rollout of a job as the kernel has it."""
    return Rollout(jobs.responses[e], jobs.replicas[e], jobs.groups[e], jobs.turns[e], jobs.batch[e], jobs.order[e], jobs.counts[e])


@compiled
def next_checkpoint(wanted: int, finished: int) -> Any:
    """Finished responses at which the next decision is; more than there can be after the last one."""
    best = np.iinfo(np.int64).max
    for share in _SHARES:
        for count in (max(1, int(share * wanted)), max(1, int(np.ceil(share * wanted)))):
            if finished < count < best:
                best = count
    return best


@compiled
def begin(jobs: Jobs, e: int) -> None:
    """A job whose record is as `write_setting` leaves it is before its first rollout."""
    jobs.jobs[e].bounded = jobs.jobs[e].launching = 1
    jobs.attempts[e, :] = 0
    for s in range(len(jobs.quantiles[e])):
        jobs.quantiles[e, s, :] = 0.0
    reset_replicas(jobs, e, 0.0)


@compiled
def reset_replicas(jobs: Jobs, e: int, from_s: float) -> None:
    """All replicas are of the job's present size, and begin to work at a time."""
    job = jobs.jobs[e]
    for k in range(len(jobs.replicas[e])):
        replica = jobs.replicas[e, k]
        for c in range(7):
            replica.cost[c] = jobs.costs[e, job.size, c]
        replica.kv = jobs.kv[e, job.size]
        replica.most = job.most
        replica.clock_s = replica.busy_s = from_s
        replica.next_s = replica.back_s = np.inf
        replica.cached = replica.ahead = replica.steps = replica.context = replica.running = replica.waiting = 0
        replica.head = replica.tail = NONE


@compiled
def _resize(jobs: Jobs, e: int, row: int, from_s: float) -> None:
    """Replicas of the size that a row says take the place of all others, from a time on."""
    job = jobs.jobs[e]
    job.size = row - RESIZE
    job.live = job.gpus // (1 << job.size)
    job.switches += 1
    reset_replicas(jobs, e, from_s)


@compiled
def _take_prompts(jobs: Jobs, e: int, count: int) -> None:
    """Number the prompts of the rollout that begins: those put off where it is long, else new ones as far as there are."""
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
def launch_round(jobs: Jobs, e: int, spare: bool) -> None:
    """Begin a rollout: its responses go to the replicas in turns."""
    job, rollout = jobs.jobs[e], rollout_of(jobs, e)
    job.launched = job.spare_prompts if spare else job.prompts
    job.each = job.spare_responses if spare else job.responses
    _take_prompts(jobs, e, job.launched)
    for g in range(len(rollout.groups)):
        rollout.groups[g].finished = 0
        rollout.groups[g].needed = job.responses
    for r in range(len(rollout.responses)):
        rollout.responses[r].state = ABORTED
    n = job.launched * job.each
    for g in range(job.launched):
        prompt = jobs.numbers[e, g]
        attempt = min(jobs.attempts[e, prompt], ATTEMPTS - 1)
        jobs.attempts[e, prompt] += 1
        for k in range(job.each):
            r = g * job.each + k
            response = rollout.responses[r]
            tokens = jobs.lengths[e, prompt, attempt, k]
            response.prompt = response.reads = job.prompt_tokens
            response.length = response.until = rollout.turns[r, 0] = tokens
            response.group = g
            response.turn = response.cached = response.sampled = response.ends = 0
            response.away_s = 0.0
            response.back_s, response.end_s, response.refill_s = -np.inf, np.inf, -1.0
            response.state = NEW
            response.replica = response.after = response.before = NONE
    rollout.order[-1] = 0
    rollout.counts[:] = 0
    job.now_s = 0.0
    job.launching = job.moved = job.resized = 0
    which = np.arange(n)
    launch(rollout, which, which % job.live, 0.0)


@compiled
def _shift(jobs: Jobs, e: int, row: int) -> None:
    """Carry out a row that moves responses."""
    job, rollout = jobs.jobs[e], rollout_of(jobs, e)
    which, where = shifted(job, rollout, jobs.quantiles[e], row)
    job.migrated += which.size
    if row >= RESIZE:
        take_off(rollout, which, job.now_s, NEW)
        _resize(jobs, e, row, job.now_s + job.switch_s)
    if row == TAIL:
        job.moved = 1
    move(rollout, which, where, job.now_s)


@compiled
def remember(job: Records, quantiles: Floats, lengths: Ints) -> None:
    """Keep the lengths of a rollout in (2, QUANTILES) of those of its kind, smoothed."""
    new, own = quantiles_of(lengths, QUANTILES), quantiles[job.long]
    known = remembered(job)
    for j in range(QUANTILES):
        own[j] = (1 - LAST) * (own[j] if known else new[j]) + LAST * new[j]
    job.known |= 1 << job.long


@compiled
def _finish_round(jobs: Jobs, e: int) -> None:
    """A rollout is over: drop what still runs, put incomplete prompts off, wait for the rewards, remember the lengths."""
    job, rollout = jobs.jobs[e], rollout_of(jobs, e)
    take_off(rollout, open_responses(rollout), job.now_s, ABORTED)
    counts, lengths = np.zeros(job.launched, np.bool_), np.empty(rollout.order[-1], np.int64)
    for group in complete_groups(rollout, job.prompts):
        counts[group] = True
    ends, over = reward_ends(over_s(rollout), job.reward_s, job.reward_nodes), job.now_s
    for j in range(lengths.size):
        r = rollout.order[j]
        lengths[j] = rollout.responses[r].sampled
        if counts[r // job.each]:
            over = max(over, ends[j])
    job.seconds += over - job.now_s  # without nodes
    job.all_s += over - job.now_s
    for r in range(job.launched * job.each):
        if rollout.responses[r].state != FINISHED or not counts[r // job.each]:
            job.lost += rollout.responses[r].sampled
    for g in range(job.launched):
        if not counts[g]:
            jobs.queue[e, job.queue] = jobs.numbers[e, g]
            job.queue += 1
    remember(job, jobs.quantiles[e], lengths)
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
def _go_on(jobs: Jobs, e: int) -> None:
    """Run until the next checkpoint, or the end of the rollout."""
    job, rollout = jobs.jobs[e], rollout_of(jobs, e)
    until = next_checkpoint(job.prompts * job.responses, rollout.order[-1])
    before_s = job.now_s
    job.now_s = go_on(rollout, job.now_s, np.inf, until, job.prompts)
    seconds, held_s = job.now_s - before_s, (job.now_s - before_s) * held_share(job)
    job.seconds += seconds
    job.held_s += held_s
    job.all_s += seconds
    job.all_held_s += held_s
    if rollout.counts[0] >= job.prompts or open_responses(rollout).size == 0:
        _finish_round(jobs, e)
    else:
        observe(rollout, job.now_s)


@compiled
def carry_out(jobs: Jobs, e: int, row: int) -> None:
    """Do what a row says, and go on to the next decision: after a new size before a rollout at once, else at a checkpoint."""
    job = jobs.jobs[e]
    if job.launching == 1:
        if row >= RESIZE:
            _resize(jobs, e, row, job.switch_s)
            job.resized = 1
            return
        launch_round(jobs, e, row == SPARE)
    elif row in (REBALANCE, TAIL) or row >= RESIZE:
        _shift(jobs, e, row)
    elif row != KEEP:
        rollout = rollout_of(jobs, e)
        which = dropped(job, rollout, row)
        job.aborted += which.size
        take_off(rollout, which, job.now_s, ABORTED)
    _go_on(jobs, e)


@compiled
def ask(jobs: Jobs, e: int, out: Observations) -> None:
    """Let a job go on to its next rollout, or a decision inside one with more than one answer, and write what is seen then."""
    job = jobs.jobs[e]
    while job.over == 0:
        count = write_observation(job, rollout_of(jobs, e), jobs.quantiles[e], jobs.costs[e], jobs.kv[e], out, e)
        if count > 1 or job.launching == 1:
            return
        carry_out(jobs, e, KEEP)
    out.job[e, :] = 0
    out.candidates[e, :, :] = 0
    out.cluster[e, :] = 0
    out.mask[e, :] = 0
    out.mask[e, KEEP] = 1


@compiled
def step_all(jobs: Jobs, actions: Ints, out: Observations) -> None:
    """Carry out a decision in every job that is not over, and bring it to its next one. A masked row keeps on instead."""
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
        carry_out(jobs, e, row)
        ask(jobs, e, out)


@compiled
def keep_on(jobs: Jobs, e: int) -> None:
    """Play a job to its end with `plain` rollouts."""
    while jobs.jobs[e].over == 0:
        carry_out(jobs, e, KEEP)
