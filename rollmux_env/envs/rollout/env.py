"""The rollout environment, with the rollouts of many jobs in parallel."""

from __future__ import annotations

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.envs.base import BaseEnv, BaseVectorEnv, Info
from rollmux_env.envs.rollout.dynamics import ask, begin, keep_on, step_all
from rollmux_env.envs.rollout.generator import Generator, RandomJobs, checked
from rollmux_env.envs.rollout.observation import feature_names
from rollmux_env.envs.rollout.reward import Cost, Interval, Reward
from rollmux_env.envs.rollout.types import ROWS, SPARE, TAIL, RolloutJob, RolloutTables, job_table, write_setting
from rollmux_env.envs.rollout.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.rollout.setting import Setting
from rollmux_env.user_code import GENERATOR, guarded, read_only
from rollmux_env.validation_errors import describe


class RolloutVectorEnv(BaseVectorEnv):
    """`RollMux/Rollout-v0`, natively vectorised. `RolloutEnv` describes the environment and is the case of one job.

    Args:
        num_envs: Number of parallel jobs.
        generator: Source of the jobs, as for `RolloutEnv`.
        reward: Reward function, as for `RolloutEnv`.
        render_mode: Render mode, as for `RolloutEnv`.
        autoreset_mode: When a new episode begins in a job that is over, as for `BaseVectorEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | None = None,
        reward: Reward | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        self.generator: Generator = RandomJobs() if generator is None else checked(generator)
        names = feature_names(self.generator.rewards)
        super().__init__(num_envs, ROWS, names, Cost() if reward is None else reward, render_mode, autoreset_mode)
        self._jobs = job_table(num_envs, *self.generator.launched, self.generator.gpus, self.generator.prompts)
        self._forbidden = np.zeros((num_envs, ROWS), np.bool_)  # actions that each job may never choose

    @property
    def jobs(self) -> RolloutTables:
        """Current state of the jobs, in tables with a row for each environment. For reading only.

        `RolloutTables` in `rollmux_env/envs/rollout/types.py` describes them. The rows are overwritten by the next `step`.
        """
        return self._jobs

    def setting(self, e: int) -> Setting:
        """Return the setting of job `e`, which is known before its first rollout.

        Args:
            e: Number of the environment.
        """
        return guarded(self.generator.case, GENERATOR)(int(self._seeds[e])).setting

    def _advance(self, actions: NDArray[np.int64]) -> None:
        step_all(self._jobs, actions, self._observations)
        self._forbid()

    def _views(self) -> Interval:
        return Interval(*(read_only(self._jobs.jobs[name]) for name in Interval._fields))

    def _interval(self) -> Interval:
        passed: Interval = self._passed
        return passed

    def _over(self) -> NDArray[np.bool_]:
        over: NDArray[np.bool_] = self._jobs.jobs["over"] == 1
        return over

    def _text(self, s: int) -> str:
        return text(self._jobs, s)

    def _picture(self, s: int) -> NDArray[np.uint8]:
        return picture(self._jobs, s)

    def _start(self, s: int, seed: int) -> None:
        case = guarded(self.generator.case, GENERATOR)(seed)
        if not isinstance(case, RolloutJob):
            raise InputError(f"generator: case({seed}) must be a RolloutJob, not {describe(case)}")
        if case.setting.reward_s and not self.generator.rewards:
            raise InputError("rollout environment: a job's rewards take time, and its generator says that none do")
        if case.setting.reward_quantiles:
            raise InputError("rollout environment: all rewards of a job take equally long; give it reward_s, not reward_quantiles")
        load_case(self._jobs, s, case)
        self._forbidden[s, [TAIL, SPARE]] = not case.tails, not case.spare

    def _ask(self, which: NDArray[np.int64]) -> None:
        for e in which:
            begin(self._jobs, e)
            ask(self._jobs, e, self._observations)
        self._forbid()

    def _forbid(self) -> None:
        self._observations.mask[self._forbidden] = 0
        self._observations.candidates[self._forbidden] = 0

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


class RolloutEnv(BaseEnv):
    """## Description

    A job of RL post-training samples responses on replicas of its model, and trains on them when enough prompts are complete. Most
    responses are short, a few run to the cap, and the final length of a response is not known. A rollout policy decides what a
    rollout launches, how many GPUs a replica has, and what happens to the responses while they run. One episode is one job until it
    has used its data set: each prompt is trained on exactly once, in any order; see docs/reference/rollout_policies.md.

    The environment is the simulator of `rollmux bench`: the same choices end the same responses at the same times.

    ## Action Space

    `Discrete(10)`.

    | Action | Before a rollout | During a rollout |
    |---|---|---|
    | 0 | launch the prompts and responses that the iteration needs | change nothing |
    | 1 | launch 1.25 times as many prompts, and responses to each (tail batching) | - |
    | 2 | - | rebalance: spread the open responses over the replicas, the longest by forecast first |
    | 3 | - | migrate the tail: responses continue on half of the replicas, and the others become free |
    | 4 | - | defer surplus prompts, those that lack most responses first |
    | 5 | - | abort surplus responses of each prompt, those with the fewest tokens first |
    | 6 to 9 | replicas of 1, 2, 4, 8 GPUs, then decide again | the same, with the open responses spread over them |

    `action_masks()`, also `observation["mask"]`, states which actions may be chosen. A surplus prompt or response is one that the
    iteration does not need. Deferred prompts join a queue. When it holds enough for an iteration, the next rollout runs these to
    the end, without spare ones. A response that moves is prefilled again. Replicas of another size are ready after `switch_s`
    (3.5 s). After the tail of a rollout has moved, no other response of it can move. During a rollout there is a decision when 20,
    25, ..., 50, 70, 80, 90, 95 and 98% of the wanted responses have finished, if more than one action is allowed. A masked action
    is replaced by action 0, `info["invalid_action"]` is True, and the reward subtracts a penalty.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.envs.rollout.observation` names every column.

    | Key | Shape | Content |
    |---|---|---|
    | `job` | (16,) | GPUs, sizes, responses, quantiles of the lengths of earlier rollouts, deferred prompts |
    | `candidates` | (10, 16) | each action: kind, forecast of the rest after it, GPUs held, responses moved or dropped |
    | `cluster` | (16,) | the rollout: finished, waiting, caches, balance of the replicas, forecast of the rest |
    | `mask` | (10,), int8 | 1 for actions that may be chosen |

    Forecasts use the lengths of earlier rollouts of the same kind and the tokens of each response so far. Tokens that have not been
    sampled are never observed.

    If the generator's jobs have rewards that take time (`RandomJobs(rewards=True)`), `job` has two more columns for their duration,
    and `cluster` has two more for the number of waiting rewards and their remaining time. A rollout then gives its GPUs back when
    its last response has ended, and the next decision comes when the last reward that counts has ended.

    ## Rewards

    `rollmux_env.envs.rollout.reward.Cost()`: minus the mean of two shares, the seconds since the last decision and the GPU-seconds
    held since then, each relative to the total of plain rollouts (action 0 only) of the same job. So the return is -1 for the
    policy `plain`, and -0.5 for a job that needs half of both. `Cost(held_weight=0)` counts only the job's own time. A masked
    action costs 0.01.

    ## Starting State

    Nothing has been sampled, and the replicas have the configured size. `reset(seed=...)` seeds the draws of jobs.
    `reset(options={"stream_seed": 7})` selects the job `generator.case(7)`. Seeds below 65536 are never drawn, so they are free for
    evaluation.

    ## Episode End

    Terminates when every prompt has been trained on. Never truncates. `info` then has `seconds` and `held_seconds` (means of a
    rollout: its duration, and the time for which it held all GPUs or the equivalent), `seconds_over_plain`, `held_over_plain`,
    `decisions`, `lost` (tokens), `migrated`, `aborted`, `preempted` (responses) and `switches` of the replicas' size.

    ## Arguments

    | Argument | Default | Meaning |
    |---|---|---|
    | `generator` | `RandomJobs()` | source of the jobs: a `rollmux_env.envs.rollout.generator.Generator` |
    | `reward` | `Cost()` | a `rollmux_env.envs.rollout.reward.Reward` |
    | `render_mode` | `None` | `rgb_array` or `ansi` |

    ```python
    import gymnasium, rollmux_env.envs
    from rollmux_env.envs.rollout.generator import RandomJobs

    env = gymnasium.make("RollMux/Rollout-v0", generator=RandomJobs(sigma=1.5))
    ```

    ## Version History

    * v0: initial version.
    """

    vector_class = RolloutVectorEnv


def load_case(jobs: RolloutTables, e: int, case: RolloutJob) -> None:
    """Write a job and all its response lengths into a row, with the seconds that its plain rollouts take.

    Args:
        jobs: Tables of the environment, written.
        e: Number of the row.
        case: The job.

    Raises:
        InputError: The job has more responses, GPUs or prompts than the tables hold.
    """
    prompts, each = case.launched
    drawn, job = case.draw(), jobs.jobs[e : e + 1]
    if prompts > len(jobs.numbers[e]) or each > len(jobs.lengths[e, 0, 0]) or case.setting.gpus > len(jobs.replicas[e]):
        raise InputError("rollout environment: a job is larger than its generator says")
    if case.prompts > len(jobs.attempts[e]):
        raise InputError(f"rollout environment: a job has {case.prompts} prompts, its generator {len(jobs.attempts[e])} at most")
    job[:] = 0
    write_setting(job[0], jobs.costs[e], jobs.kv[e], case.setting, case.switch_s)
    job["iterations"] = case.iterations
    jobs.lengths[e, : case.prompts, :, :each] = drawn
    fresh = job.copy()
    begin(jobs, e)
    keep_on(jobs, e)
    fresh["plain_s"], fresh["plain_held_s"] = job["all_s"], job["all_held_s"]
    job[:] = fresh
