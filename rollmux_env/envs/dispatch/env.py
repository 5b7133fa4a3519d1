"""The dispatch environment: many groups side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.envs.base import BaseVectorEnv, Info, StepResult
from rollmux_env.envs.dispatch.dynamics import begin
from rollmux_env.envs.dispatch.generator import Generator, RandomGroups
from rollmux_env.envs.dispatch.observation import observation_space, observation_table
from rollmux_env.envs.dispatch.reward import Interval, Reward, Work
from rollmux_env.envs.dispatch.step import ask, follow_round_robin, step_all
from rollmux_env.envs.dispatch.types import MIGRATION, MOST_AHEAD, Group, Groups, TailParameters, group_table
from rollmux_env.envs.dispatch.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import Durations
from rollmux_env.timing.tail import TailModel


class DispatchVectorEnv(BaseVectorEnv):
    """`RollMux/Dispatch-v0`, natively vectorised. `DispatchEnv` describes the environment; it is one of these with one group.

    What differs from it: everything has a leading axis of `num_envs`, and autoreset is as `BaseVectorEnv` says.

    Args:
        num_envs: groups side by side.
        autoreset: start a finished group anew in the same step.
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
        self.generator: Generator = RandomGroups() if generator is None else generator
        self.reward: Reward = Work() if reward is None else reward
        shown = self.generator.members, self.generator.stale
        super().__init__(num_envs, observation_table(num_envs, *shown), observation_space(*shown), render_mode, autoreset)
        self._model = TailModel() if tails is None else tails
        self._tails = TailParameters(MIGRATION.share, self._model.rate(MIGRATION.share), self._model.move_s)
        sizes = self.generator.members, self.generator.nodes + 1, self.generator.iterations
        self._groups = group_table(num_envs, *sizes, self.generator.stale)
        self._reference_rate = np.zeros(num_envs)  # seconds of work a second

    @property
    def groups(self) -> Groups:
        """What is going on in each group: tables with a row per environment, to read and not to change.

        `Groups` in `rollmux_env/envs/dispatch/types.py` describes them. The rows are overwritten by the next `step`.
        """
        return self._groups

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Carry out one decision in every group and bring it to the next."""
        step_all(self._groups, np.asarray(actions, dtype=np.int64), self._observations, self._tails)
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
        return self._finish_step(rewards, clock["over"] == 1, {"invalid_action": clock["invalid"] == 1})

    def render(self) -> Any:
        """One frame a group: an (H, W, 3) array (`rgb_array`) or a text (`ansi`)."""
        if self.render_mode is None:
            raise InputError("render: the environment was made without a render_mode")
        draw = text if self.render_mode == "ansi" else picture
        return tuple(draw(self._groups, e, MIGRATION.share) for e in range(self.num_envs))

    def _start(self, s: int, seed: int) -> None:
        load_group(self._groups, s, self.generator.group(seed), self._model)
        if self.reward.reference is not None:
            begin(self._groups, s)
            follow_round_robin(self._groups, s, "migrate" in self.reward.reference, self._tails)
            clock = self._groups.clocks[s]
            self._reference_rate[s] = clock["all_work_s"] / clock["horizon_s"]

    def _ask(self, which: NDArray[np.int64]) -> None:
        for e in which:
            begin(self._groups, e)
            ask(self._groups, e, self._observations, self._tails)
        self._groups.clocks["all_work_s"][which] = self._groups.clocks["work_s"][which]

    def _figures(self) -> Info:
        return figures_of(self._groups)


def figures_of(groups: Groups) -> dict[str, NDArray[Any]]:
    """Of every group until now: dollars, T_solo hours done, dollars per work-hour, share of members that keep their SLO, the
    largest slowdown over its SLO, decisions and migrations. A slowdown counts whole iterations; one without any has none."""
    clock, now_s = groups.clocks, groups.groups["now_s"]
    work_h = clock["all_work_s"] / 3600
    usd = clock["usd_per_hour"] * now_s / 3600
    solo_s, ended_s = groups.progress["solo_s"], groups.progress["ended_s"]
    there = np.arange(groups.members.shape[1]) < groups.groups["n"][:, None]
    over_slo = np.where(solo_s > 0, ended_s / np.maximum(solo_s, 1e-9), np.inf) / np.maximum(groups.members["slo"], 1e-9)
    return {
        "cost_usd": usd,
        "work_h": work_h,
        "usd_per_work_hour": usd / np.maximum(work_h, 1e-9),
        "slo_attainment": np.sum(there & (over_slo <= 1 + 1e-9), axis=1) / np.maximum(groups.groups["n"], 1),
        "worst_over_slo": np.where(there, over_slo, 0.0).max(axis=1),
        "iterations": np.where(there, groups.progress["iteration"], 0).sum(axis=1),
        "decisions": clock["decisions"].copy(),
        "tails_migrated": clock["migrations"].copy(),
    }


def load_group(groups: Groups, e: int, group: Group, model: TailModel) -> None:
    """Write a group and all its sampled durations into row `e`.

    Raises:
        InputError: more members, nodes or iterations than the tables hold, or a stale job where they hold none.
    """
    room, nodes, most = groups.members.shape[1], groups.last.shape[1], groups.durations.shape[3]
    if len(group.jobs) > room or group.rollout_nodes >= nodes:
        raise InputError(f"group: has more than the generator's {room} members or {nodes - 1} rollout nodes")
    groups.groups["n"][e] = len(group.jobs)
    groups.clocks["horizon_s"][e], groups.clocks["usd_per_hour"][e] = group.horizon_s, group.usd_per_hour
    for k, (job, pins) in enumerate(zip(group.jobs, group.pins, strict=True)):
        if job.staleness and groups.syncs.shape[2] < MOST_AHEAD:
            raise InputError(f"group: {job.id} is stale, and the generator says that no job is")
        training_s = job.training_s(group.training_nodes)
        member, progress = groups.members[e, k], groups.progress[e, k]
        member["nodes"] = sum(1 << (node + 1) for node in pins)
        member["planned_rollout_s"], member["planned_training_s"] = job.rollout.worst_case_s, training_s
        member["sync_s"], member["slo"], member["staleness"] = job.sync_s, job.slo, job.staleness
        progress["base_rollout_s"], progress["base_training_s"] = job.rollout.worst_case_s, training_s
        for name, switch in (("rollout", job.rollout.switch), ("training", job.training.switch)):
            progress[f"{name}_warm_s"], progress[f"{name}_cold_s"] = switch.warm_s, switch.cold_s
        durations = Durations(job, group.seed, model, MIGRATION)
        while not (enough := _last_until(job, training_s, durations, group.horizon_s)) and len(durations.rollout) < most:
            durations.extend()
        if not enough:
            raise InputError(f"group: {job.id} can do more than the generator's {most} iterations until the horizon")
        columns = durations.rollout, durations.training, durations.threshold, durations.stretch
        groups.durations[e, k, :, : min(most, len(durations.rollout))] = [column[:most] for column in columns]


def _last_until(job: Job, training_s: float, durations: Durations, horizon_s: float) -> bool:
    """Whether a job cannot do all the iterations that were drawn until a time: a stale one trains what it sampled before, so that
    only one of its two phases counts."""
    if not job.staleness:
        return sum(durations.rollout) * job.rollout.worst_case_s + sum(durations.training) * training_s >= horizon_s
    whole = max(0, len(durations.rollout) - 1 - job.staleness)
    return max(sum(durations.rollout[:whole]) * job.rollout.worst_case_s, sum(durations.training[:whole]) * training_s) >= horizon_s
