"""The dispatch environment: many groups side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollmux_env.complaint import describe
from rollmux_env.envs.dispatch.group import Generator, Group, Shapes
from rollmux_env.envs.dispatch.looks import GROUP_FEATURES, ROW_FEATURES, STATE_FEATURES, look_tables
from rollmux_env.envs.dispatch.reward import Interval, Reward, Work
from rollmux_env.envs.dispatch.steps import Tails, ask_first, begin, follow_round_robin, step_all
from rollmux_env.envs.dispatch.tables import Groups, group_tables
from rollmux_env.envs.dispatch.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.replay.sampling import Durations
from rollmux_env.timing.tail import TailModel

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]

MIGRATES_AT = 0.8
FIRST_DRAWN_SEED = 2**16  # groups of seeds below are never drawn: they are for evaluation


class DispatchVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """`RollMux/Dispatch-v0`, natively vectorised. `DispatchEnv` describes the environment; it is one of these with one group.

    What differs from it: everything has a leading axis of `num_envs`. Autoreset is `AutoresetMode.SAME_STEP`: the step that ends an
    episode returns the first observation of the next, with the last one in `info["final_obs"]` (a dict of arrays; rows where
    `info["_final_obs"]` is True) and the episode's figures in `info["final_info"]`. With `autoreset=False` a finished group stays
    as it is, and `reset(options={"reset_mask": mask})` starts some of them anew.

    Args:
        num_envs: groups side by side.
        autoreset: as above.
        others: see `DispatchEnv`.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | None = None,
        reward: Reward | None = None,
        tails: TailModel | None = None,
        render_mode: str | None = None,
        autoreset: bool = True,
    ) -> None:
        if num_envs < 1:
            raise InputError(f"num_envs: must be at least 1, not {num_envs}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InputError(f"render_mode: must be rgb_array or ansi, not {describe(render_mode)}")
        self.num_envs = num_envs
        self.generator: Generator = Shapes() if generator is None else generator
        self.reward: Reward = Work() if reward is None else reward
        self.render_mode = render_mode
        self.autoreset = autoreset
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED}
        rows = self.generator.members + 1
        self.single_action_space = spaces.Discrete(rows)
        self.single_observation_space = spaces.Dict(
            {
                "job": _unit(len(GROUP_FEATURES)),
                "candidates": _unit(rows, len(ROW_FEATURES)),
                "cluster": _unit(len(STATE_FEATURES)),
                "mask": spaces.Box(0, 1, (rows,), np.int8),
            }
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._model = TailModel() if tails is None else tails
        self._tails = Tails(self._model.share, self._model.rate, self._model.move_s)
        sizes = self.generator.members, self.generator.nodes + 1, self.generator.iterations
        self._groups = group_tables(num_envs, *sizes)
        self._looks = look_tables(num_envs, rows)
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._reference_rate = np.zeros(num_envs)  # seconds of work a second
        self._draws: list[np.random.Generator] = []

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start new episodes.

        Args:
            seed: of the draws of groups' seeds: group k draws from `seed + k`, or from the k-th of a list.
            options: `stream_seed`, a number or one a group: the seeds of the groups themselves, as the generator takes them, in
                place of drawn ones. `reset_mask`, (E,): only these groups.
        """
        options = options or {}
        if seed is not None or not self._draws:
            self._seed(seed)
        which = np.flatnonzero(np.asarray(options.get("reset_mask", self._all), dtype=np.bool_))
        given = options.get("stream_seed")
        seeds = [self._draw(e) for e in which] if given is None else np.broadcast_to(given, self.num_envs)[which].tolist()
        self._begin(which, seeds)
        return self._observation(), self._info()

    def step(self, actions: NDArray[np.int64]) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], Info]:
        """Carry out one decision in every group and bring it to the next."""
        step_all(self._groups, np.asarray(actions, dtype=np.int64), self._looks, self._tails)
        clock = self._groups.clocks
        seconds = self._groups.groups["now_s"] - clock["since_s"]
        interval = Interval(
            seconds=seconds,
            horizon_s=clock["horizon_s"],
            work_s=clock["work_s"],
            behind_s=clock["behind_s"],
            reference_work_s=self._reference_rate * seconds,
            invalid=clock["invalid"],
        )
        rewards = np.asarray(self.reward(interval), dtype=np.float64)
        over = clock["over"] == 1
        info: Info = {"invalid_action": clock["invalid"] == 1, "_invalid_action": self._all}
        if over.any() and not self.autoreset:
            info.update(self._summary(over))
        elif over.any():
            info["final_obs"], info["_final_obs"] = self._observation(), over
            info["final_info"], info["_final_info"] = self._summary(over), over
            which = np.flatnonzero(over)
            self._begin(which, [self._draw(e) for e in which])
        info.update(self._info())
        return self._observation(), rewards, over, np.zeros(self.num_envs, dtype=np.bool_), info

    def action_masks(self) -> NDArray[np.bool_]:
        """(E, A) True where a choice may be made, of all groups at once; sb3-contrib's name for it."""
        return self._looks.mask.astype(np.bool_)

    def render(self) -> Any:
        """One frame a group: an (H, W, 3) array (`rgb_array`) or a text (`ansi`)."""
        if self.render_mode is None:
            raise InputError("render: the environment was made without a render_mode")
        draw = text if self.render_mode == "ansi" else picture
        return tuple(draw(self._groups, e, self._model.share) for e in range(self.num_envs))

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        """Give every group a source of seeds of its own."""
        if seed is None or isinstance(seed, int | np.integer):
            first = self.np_random_seed if seed is None else int(seed)
            super().reset(seed=first)
            seeds: list[int | None] = [None if first is None else first + e for e in range(self.num_envs)]
        else:
            seeds = [*seed]
        if len(seeds) != self.num_envs:
            raise InputError(f"seed: must be a number or {self.num_envs} of them, not {len(seeds)}")
        self._draws = [seeding.np_random(given)[0] for given in seeds]

    def _draw(self, e: int) -> int:
        return int(self._draws[e].integers(FIRST_DRAWN_SEED, 2**31))

    def _begin(self, which: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Start groups anew and bring them to their first decision."""
        for e, seed in zip(which.tolist(), seeds, strict=True):
            load_group(self._groups, e, self.generator.group(seed), self._model)
            self._seeds[e] = seed
            if self.reward.reference is not None:
                begin(self._groups, e)
                follow_round_robin(self._groups, e, "migrate" in self.reward.reference, self._tails)
                clock = self._groups.clocks[e]
                self._reference_rate[e] = clock["all_work_s"] / clock["horizon_s"]
            ask_first(self._groups, e, self._looks, self._tails)

    def _observation(self) -> Observation:
        return {name: column.copy() for name, column in self._looks._asdict().items()}

    def _info(self) -> Info:
        return {"stream_seed": self._seeds.copy(), "_stream_seed": self._all}

    def _summary(self, over: NDArray[np.bool_]) -> Info:
        """Figures of the episodes that are over."""
        figures: Info = {"stream_seed": self._seeds.copy(), **figures_of(self._groups)}
        return {**figures, **{f"_{name}": over for name in figures}}


def figures_of(groups: Groups) -> dict[str, NDArray[Any]]:
    """Of every group until now: dollars, T_solo hours done, dollars per work-hour, share of members that keep their SLO, the
    largest slowdown over its SLO, decisions and migrations. A slowdown counts whole iterations; one without any has none."""
    clock, now_s = groups.clocks, groups.groups["now_s"]
    work_h = clock["all_work_s"] / 3600
    usd = clock["usd_per_hour"] * now_s / 3600
    solo_s, ended_s = groups.runners["solo_s"], groups.runners["ended_s"]
    there = np.arange(groups.members.shape[1]) < groups.groups["n"][:, None]
    over_slo = np.where(solo_s > 0, ended_s / np.maximum(solo_s, 1e-9), np.inf) / np.maximum(groups.members["slo"], 1e-9)
    return {
        "cost_usd": usd,
        "work_h": work_h,
        "usd_per_work_hour": usd / np.maximum(work_h, 1e-9),
        "slo_attainment": np.sum(there & (over_slo <= 1 + 1e-9), axis=1) / np.maximum(groups.groups["n"], 1),
        "worst_over_slo": np.where(there, over_slo, 0.0).max(axis=1),
        "iterations": np.where(there, groups.runners["iteration"], 0).sum(axis=1),
        "decisions": clock["decisions"].copy(),
        "tails_migrated": clock["migrations"].copy(),
    }


def load_group(groups: Groups, e: int, group: Group, model: TailModel) -> None:
    """Write a group and all its luck into row `e`.

    Raises:
        InputError: more members, nodes or iterations than the tables hold.
    """
    room, nodes, most = groups.members.shape[1], groups.last.shape[1], groups.luck.shape[3]
    if len(group.jobs) > room or group.rollout_nodes >= nodes:
        raise InputError(f"group: has more than the generator's {room} members or {nodes - 1} rollout nodes")
    groups.groups["n"][e] = len(group.jobs)
    groups.clocks["horizon_s"][e], groups.clocks["usd_per_hour"][e] = group.horizon_s, group.usd_per_hour
    for k, (job, pins) in enumerate(zip(group.jobs, group.pins, strict=True)):
        training_s = job.training_s(group.training_nodes)
        member, runner = groups.members[e, k], groups.runners[e, k]
        member["nodes"] = sum(1 << (node + 1) for node in pins)
        member["planned_rollout_s"], member["planned_training_s"] = job.rollout.worst_case_s, training_s
        member["sync_s"], member["slo"] = job.sync_s, job.slo
        runner["base_rollout_s"], runner["base_training_s"] = job.rollout.worst_case_s, training_s
        for name, switch in (("rollout", job.rollout.switch), ("training", job.training.switch)):
            runner[f"{name}_warm_s"], runner[f"{name}_cold_s"] = switch.warm_s, switch.cold_s
        luck = Durations(job, group.seed, model, MIGRATES_AT)
        alone_s = 0.0
        while alone_s < group.horizon_s and len(luck.rollout) < most:
            luck.extend()
            alone_s = sum(luck.rollout) * job.rollout.worst_case_s + sum(luck.training) * training_s
        if alone_s < group.horizon_s:
            raise InputError(f"group: {job.id} can do more than the generator's {most} iterations until the horizon")
        columns = luck.rollout, luck.training, luck.threshold, luck.stretch
        groups.luck[e, k, :, : min(most, len(luck.rollout))] = [column[:most] for column in columns]


def _unit(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, np.float32)
