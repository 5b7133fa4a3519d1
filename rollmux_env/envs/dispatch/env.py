"""The dispatch environment, with many parallel groups."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.envs import checks
from rollmux_env.envs.base import BaseEnv, BaseVectorEnv, Info
from rollmux_env.envs.dispatch.dynamics import ask, begin, follow_round_robin, step_all
from rollmux_env.envs.dispatch.generator import Generator, RandomGroups, checked
from rollmux_env.envs.dispatch.observation import observed
from rollmux_env.envs.dispatch.reward import Interval, Reference, Reward, Work
from rollmux_env.envs.dispatch.types import MIGRATION, MOST_AHEAD, Groups, SimulatedGroup, TailParameters, group_table
from rollmux_env.envs.dispatch.viewer import picture, text
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import Durations
from rollmux_env.timing.tail import TailModel
from rollmux_env.user_code import GENERATOR, guarded, read_only
from rollmux_env.validation_errors import describe


class DispatchVectorEnv(BaseVectorEnv):
    """`RollMux/Dispatch-v0`, natively vectorised. `DispatchEnv` describes the environment and is the case of one group.

    Args:
        num_envs: Number of parallel groups.
        generator: Source of the groups, as for `DispatchEnv`.
        reward: Reward function, as for `DispatchEnv`.
        tails: Model of when responses of a rollout finish, as for `DispatchEnv`.
        render_mode: Render mode, as for `DispatchEnv`.
        autoreset_mode: When a new episode begins in a group that is over, as for `BaseVectorEnv`.
    """

    time_limited = True

    def __init__(
        self,
        num_envs: int = 1,
        generator: Generator | None = None,
        reward: Reward | None = None,
        tails: TailModel | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        if tails is not None and not isinstance(tails, TailModel):
            raise InputError(f"tails: must be a TailModel, not {describe(tails)}")
        self.generator: Generator = RandomGroups() if generator is None else checked(generator)
        members, stale = self.generator.members, self.generator.stale
        super().__init__(num_envs, *observed(members, stale), Work() if reward is None else reward, render_mode, autoreset_mode)
        self._model = TailModel() if tails is None else tails
        self._tails = TailParameters(MIGRATION.share, self._model.rate(MIGRATION.share), self._model.move_s)
        self._groups = group_table(num_envs, members, self.generator.nodes + 1, self.generator.iterations, stale)
        self._against = checks.reference_of(self.reward, get_args(Reference))
        self._reference_rate = np.zeros(num_envs)  # seconds of work per second

    @property
    def groups(self) -> Groups:
        """Current state of the groups, in tables with a row for each environment. For reading only.

        `Groups` in `rollmux_env/envs/dispatch/types.py` describes them. The rows are overwritten by the next `step`.
        """
        return self._groups

    def _advance(self, actions: NDArray[np.int64]) -> None:
        step_all(self._groups, actions, self._observations, self._tails)

    def _views(self) -> dict[str, NDArray[Any]]:
        clock = self._groups.clocks
        return {name: read_only(clock[name]) for name in ("horizon_s", "work_s", "behind_s", "invalid")}

    def _interval(self) -> Interval:
        seconds = self._groups.groups["now_s"] - self._groups.clocks["decided_s"]
        return Interval(seconds=seconds, reference_work_s=self._reference_rate * seconds, **self._passed)

    def _over(self) -> NDArray[np.bool_]:
        over: NDArray[np.bool_] = self._groups.clocks["over"] == 1
        return over

    def _text(self, s: int) -> str:
        return text(self._groups, s, MIGRATION.share)

    def _picture(self, s: int) -> NDArray[np.uint8]:
        return picture(self._groups, s, MIGRATION.share)

    def _start(self, s: int, seed: int) -> None:
        group = guarded(self.generator.group, GENERATOR)(seed)
        if not isinstance(group, SimulatedGroup):
            raise InputError(f"generator: group({seed}) must be a SimulatedGroup, not {describe(group)}")
        load_group(self._groups, s, group, self._model)
        if self._against is not None:
            begin(self._groups, s)
            follow_round_robin(self._groups, s, "migrate" in self._against, self._tails)
            clock = self._groups.clocks[s]
            self._reference_rate[s] = clock["all_work_s"] / clock["horizon_s"]

    def _ask(self, which: NDArray[np.int64]) -> None:
        for e in which:
            begin(self._groups, e)
            ask(self._groups, e, self._observations, self._tails)
        self._groups.clocks["all_work_s"][which] = self._groups.clocks["work_s"][which]

    def _figures(self) -> Info:
        return figures_of(self._groups)


class DispatchEnv(BaseEnv):
    """## Description

    Jobs of RL post-training share the nodes of one co-execution group. Each job is a cycle: a rollout on all rollout nodes to which
    it is pinned, a training on all of the group's training nodes, a sync, and again. The duration of every phase is sampled. A node
    runs one phase at a time, so jobs wait for each other. A dispatch policy decides which waiting phase gets a free node next. It
    also decides whether a rollout with 80% finished responses moves the rest to a share of its nodes, so that the next rollout may
    use the others (long-tail migration). One episode is one group until a horizon; see docs/reference/dispatch.md.

    The environment is the event replay itself: the same choices start the same phases at the same times.

    ## Action Space

    `Discrete(members + 1)`, with members in order of admission. If the generator may draw stale members, `Discrete(2 * members +
    1)`.

    | Action | Meaning |
    |---|---|
    | 0 | wait until a phase ends |
    | k + 1 | start the phase for which member k waits; or migrate the tail of its rollout if that is past the threshold |
    | members + k + 1 | start the training of member k if it is stale; its rollout has the row above |

    `action_masks()`, also `observation["mask"]`, states which actions may be chosen: a phase whose nodes are all free; a tail whose
    nodes hold no other tail and are needed by a waiting rollout; waiting while a phase runs. A phase that was overtaken as often as
    the group has members is overdue. Its nodes are kept for it, and waiting is masked once they are free. So no sequence of choices
    starves a job. Decisions with only one choice are skipped. A masked action is replaced by that of strict round robin with
    migration, `info["invalid_action"]` is True, and the reward subtracts a penalty.

    ## Observation Space

    A `Dict` of float32 boxes within [-1, 1]; `rollmux_env.envs.dispatch.observation` names every column.

    | Key | Shape | Content |
    |---|---|---|
    | `job` | (5,) | the whole group: members, loads and the longest iteration by expected seconds, relative to plan |
    | `candidates` | (members + 1, 23) | each action: kind, turn, expected seconds, slack to the SLO, rivals for its nodes |
    | `cluster` | (8,) | waiting phases, running phases and their remaining time, the least and the mean slack |
    | `mask` | (members + 1,), int8 | 1 for actions that may be chosen |

    If members may be stale, there are as many rows as actions, with 27 columns each, 6 of `job` and 9 of `cluster`. The additional
    columns show the staleness of each member, the rollouts it has not trained on yet, its running phase on the other side, and
    whether that waits for this phase.

    Expected seconds are means over the member's phases so far, and worst cases before the first one. Durations that have not
    happened yet are not observed, and neither is the horizon.

    ## Rewards

    `rollmux_env.envs.dispatch.reward.Work()`: work done since the last decision, minus the seconds by which members fell behind
    their SLOs, divided by the horizon. A phase that ended does as much work as its planned seconds in T_solo, a training also those
    of its sync. For a stale member, a training that ended does the work of an iteration. If SLOs are kept, the return is the number
    of jobs that the group runs as if each were alone, and dollars per work-hour are the group's $/h divided by it.
    `Work(reference="round-robin")` subtracts what strict round robin does on average in the same time of the same group. A masked
    action costs 0.01.

    ## Starting State

    All members are ready for their first rollout, and every node is free and cold. `reset(seed=...)` seeds the draws of groups.
    `reset(options={"stream_seed": 7})` selects the group `generator.group(7)`. Seeds below 65536 are never drawn, so they are free
    for evaluation.

    ## Episode End

    Truncates at the group's horizon, because nothing in the group ends there and the horizon is not observed. A learner should
    therefore bootstrap from the value of the last observation. Never terminates. `info` then has `cost_usd`, `work_h`,
    `usd_per_work_hour`, `slo_attainment`, `worst_over_slo`, `iterations`, `decisions` and `tails_migrated`.

    ## Arguments

    | Argument | Default | Meaning |
    |---|---|---|
    | `generator` | `RandomGroups()` | source of the groups: a `rollmux_env.envs.dispatch.generator.Generator` |
    | `reward` | `Work()` | a `rollmux_env.envs.dispatch.reward.Reward` |
    | `tails` | `TailModel()` | model of when responses of a rollout finish: a `rollmux_env.timing.tail.TailModel` |
    | `render_mode` | `None` | `rgb_array` or `ansi` |

    ```python
    import gymnasium, rollmux_env.envs
    from rollmux_env.envs.dispatch.generator import RandomGroups

    env = gymnasium.make("RollMux/Dispatch-v0", generator=RandomGroups("spatial", skew=0.5))
    ```

    ## Version History

    * v0: initial version.
    """

    vector_class = DispatchVectorEnv


def figures_of(groups: Groups) -> dict[str, NDArray[Any]]:
    """Return measured values of every group from its start until now, by name, each of shape (groups,).

    They are dollars, T_solo hours done, dollars per work-hour, share of members that keep their SLO, largest slowdown over its SLO,
    iterations, decisions and migrated tails. A slowdown counts whole iterations, and is infinite before the first one has ended.
    """
    clock, now_s = groups.clocks, groups.groups["now_s"]
    work_h = clock["all_work_s"] / 3600
    usd = clock["usd_per_hour"] * now_s / 3600
    solo_s, ended_s = groups.progress["solo_s"], groups.progress["ended_s"]
    is_member = np.arange(len(groups.members[0])) < groups.groups["n"][:, None]
    over_slo = np.where(solo_s > 0, ended_s / np.maximum(solo_s, 1e-9), np.inf) / np.maximum(groups.members["slo"], 1e-9)
    return {
        "cost_usd": usd,
        "work_h": work_h,
        "usd_per_work_hour": usd / np.maximum(work_h, 1e-9),
        "slo_attainment": np.sum(is_member & (over_slo <= 1 + 1e-9), axis=1) / np.maximum(groups.groups["n"], 1),
        "worst_over_slo": np.where(is_member, over_slo, 0.0).max(axis=1),
        "iterations": np.where(is_member, groups.progress["iteration"], 0).sum(axis=1),
        "decisions": clock["decisions"].copy(),
        "tails_migrated": clock["migrations"].copy(),
    }


def load_group(groups: Groups, e: int, group: SimulatedGroup, model: TailModel) -> None:
    """Write a group and all its sampled durations into a row.

    Args:
        groups: Tables of the environment, written.
        e: Number of the row.
        group: The group.
        model: Model of when responses of a rollout finish.

    Raises:
        InputError: The group has more members, nodes or iterations than the tables hold, or an unexpected stale job.
    """
    room, nodes, most = len(groups.members[e]), len(groups.last[e]), len(groups.durations[e, 0, 0])
    if len(group.jobs) > room or group.rollout_nodes >= nodes:
        raise InputError(f"group: has more than the generator's {room} members or {nodes - 1} rollout nodes")
    groups.groups["n"][e] = len(group.jobs)
    groups.clocks["horizon_s"][e], groups.clocks["usd_per_hour"][e] = group.horizon_s, group.usd_per_hour
    for k, (job, pins) in enumerate(zip(group.jobs, group.pins, strict=True)):
        if job.staleness and len(groups.syncs[e, 0]) < MOST_AHEAD:
            raise InputError(f"group: {job.id} is stale, and the generator says that no job is")
        training_s = job.training_s(group.training_nodes)
        member, progress = groups.members[e, k], groups.progress[e, k]
        member["nodes"] = sum(1 << (node + 1) for node in pins)
        member["planned_rollout_s"], member["planned_training_s"] = job.rollout.worst_case_s, training_s
        member["sync_s"], member["slo"], member["staleness"] = job.sync_s, job.slo, job.staleness
        progress["base_s"] = job.rollout.worst_case_s, training_s
        progress["warm_s"] = job.rollout.switch.warm_s, job.training.switch.warm_s
        progress["cold_s"] = job.rollout.switch.cold_s, job.training.switch.cold_s
        durations = Durations(job, group.seed, model, MIGRATION)
        while not (enough := _last_until(job, training_s, durations, group.horizon_s)) and len(durations.rollout) < most:
            durations.extend()
        if not enough:
            raise InputError(f"group: {job.id} can do more than the generator's {most} iterations until the horizon")
        columns = durations.rollout, durations.training, durations.threshold, durations.stretch
        groups.durations[e, k, :, : min(most, len(durations.rollout))] = [column[:most] for column in columns]


def _last_until(job: Job, training_s: float, durations: Durations, horizon_s: float) -> bool:
    """Return whether the drawn durations last until the horizon.

    The two phases of a stale job overlap, so only the slower side counts for it.
    """
    if not job.staleness:
        return sum(durations.rollout) * job.rollout.worst_case_s + sum(durations.training) * training_s >= horizon_s
    whole = max(0, len(durations.rollout) - 1 - job.staleness)
    return max(sum(durations.rollout[:whole]) * job.rollout.worst_case_s, sum(durations.training[:whole]) * training_s) >= horizon_s
