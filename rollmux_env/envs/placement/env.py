"""The placement environment: many streams side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.cluster.demand import limits_of
from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.regroupings import placements
from rollmux_env.envs.base import BaseVectorEnv, Info, StepResult
from rollmux_env.envs.placement.actions import choice_table
from rollmux_env.envs.placement.generator import Workload
from rollmux_env.envs.placement.observation import candidate_names, observation_space, observation_table
from rollmux_env.envs.placement.reward import Dollars, Interval, Reward
from rollmux_env.envs.placement.step import SKIP, step_all
from rollmux_env.envs.placement.stream import Generator, Stream, StreamShapes, alone_s
from rollmux_env.envs.placement.types import ADMIT, OVER, Rules, Streams, begin, stream_table
from rollmux_env.envs.placement.viewer import Window, frame_of, picture, text
from rollmux_env.errors import InputError
from rollmux_env.kernel.feature_tables import make_workspace
from rollmux_env.kernel.neighbourhood.table import make_scratch
from rollmux_env.kernel.tables import LIMITS, NOWHERE, Records
from rollmux_env.replay.run import in_order_of_arrival


class PlacementVectorEnv(BaseVectorEnv):
    """`RollMux/Placement-v0`, natively vectorised. `PlacementEnv` describes the environment; it is one of these with one stream.

    What differs from it: everything has a leading axis of `num_envs`, and autoreset is as `BaseVectorEnv` says.

    Args:
        num_envs: streams side by side.
        autoreset: start a finished stream anew in the same step.
        others: see `PlacementEnv`.
    """

    metadata = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | str = "production",
        reward: Reward | None = None,
        moves: bool = False,
        known_stays: bool = True,
        shield: bool = True,
        candidates: int = 32,
        render_mode: str | None = None,
        autoreset: bool = True,
    ) -> None:
        if num_envs < 1:
            raise InputError(f"num_envs: must be at least 1, not {num_envs}")
        if candidates < 2:
            raise InputError(f"candidates: must be at least 2, not {candidates}")
        made: Generator = Workload(generator) if isinstance(generator, str) else generator
        names = candidate_names(moves, made.shapes > 0)
        observations = observation_table(num_envs, candidates, names)
        super().__init__(num_envs, observations, observation_space(candidates, names), render_mode, autoreset)
        self.generator = made
        self.reward: Reward = Dollars() if reward is None else reward
        cluster = self.generator.cluster
        self._limits = limits_of(cluster)
        decay = -math.log(self.reward.gamma_per_hour)
        prune = self.reward.reference != "rollmux,prune=false"
        self._rules = Rules(self._limits, moves, cluster.migration_s, shield, known_stays, decay, prune)
        sizes = len(self._limits.pools), made.jobs, cluster.max_group_size, made.nodes, made.steps, made.shapes
        self._streams = stream_table(num_envs, *sizes)
        self._reference = stream_table(num_envs if self.reward.reference else 0, *sizes)
        self._choices = choice_table(self._streams, candidates)
        jobs, groups = self._streams.jobs[0], self._streams.groups[0]
        self._workspace = make_workspace(jobs, groups)
        self._scratch = make_scratch(jobs, groups, candidates - 1) if moves else None
        self._solo_usd = np.ones(num_envs)
        clock = self._streams.clock
        self._interval = Interval(
            usd=clock["spent_usd"],
            solo_usd=self._solo_usd,
            reference_usd=self._reference.clock["spent_usd"] if self.reward.reference else np.zeros(num_envs),
            hours=clock["hours"],
            work_h=clock["left_work_h"],
            left=clock["left"],
            broken=clock["left_broken"],
            invalid=clock["invalid"],
            n_jobs=clock["n_jobs"],
        )
        self._window: Window | None = None

    @property
    def streams(self) -> Streams:
        """What is going on in each stream: tables with a row per environment, to read and not to change.

        `Streams` in `rollmux_env/envs/placement/types.py` describes them. The rows are overwritten by the next `step`.
        """
        return self._streams

    @property
    def choices(self) -> Records:
        """(num_envs, candidates) records: what each action means, `allowed`, `usd`, `gain` and more; to read only.

        Of row `s` only the first `streams.clock["choices"][s]` records are those of the decision at hand.
        """
        return self._choices

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Carry out one decision in every stream and bring it to the next."""
        self._advance(np.asarray(actions, dtype=np.int64))
        rewards = np.asarray(self.reward(self._interval), dtype=np.float64)
        over = self._streams.clock["asks"] == OVER
        gamma = self.reward.gamma_per_hour
        info = {
            "invalid_action": self._interval.invalid == 1,
            "discount": np.ones(self.num_envs) if gamma == 1 else gamma**self._interval.hours,
        }
        return self._finish_step(rewards, over, info)

    def plan_of(self, s: int, action: int) -> Plan:
        """What an action of stream `s` means, as a policy would say it; job ids are those of `generator.scenario`.

        Empty for `stop`. The action is taken as it is, masked or not.
        """
        choice = self._choices[s, action]
        if not 0 <= action < self._streams.clock["choices"][s]:
            raise InputError(f"action: stream {s} has no choice {action}")
        names = [job.id for job in in_order_of_arrival(self.generator.scenario(int(self._seeds[s])))]
        kind = Place if self._streams.clock["asks"][s] == ADMIT else Move
        return tuple(
            kind(names[job], placement) for job, placement in placements(choice, self._streams.jobs[s], self._streams.groups[s])
        )

    def render(self) -> Any:
        """One frame a stream: an (H, W, 3) array (`rgb_array`), a text (`ansi`); `human` shows the first stream in a window."""
        if self.render_mode is None:
            raise InputError("render: the environment was made without a render_mode")
        frames = [frame_of(self._streams, s, self._limits) for s in range(self.num_envs)]
        if self.render_mode == "ansi":
            return tuple(text(frame) for frame in frames)
        if self.render_mode == "rgb_array":
            return tuple(picture(frame) for frame in frames)
        if self._window is None:
            self._window = Window()
        return self._window.show(frames[0])

    def close_extras(self) -> None:
        """Close the window."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _start(self, s: int, seed: int) -> None:
        stream = self.generator.stream(seed)
        self._solo_usd[s] = stream.solo_usd(self._limits) or 1.0
        _load(self._streams, s, stream)
        if self.reward.reference:
            _load(self._reference, s, stream)

    def _ask(self, which: NDArray[np.int64]) -> None:
        actions = np.full(self.num_envs, SKIP)
        actions[which] = 0
        self._advance(actions)

    def _advance(self, actions: NDArray[np.int64]) -> None:
        step_all(
            self._streams, actions, self._rules, self._choices, self._workspace, self._scratch, self._observations, self._reference
        )

    def _info(self) -> Info:
        return {"truncated": self._streams.clock["overflow"] == 1, **super()._info()}

    def _figures(self) -> Info:
        clock = self._streams.clock
        n_jobs = clock["n_jobs"]
        return {
            "cost_usd": clock["usd"].copy(),
            "solo_usd": self._solo_usd.copy(),
            "cost_over_solo": clock["usd"] / self._solo_usd,
            "work_h": clock["work_h"].copy(),
            "slo_attainment": 1 - clock["broken"] / n_jobs,
            "direct_packing": clock["packed"].copy(),
            "rollout_scaling": clock["scaled"].copy(),
            "isolated": n_jobs - clock["packed"] - clock["scaled"],
            "migrations": clock["moved"].copy(),
        }


def _load(streams: Streams, s: int, stream: Stream) -> None:
    """Write a stream's jobs into row `s`."""
    n = len(stream.arrival_s)
    jobs = streams.jobs[s, :n]
    for name, column in stream._asdict().items():
        if name == "slo":
            jobs["solo_s"] = jobs["alone_s"] = stream.solo_s
            for limit in LIMITS:
                jobs[limit] = column * stream.solo_s
        elif name.startswith("rescale_"):
            jobs[name][:, : column.shape[1]] = column
        elif name != "shapes":
            jobs[name] = column
    jobs["of_shape"] = jobs["more_shapes"] = 0
    jobs["first_shape"] = np.arange(n)
    if stream.shapes is not None:
        _load_shapes(streams.jobs[s], stream.shapes, streams.order.shape[1])
    begin(streams, s, n)


def _load_shapes(table: Records, shapes: StreamShapes, first: int) -> None:
    """Write the shapes of jobs behind them, from row `first` on."""
    rows = np.arange(first, first + len(shapes.job))
    table[rows] = table[shapes.job]
    for name, column in shapes._asdict().items():
        if name.startswith("rescale_"):
            table[name][rows, : column.shape[1]] = column
        elif name != "job":
            table[name][rows] = column
    phases = (table[name][rows] for name in ("rollout_s", "training_s", "sync_s", "staleness"))
    table["alone_s"][rows] = alone_s(*phases)
    table["group"][rows] = NOWHERE
    own, starts, counts = np.unique(shapes.job, return_index=True, return_counts=True)
    table["more_shapes"][own], table["more_shapes"][rows] = counts - 1, -1
    table["first_shape"][own], table["first_shape"][rows] = first + starts, np.repeat(first + starts, counts)
