"""The rollout environment: the rollouts of many jobs side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.envs.base import BaseVectorEnv, Info, StepResult
from rollmux_env.envs.rollout.dynamics import begin
from rollmux_env.envs.rollout.generator import Generator, RandomJobs
from rollmux_env.envs.rollout.observation import observation_space, observation_table
from rollmux_env.envs.rollout.reward import Cost, Interval, Reward
from rollmux_env.envs.rollout.step import ask, keep_on, step_all
from rollmux_env.envs.rollout.types import Case, Jobs, job_table, write_setting
from rollmux_env.envs.rollout.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.rollout.setting import Setting


class RolloutVectorEnv(BaseVectorEnv):
    """`RollMux/Rollout-v0`, natively vectorised. `RolloutEnv` describes the environment; it is one of these with one job.

    What differs from it: everything has a leading axis of `num_envs`, and autoreset is as `BaseVectorEnv` says.

    Args:
        num_envs: jobs side by side.
        autoreset: start a finished job anew in the same step.
        others: see `RolloutEnv`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | None = None,
        reward: Reward | None = None,
        render_mode: str | None = None,
        autoreset: bool = True,
    ) -> None:
        if num_envs < 1:
            raise InputError(f"num_envs: must be at least 1, not {num_envs}")
        self.generator: Generator = RandomJobs() if generator is None else generator
        self.reward: Reward = Cost() if reward is None else reward
        rewards = self.generator.rewards
        super().__init__(num_envs, observation_table(num_envs, rewards), observation_space(rewards), render_mode, autoreset)
        self._jobs = job_table(num_envs, *self.generator.launched, self.generator.gpus, self.generator.prompts)

    @property
    def jobs(self) -> Jobs:
        """What is going on in each job: tables with a row per environment, to read and not to change.

        `Jobs` in `rollmux_env/envs/rollout/types.py` describes them. The rows are overwritten by the next `step`.
        """
        return self._jobs

    def setting(self, e: int) -> Setting:
        """What is known of job `e` before its first rollout."""
        return self.generator.case(int(self._seeds[e])).setting

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Carry out one decision in every job and bring it to the next."""
        step_all(self._jobs, np.asarray(actions, dtype=np.int64), self._observations)
        jobs = self._jobs.jobs
        interval = Interval(jobs["seconds"], jobs["held_s"], jobs["plain_s"], jobs["plain_held_s"], jobs["invalid"])
        rewards = np.asarray(self.reward(interval), dtype=np.float64)
        return self._finish_step(rewards, jobs["over"] == 1, {"invalid_action": jobs["invalid"] == 1})

    def render(self) -> Any:
        """One frame a job: an (H, W, 3) array (`rgb_array`) or a text (`ansi`)."""
        if self.render_mode is None:
            raise InputError("render: the environment was made without a render_mode")
        draw = text if self.render_mode == "ansi" else picture
        return tuple(draw(self._jobs, e) for e in range(self.num_envs))

    def _start(self, s: int, seed: int) -> None:
        case = self.generator.case(seed)
        if case.setting.reward_s and not self.generator.rewards:
            raise InputError("rollout environment: a job's rewards take time, and its generator says that none do")
        load_case(self._jobs, s, case)

    def _ask(self, which: NDArray[np.int64]) -> None:
        for e in which:
            begin(self._jobs, e)
            ask(self._jobs, e, self._observations)

    def _figures(self) -> Info:
        jobs = self._jobs.jobs
        rollouts = np.maximum(jobs["iteration"], 1)
        return {
            "seconds": jobs["all_s"] / rollouts,
            "held_seconds": jobs["all_held_s"] / rollouts,
            "seconds_over_plain": jobs["all_s"] / jobs["plain_s"],
            "held_over_plain": jobs["all_held_s"] / jobs["plain_held_s"],
            **{name: jobs[name].copy() for name in ("decisions", "lost", "migrated", "aborted", "preempted", "switches")},
        }


def load_case(jobs: Jobs, e: int, case: Case) -> None:
    """Write a job and all its lengths into row `e`, with the seconds that plain rollouts take.

    Raises:
        InputError: more responses, GPUs or prompts than the tables hold.
    """
    prompts, each = case.launched
    drawn, job = case.draw(), jobs.jobs[e : e + 1]
    if prompts > jobs.numbers.shape[1] or each > jobs.lengths.shape[3] or case.setting.gpus > jobs.replicas.shape[1]:
        raise InputError("rollout environment: a job is larger than its generator says")
    if case.prompts > jobs.attempts.shape[1]:
        raise InputError(f"rollout environment: a job has {case.prompts} prompts, its generator {jobs.attempts.shape[1]} at most")
    job[:] = 0
    write_setting(job[0], jobs.costs[e], jobs.kv[e], case.setting, case.switch_s)
    job["iterations"] = case.iterations
    jobs.lengths[e, : case.prompts, :, :each] = drawn
    begin(jobs, e)
    keep_on(jobs, e)
    job["plain_s"], job["plain_held_s"] = job["all_s"], job["all_held_s"]
