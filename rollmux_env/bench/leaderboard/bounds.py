"""Yardsticks of the leaderboard: the dollars per work-hour at which a stream scores 100."""

from __future__ import annotations

from math import ceil

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from rollmux_env.envs.dispatch.types import MIGRATION, SimulatedGroup
from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import Durations
from rollmux_env.rollout.setting import Setting, setting_of
from rollmux_env.scenario import Scenario
from rollmux_env.timing.jobs import training_of
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.tail import TailModel
from rollmux_env.timing.training import MiniBatch

_QUANTILES = 4096  # number of quantiles averaged for a mean


def without_tails(scenario: Scenario) -> Scenario:
    """Return the scenario with each rollout as short as if all replicas were full until its end.

    The limits of SLOs in seconds are kept. It is a lower bound for policies that sample all responses to their ends. A policy that
    drops long responses permanently may need less.
    """
    return Scenario(version=1, cluster=scenario.cluster, jobs=tuple(map(_without_tails, scenario.jobs)))


def _without_tails(job: Job) -> Job:
    setting = setting_of(job)
    if setting is None or job.timing is None:
        return job
    shares = (np.arange(setting.prompts * setting.responses) + 0.5) / (setting.prompts * setting.responses)
    trained = MiniBatch.of(setting.prompt_tokens + setting.lengths.quantile(shares))
    phases = {
        "rollout": job.rollout.model_copy(update={"worst_case_s": full_replicas_s(setting)}),
        "training": job.training.model_copy(update={"worst_case_s": training_of(job.timing).seconds(trained)}),
    }
    ideal = job.model_copy(update={**phases, "model": None, "timing": None, "lengths": None})
    return ideal.model_copy(update={"slo": job.slo * job.solo_s / ideal.solo_s})


def full_replicas_s(setting: Setting) -> float:
    """Return the seconds of a rollout whose replicas are as full as possible until the end, at the best size of replicas.

    Each token in the KV cache is read once for every later token of its response. The weights are read once per step, and a step
    has at most the replica's share of the responses. Prefill takes no time.
    """
    tokens = setting.lengths.quantile((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    sampled, squared = float(np.mean(tokens)), float(np.mean(np.square(tokens)))
    read = setting.prompt_tokens * sampled + squared / 2
    return min(
        _replica_s(timing, setting, sampled, read, setting.gpus // size) for size, timing in setting.timings if timing.kv_tokens > 0
    )


def _replica_s(timing: ReplicaTiming, setting: Setting, sampled: float, read: float, replicas: int) -> float:
    responses = setting.prompts * setting.responses
    batch = max(1, min(setting.most, timing.kv_tokens // (setting.prompt_tokens + 1), ceil(responses / replicas)))
    tokens = responses / replicas * sampled
    memory_s = tokens / batch * timing.weights_s + responses / replicas * read * timing.kv_s_per_token
    return tokens * (timing.step_s / batch + timing.message_s) + max(memory_s, tokens * timing.sequence_s)


def group_usd_per_work_hour(group: SimulatedGroup) -> float:
    """Return a lower bound for the dollars per work-hour of a group under any order of its phases.

    It is the optimum of a linear program over the sampled durations: the part of each phase that is done until the horizon, in the
    order of its job. A node runs one phase at a time, but tails hold no node, and no phase begins with a switch. A tail begins at
    the threshold of the environment: the bound does not hold for policies that migrate tails earlier.
    """
    phases = _Phases(group)
    solved = linprog(-phases.work_s, A_ub=phases.uses, b_ub=phases.limits, bounds=(0, 1), method="highs")
    return group.usd_per_hour * group.horizon_s / float(-solved.fun)


class _Phases:
    """The linear program, with a column for the rollout and one for the training of each iteration of each job.

    Rows limit the time of each node and of each job, and keep the phases of a job in order.
    """

    def __init__(self, group: SimulatedGroup) -> None:
        self._cells: list[tuple[int, int, float]] = []
        work_s: list[float] = []
        shared = 1 + group.rollout_nodes  # number of rows for nodes; all training nodes share one
        limits = [group.horizon_s] * shared
        for job, pins in zip(group.jobs, group.pins, strict=True):
            training_s = job.training_s(group.training_nodes)
            own, done_s = len(limits), 0.0
            limits.append(group.horizon_s + job.sync_s)
            durations = Durations(job, group.seed, TailModel(), MIGRATION)
            iteration = 0
            while done_s < group.horizon_s:
                while len(durations.rollout) <= iteration:
                    durations.extend()
                seconds = job.rollout.worst_case_s * durations.rollout[iteration], training_s * durations.training[iteration]
                for trains, phase_s in enumerate(seconds):
                    column = len(work_s)
                    work_s.append(training_s + job.sync_s if trains else job.rollout.worst_case_s)
                    held_s = phase_s if trains else phase_s * durations.threshold[iteration]
                    self._cells += [(node, column, held_s) for node in ((shared - 1,) if trains else pins)]
                    self._cells.append((own, column, phase_s + job.sync_s * trains))
                    if iteration or trains:  # a phase begins after the previous one
                        self._cells += [(len(limits), column, 1.0), (len(limits), column - 1, -1.0)]
                        limits.append(0.0)
                done_s, iteration = done_s + sum(seconds) + job.sync_s, iteration + 1
        rows, columns, values = zip(*self._cells, strict=True)
        self.work_s, self.limits = np.array(work_s), np.array(limits)
        self.uses = coo_array((values, (rows, columns)), shape=(len(limits), len(work_s))).tocsr()
