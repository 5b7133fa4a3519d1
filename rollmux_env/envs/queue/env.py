"""The queue environment, with many parallel streams."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.cluster.plan import Plan
from rollmux_env.envs import checks
from rollmux_env.envs.base import BaseEnv, BaseVectorEnv, Info
from rollmux_env.envs.placement.generator import Workload, find_generator
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.envs.queue.choices import NAMES, MostChoices, cluster_features, queue_features
from rollmux_env.envs.queue.known import as_known, rules_for
from rollmux_env.envs.queue.reward import Completion, Interval
from rollmux_env.envs.queue.stream import QueueStream
from rollmux_env.envs.queue.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.keys.queue import Known
from rollmux_env.user_code import GENERATOR, guarded
from rollmux_env.validation_errors import not_one_of
from rollmux_env.workloads.fleets import with_fleet
from rollmux_env.workloads.own import Source


class QueueVectorEnv(BaseVectorEnv):
    """`RollMux/Queue-v0` with parallel streams, one after the other in this process. `QueueEnv` describes the environment.

    Args:
        num_envs: Number of parallel streams.
        generator: Source of the streams, as for `QueueEnv`.
        fleet: Nodes of each pool, as for `QueueEnv`.
        known: Track, as for `QueueEnv`.
        sigma: Error of the estimates, as for `QueueEnv`.
        park: Whether running jobs may be parked.
        reward: Reward function, as for `QueueEnv`.
        render_mode: Render mode, as for `QueueEnv`.
        autoreset_mode: When a new episode begins in a stream that is over, as for `BaseVectorEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | Source | str | None = None,
        fleet: str | None = "load=1.6",
        known: Known = "lengths",
        sigma: float = 1.0,
        park: bool = True,
        reward: Any = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        if known not in get_args(Known):
            raise InputError(f"known: {not_one_of(str(known), get_args(Known))}")
        if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 <= sigma <= 10:
            raise InputError(f"sigma: must be a number from 0 to 10, not {sigma!r}")
        if fleet is not None and not isinstance(fleet, str):
            raise InputError(f"fleet: must be text, such as 12+10 or load=1.6, or None, not {fleet!r}")
        self.generator = Workload("production", jobs=100) if generator is None else find_generator(generator)
        self.fleet, self.known, self.sigma = fleet, known, float(sigma)
        self.rules, self.most = rules_for(known, checks.flag("park", park)), MostChoices()
        self.streams: list[QueueStream] = []
        num_envs = checks.whole_number("num_envs", num_envs)
        self._spent_h, self._worked_h, self._scale_h = np.zeros(num_envs), np.zeros(num_envs), np.ones(num_envs)
        self._invalid = np.zeros(num_envs, dtype=np.int64)
        super().__init__(num_envs, self.most.rows, NAMES, Completion() if reward is None else reward, render_mode, autoreset_mode)

    def plan_of(self, s: int, action: int) -> Plan:
        """Return an action of a stream as a plan of `Place` or `Park`, empty for the one that serves no job.

        Args:
            s: Number of the stream.
            action: Row of its choices.

        Raises:
            InputError: If there is no such choice.
        """
        choices = self.streams[s].decision.choices
        if not 0 <= action < len(choices):
            raise InputError(f"action: must be from 0 to {len(choices) - 1}, not {action}")
        return choices[action].plan

    def _advance(self, actions: NDArray[np.int64]) -> None:
        for s, (stream, action) in enumerate(zip(self.streams, actions.tolist(), strict=True)):
            self._invalid[s], self._spent_h[s], self._worked_h[s] = 0, 0.0, 0.0
            if stream.is_over:
                continue
            before_h, worked_h, least = stream.weighted_h, stream.worked_h, 0 if stream.may_wait else 1
            if not least <= action < len(stream.decision.choices):
                self._invalid[s], action = 1, least
            stream.act(action)
            self._spent_h[s], self._worked_h[s] = stream.weighted_h - before_h, stream.worked_h - worked_h
            self._observe(s)

    def _views(self) -> None:
        return None

    def _interval(self) -> Interval:
        return Interval(self._spent_h.copy(), self._worked_h.copy(), self._scale_h.copy(), self._invalid.copy())

    def _over(self) -> NDArray[np.bool_]:
        return np.array([stream.is_over for stream in self.streams])

    def _info(self) -> Info:
        left_out = np.array([stream.decision.left_out for stream in self.streams])
        return {**super()._info(), "choices_left_out": left_out}

    def _figures(self) -> Info:
        hours = np.array([stream.weighted_h for stream in self.streams])
        weights = np.array([sum(job.weight for job in stream.run.scenario.jobs) for stream in self.streams])
        return {"mean_completion_h": hours / weights, "completion_over_solo": hours / self._scale_h}

    def _text(self, s: int) -> str:
        return text(self.streams[s])

    def _picture(self, s: int) -> NDArray[np.uint8]:
        return picture(self.streams[s])

    def _start(self, s: int, seed: int) -> None:
        scenario = guarded(self.generator.scenario, GENERATOR)(seed)
        scenario = scenario if self.fleet is None else with_fleet(scenario, self.fleet)
        if any(pool.max_nodes is None for pool in scenario.cluster.pools.values()):
            raise InputError("fleet: must be given, as the pools of the generator's cluster have no max_nodes")
        rules = rules_for(self.known, self.rules.park)  # an order keeps what it has learned from the departures of one stream
        stream = QueueStream(as_known(scenario, self.known, self.sigma, seed), rules, self.most)
        self.streams[s:] = [stream, *self.streams[s + 1 :]]
        self._scale_h[s] = stream.scale_h

    def _ask(self, which: NDArray[np.int64]) -> None:
        for s in which.tolist():
            self.streams[s].advance()
            self._observe(s)

    def _observe(self, s: int) -> None:
        """Write the observation of a stream."""
        stream, table = self.streams[s], self._observations
        choices = stream.decision.choices
        table.candidates[s], table.mask[s] = 0, 0
        table.candidates[s, : len(choices)] = [choice.features for choice in choices]
        table.mask[s, 1 : len(choices)] = 1
        table.mask[s, 0] = stream.is_over or stream.may_wait
        table.job[s], table.cluster[s] = queue_features(stream.state), cluster_features(stream.state)


class QueueEnv(BaseEnv):
    """## Description

    Jobs of RL post-training share a fleet of nodes that is paid for whether it is used or not. Jobs wait in a queue. The agent
    decides which waiting job gets which place, which running job is parked for it, and when it is better to keep nodes free. One
    episode is one stream of jobs, until all have departed. How long jobs are is known, estimated, or to be learned.

    The environment is the fluid replay of `rollmux bench`: a rule that is played through it gives the same log.

    ## Action Space

    `Discrete(107)`.

    | Actions | Content |
    |---|---|
    | 0 | serve no job now; the next instant follows |
    | the next, at most 8 times 12 | places of the first 8 waiting jobs, job by job, in Algorithm 1's order |
    | the last, at most 10 | parks: running jobs, in the order in which `park=true` of the queue's rules tries them |

    Which jobs are the first, and the order of parks, is that of `area` where lengths are known or estimated, else that of `learned`
    or `gittins`. `action_masks()`, also `observation["mask"]`, states which actions may be chosen: the planner's own tests of
    nodes, memory, group size, SLOs, quotas, and of parks (P9). After a place or a park the same instant is asked about again, while
    a job can be served. Action 0 is masked only if nothing would happen any more. If a job has more than 12 places, those with the
    shortest period are kept, new groups before others, and `info["choices_left_out"]` is True, as with more than 8 waiting jobs. A
    job that got its place at this instant cannot be parked. A masked action is replaced by action 0 (or 1, if that is masked too),
    `info["invalid_action"]` is True, and the reward subtracts a penalty.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.envs.queue.choices` names every column.

    | Key | Shape | Content |
    |---|---|---|
    | `job` | (3,) | the queue: jobs, longest wait, nodes asked for |
    | `candidates` | (107, 16) | each action: kind; the job's rank in the queue, work left and done, wait, T_solo, nodes, weight |
    | | | and SLO; its place: new group or nodes, progress, slack, members and how much they are slowed |
    | `cluster` | (4,) | running jobs, groups, free nodes |
    | `mask` | (107,), int8 | 1 for actions that may be chosen |

    ## Rewards

    `rollmux_env.envs.queue.reward.Completion()`: minus the weighted number of jobs in the system times the hours since the last
    decision, over the sum of all weights times the mean hours of a job alone. By Little's law the return is minus the mean
    completion in units of a mean job alone: -1 if no job ever waits or shares. A masked action costs 0.01. For training there is
    `Completion(lost_only=True)`: only the time that jobs lose by waiting, sharing and pauses.

    ## Starting State

    The first job has arrived. `reset(seed=...)` seeds the draws of streams. `reset(options={"stream_seed": 7})` selects the stream
    of seed 7. Seeds below 65536 are never drawn, so they are free for evaluation.

    ## Episode End

    Terminates when all jobs have departed. Never truncates. `info` then has `mean_completion_h`, weighted, and
    `completion_over_solo`.

    ## Arguments

    | Argument | Default | Meaning |
    |---|---|---|
    | `generator` | `Workload("production", jobs=100)` | source of the streams, as for `RollMux/Placement-v0` |
    | `fleet` | `load=1.6` | nodes of each pool, as in `12+10`, or the load that sizes them; None for the cluster's `max_nodes` |
    | `known` | `lengths` | the track: `lengths`, `estimates`, `classes` (of jobs, whose lengths departures teach) or `nothing` |
    | `sigma` | 1.0 | with `estimates`: standard deviation of the logarithm of their error |
    | `park` | True | whether running jobs may be parked |
    | `reward` | `Completion()` | a function of an `Interval` of `rollmux_env.envs.queue.reward` |
    | `render_mode` | `None` | `human`, `rgb_array` or `ansi` |

    ```python
    import gymnasium, rollmux_env.envs
    from rollmux_env.envs.placement.generator import Workload

    env = gymnasium.make("RollMux/Queue-v0", generator=Workload("production", jobs=50, classes=8), known="classes")
    ```

    ## Version History

    * v0: initial version.
    """

    vector_class = QueueVectorEnv
