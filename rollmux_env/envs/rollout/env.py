"""The rollout environment: the rollouts of many jobs side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs import checks
from rollmux_env.envs.base import BaseEnv, BaseVectorEnv, Info
from rollmux_env.envs.rollout.dynamics import ask, begin, keep_on, step_all
from rollmux_env.envs.rollout.generator import Generator, RandomJobs, checked
from rollmux_env.envs.rollout.observation import feature_names
from rollmux_env.envs.rollout.reward import Cost, Interval, Reward
from rollmux_env.envs.rollout.types import ROWS, Case, Jobs, job_table, write_setting
from rollmux_env.envs.rollout.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.rollout.setting import Setting
from rollmux_env.validation_errors import describe


class RolloutVectorEnv(BaseVectorEnv):
    """`RollMux/Rollout-v0`, natively vectorised. `RolloutEnv` describes the environment; it is one of these with one job.

    Args:
        num_envs: jobs side by side.
        autoreset: start a finished job anew in the same step.
        others: see `RolloutEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | None = None,
        reward: Reward | None = None,
        render_mode: str | None = None,
        autoreset: bool = True,
    ) -> None:
        self.generator: Generator = RandomJobs() if generator is None else checked(generator)
        names = feature_names(self.generator.rewards)
        super().__init__(num_envs, ROWS, names, Cost() if reward is None else reward, render_mode, autoreset)
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

    def _advance(self, actions: NDArray[np.int64]) -> None:
        step_all(self._jobs, actions, self._observations)

    def _views(self) -> Interval:
        return Interval(*(checks.read_only(self._jobs.jobs[name]) for name in Interval._fields))

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
        case = self.generator.case(seed)
        if not isinstance(case, Case):
            raise InputError(f"generator: case({seed}) must be a Case, not {describe(case)}")
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


class RolloutEnv(BaseEnv):
    """## Description

    A job of RL post-training samples responses on replicas of its model, and trains on them when enough prompts are complete. Most
    responses are short, a few run to the cap, and how long one is going to be is not known. A rollout policy says what a rollout
    launches, how many GPUs a replica has, and what is done with the responses while they run. One episode is one job until its data
    set is through: each prompt is trained on exactly once, in whatever order; see docs/reference/rollout_policies.md.

    It is the simulator of `rollmux bench`: the same choices end the same responses at the same times.

    ## Action Space

    `Discrete(10)`.

    | Action | Before a rollout begins | While it runs |
    |---|---|---|
    | 0 | launch what the iteration needs | keep on |
    | 1 | launch 1.25 times as many prompts, and responses to each (tail batching) | - |
    | 2 | - | rebalance: spread the open responses over the replicas, the longest by forecast first |
    | 3 | - | migrate the tail: they go on at half of the replicas, and the others are free |
    | 4 | - | put off the prompts beyond those still wanted, those that lack most responses |
    | 5 | - | abort the responses beyond those that their prompts still need, those with the fewest tokens |
    | 6 to 9 | replicas of 1, 2, 4, 8 GPUs, then decide again | the same, with the open responses spread over them |

    `action_masks()`, also `observation["mask"]`, tells which may be chosen. Prompts that are put off join a queue; when it holds
    those of an iteration, the next rollout runs these, with nothing spare. A response that moves is prefilled again; replicas of
    another size are there after `switch_s` (3.5 s). After a tail has moved, its rollout moves nothing any more. Decisions while a
    rollout runs come when 20, 25, ..., 50, 70, 80, 90, 95 and 98% of the wanted responses have finished, where there is more than
    one answer. A masked action keeps on, `info["invalid_action"]` is True, and the reward takes a penalty off.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.envs.rollout.observation` names every column.

    | Key | Shape | What |
    |---|---|---|
    | `job` | (16,) | GPUs, sizes, responses, quantiles of the lengths of earlier rollouts, prompts put off |
    | `candidates` | (10, 16) | each action: its kind, the forecast rest after it, GPUs held, what moves or is dropped |
    | `cluster` | (16,) | the rollout in hand: finished, waiting, caches, how uneven the replicas are, what is left by forecast |
    | `mask` | (10,), int8 | 1 where an action may be chosen |

    Forecasts draw on the lengths of earlier rollouts of the same kind and on what each response has so far. Nothing is observed of
    tokens that have not been sampled.

    Where the generator's jobs have rewards that take time (`RandomJobs(rewards=True)`), two numbers more of the job say what they
    take, and two of the rollout in hand how many wait and for how long. A rollout then gives its GPUs back when its last response
    has ended, and the next decision comes when the last reward that counts is there.

    ## Rewards

    `rollmux_env.envs.rollout.reward.Cost()`: minus the mean of two shares, the seconds since the last decision and the GPU-seconds
    held, each over that of plain rollouts of the same job. So the return is -1 under the policy `plain`, and -0.5 where a job
    needs half of both. `Cost(held_weight=0)` counts the job's own time alone. A masked action costs 0.01.

    ## Starting State

    Nothing has been sampled, and the replicas have the configured size. `reset(seed=...)` seeds the draws of jobs;
    `reset(options={"stream_seed": 7})` asks for the job that `generator.case(7)` is. Seeds below 65536 are never drawn, so they are
    free for evaluation.

    ## Episode End

    Terminates when every prompt has been trained on. Never truncates. `info` then has `seconds` and `held_seconds` of a rollout,
    `seconds_over_plain`, `held_over_plain`, `decisions`, `lost` (tokens), `migrated`, `aborted`, `preempted` (responses) and
    `switches` of the size.

    ## Arguments

    | Argument | Default | What |
    |---|---|---|
    | `generator` | `RandomJobs()` | where jobs come from: a `rollmux_env.envs.rollout.generator.Generator` |
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


def load_case(jobs: Jobs, e: int, case: Case) -> None:
    """Write a job and all its lengths into row `e`, with the seconds that plain rollouts take.

    Raises:
        InputError: more responses, GPUs or prompts than the tables hold.
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
