"""Decisions of many jobs: from the answer to one to the next question."""

from __future__ import annotations

from rollmux_env.envs.rollout.dynamics import carry_out, rollout_of
from rollmux_env.envs.rollout.observation import write_observation
from rollmux_env.envs.rollout.types import KEEP, Jobs
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.tables import Ints


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
