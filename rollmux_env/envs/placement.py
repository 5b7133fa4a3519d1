"""The placement environment: many streams side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.regroupings import placements
from rollmux_env.cluster.state import limits_of
from rollmux_env.complaint import describe
from rollmux_env.envs.generator import Workload
from rollmux_env.envs.observation import observation_space, seen_table
from rollmux_env.envs.reward import Dollars, Interval, Reward
from rollmux_env.envs.stream import Generator, Stream
from rollmux_env.envs.viewer import Window, frame_of, picture, text
from rollmux_env.errors import InputError
from rollmux_env.kernel.choices import Rules, choice_table
from rollmux_env.kernel.looks import make_desk
from rollmux_env.kernel.rows import move_space
from rollmux_env.kernel.steps import ask_first, step_all
from rollmux_env.kernel.stream import ADMIT, OVER, Streams, begin, stream_table
from rollmux_env.replay.run import in_order_of_arrival

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]

FIRST_DRAWN_SEED = 2**16  # streams of seeds below are never drawn: they are for evaluation


class PlacementVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """`RollMux/Placement-v0`, natively vectorised. `PlacementEnv` describes the environment; it is one of these with one stream.

    What differs from it: everything has a leading axis of `num_envs`. Autoreset is `AutoresetMode.SAME_STEP`: the step that ends an
    episode returns the first observation of the next, with the last one in `info["final_obs"]` (a dict of arrays; rows where
    `info["_final_obs"]` is True) and the episode's figures in `info["final_info"]`. With `autoreset=False` a finished stream stays
    as it is, and `reset(options={"reset_mask": mask})` starts some of them anew.

    Args:
        num_envs: streams side by side.
        autoreset: as above.
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
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InputError(f"render_mode: must be human, rgb_array or ansi, not {describe(render_mode)}")
        self.num_envs = num_envs
        self.generator: Generator = Workload(generator) if isinstance(generator, str) else generator
        self.reward: Reward = Dollars() if reward is None else reward
        self.render_mode = render_mode
        self.autoreset = autoreset
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED}
        self.single_action_space = spaces.Discrete(candidates)
        self.single_observation_space = observation_space(candidates, moves)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        cluster = self.generator.cluster
        self._limits = limits_of(cluster)
        self._rules = Rules(moves, cluster.migration_s, shield, known_stays, -float(np.log(self.reward.gamma_per_hour)))
        sizes = self.generator.jobs, cluster.max_group_size, self.generator.nodes, self.generator.steps
        self._streams = stream_table(num_envs, *sizes)
        self._reference = stream_table(num_envs if self.reward.reference else 0, *sizes)
        self._prune = self.reward.reference != "rollmux,prune=false"
        self._choices = choice_table(self._streams, candidates)
        self._seen = seen_table(num_envs, candidates, moves)
        jobs, groups = self._streams.jobs[:1], self._streams.groups[0]
        self._desk = make_desk(jobs.shape[1], groups.dtype["node_number"].shape[0])
        self._space = move_space(groups, candidates - 1, jobs.dtype["pins"].shape[0])
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._solo_usd = np.ones(num_envs)
        self._seeds = np.zeros(num_envs, dtype=np.int64)
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
        self._draws: list[np.random.Generator] = []
        self._window: Window | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start new episodes.

        Args:
            seed: of the draws of stream seeds: stream k draws from `seed + k`, or from the k-th of a list.
            options: `stream_seed`, a number or one a stream: the seeds of the streams themselves, as the generator takes them, in
                place of drawn ones. `reset_mask`, (E,): only these streams.
        """
        options = options or {}
        if seed is not None or not self._draws:
            self._seed(seed)
        which = np.flatnonzero(np.asarray(options.get("reset_mask", self._all), dtype=np.bool_))
        given = options.get("stream_seed")
        seeds = [self._draw(s) for s in which] if given is None else np.broadcast_to(given, self.num_envs)[which].tolist()
        self._begin(which, seeds)
        return self._observation(), self._info()

    def step(self, actions: NDArray[np.int64]) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Carry out one decision in every stream and bring it to the next."""
        step_all(
            self._streams,
            np.asarray(actions, dtype=np.int64),
            self._limits,
            self._rules,
            self._choices,
            self._desk,
            self._space,
            self._seen,
            self._reference,
            self._prune,
        )
        rewards = np.asarray(self.reward(self._interval), dtype=np.float64)
        over = self._streams.clock["asks"] == OVER
        gamma = self.reward.gamma_per_hour
        info: Info = {
            "invalid_action": self._interval.invalid == 1,
            "discount": np.ones(self.num_envs) if gamma == 1 else gamma**self._interval.hours,
            "_invalid_action": self._all,
            "_discount": self._all,
        }
        if over.any() and not self.autoreset:
            info.update(self._summary(over))
        elif over.any():
            which = np.flatnonzero(over)
            info["final_obs"], info["_final_obs"] = self._observation(), over
            info["final_info"], info["_final_info"] = self._summary(over), over
            self._begin(which, [self._draw(s) for s in which])
        info.update(self._info())
        return self._observation(), rewards, over, np.zeros(self.num_envs, dtype=np.bool_), info

    def action_masks(self) -> NDArray[np.bool_]:
        """(E, A) True where a choice may be made, of all streams at once; sb3-contrib's name for it."""
        return self._seen.mask.astype(np.bool_)

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

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        """Give every stream a source of stream seeds of its own."""
        if seed is None or isinstance(seed, int | np.integer):
            first = self.np_random_seed if seed is None else int(seed)
            super().reset(seed=first)
            seeds: list[int | None] = [None if first is None else first + s for s in range(self.num_envs)]
        else:
            seeds = [*seed]
        if len(seeds) != self.num_envs:
            raise InputError(f"seed: must be a number or {self.num_envs} of them, not {len(seeds)}")
        self._draws = [seeding.np_random(given)[0] for given in seeds]

    def _draw(self, s: int) -> int:
        return int(self._draws[s].integers(FIRST_DRAWN_SEED, 2**31))

    def _begin(self, which: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Start streams anew and bring them to their first decision."""
        for s, seed in zip(which.tolist(), seeds, strict=True):
            stream = self.generator.stream(seed)
            self._seeds[s] = seed
            self._solo_usd[s] = stream.solo_usd(self._limits) or 1.0
            _load(self._streams, s, stream)
            if self.reward.reference:
                _load(self._reference, s, stream)
        ask_first(self._streams, which, self._limits, self._rules, self._choices, self._desk, self._space, self._seen)

    def _observation(self) -> Observation:
        return {name: column.copy() for name, column in self._seen._asdict().items()}

    def _info(self) -> Info:
        return {
            "truncated": self._streams.clock["overflow"] == 1,
            "stream_seed": self._seeds.copy(),
            "_truncated": self._all,
            "_stream_seed": self._all,
        }

    def _summary(self, over: NDArray[np.bool_]) -> Info:
        """Figures of the episodes that are over."""
        clock = self._streams.clock
        n_jobs = clock["n_jobs"]
        figures: Info = {
            "stream_seed": self._seeds.copy(),
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
        return {**figures, **{f"_{name}": over for name in figures}}


def _load(streams: Streams, s: int, stream: Stream) -> None:
    """Write a stream's jobs into row `s`."""
    n = len(stream.arrival_s)
    jobs = streams.jobs[s, :n]
    for name, column in stream._asdict().items():
        if name == "slo":
            jobs["solo_s"] = stream.solo_s
            jobs["limit_s"] = column * stream.solo_s
        elif name.startswith("rescale_"):
            jobs[name][:, : column.shape[1]] = column
        else:
            jobs[name] = column
    begin(streams, s, n)
