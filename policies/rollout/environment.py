"""A rollout policy as an agent of `RollMux/Rollout-v0`: its orders are translated to actions of the environment."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from policies.rollout.learned import Learned
from policies.rollout.places import make_at
from rollmux_env.envs.rollout.actions import shifted
from rollmux_env.envs.rollout.dynamics import rollout_of
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.types import ETA, KEEP, REBALANCE, RESIZE, SIZES, SPARE, TAIL, RolloutTables
from rollmux_env.errors import InputError
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.rollout_records import rollout_table
from rollmux_env.kernel.tables import Ints
from rollmux_env.rollout.checks import WHO, begin_job, check_wake
from rollmux_env.rollout.fleet import ObservedFleet, Orders
from rollmux_env.rollout.policy import JobPolicy, RolloutPolicy, Round, Wake
from rollmux_env.rollout.setting import Setting
from rollmux_env.user_code import guarded


class PolicyAgent:
    """Plays every job of an environment with a rollout policy.

    Args:
        spec: Name of the policy, with options.
        env: Environment whose decisions the agent takes, from a reset on.

    Raises:
        InputError: There is no such policy, or it does something for which the environment has no action.
    """

    def __init__(self, spec: str, env: RolloutVectorEnv) -> None:
        self._policy, self._env = make_at(spec, "environment"), env
        self._players: list[_Player | None] = [None] * env.num_envs

    def actions(self, observation: Any) -> Ints:
        """Return the actions for the current decisions, shape (E,)."""
        jobs = self._env.jobs
        actions = np.zeros(self._env.num_envs, np.int64)
        for e in range(self._env.num_envs):
            job, mask = jobs.jobs[e], observation["mask"][e]
            if job["over"]:
                continue
            if isinstance(self._policy, Learned):
                actions[e] = self._policy.best_row(Observations(**observation), e)
                continue
            player = self._players[e]
            if player is None or job["decisions"] == 0:
                player = self._players[e] = _Player(self._policy, self._env.setting(e))
            row = player.row(jobs, e, mask)
            actions[e] = row if mask[row] else KEEP  # a job may be forbidden to move its tail
        return actions


class _Player:
    """Plays one job."""

    def __init__(self, policy: RolloutPolicy, setting: Setting) -> None:
        self._own: JobPolicy = begin_job(policy, setting)
        self._setting = setting
        due = guarded(self._own.rounds.next, WHO)()
        self._spare = len(due.prompts) > setting.prompts
        times = ETA if self._spare else 1.0
        if (len(due.prompts), due.responses) != (ceil(times * setting.prompts), ceil(times * setting.responses)):
            raise _no_action(f"launches {len(due.prompts)} prompts with {due.responses} responses each")
        self._wake = Wake()
        self._began = False  # whether a rollout has begun

    def row(self, jobs: RolloutTables, e: int, mask: Any) -> int:
        job = jobs.jobs[e]
        if not job["launching"]:
            return self._act(jobs, e)
        launch = SPARE if self._spare and mask[SPARE] else KEEP
        if job["resized"]:
            return launch
        if self._began:
            guarded(self._own.control.end, WHO)(_observe(jobs, e))
        self._began = True
        orders = self._begin(job, launch == SPARE)
        if orders.size is not None and orders.size != SIZES[job["size"]]:
            return _resize(orders.size)
        return launch

    def _begin(self, job: Any, spare: bool) -> Orders:
        prompts, responses = (int(job[f"spare_{name}"] if spare else job[name]) for name in ("prompts", "responses"))
        due = Round(bool(job["long"]), tuple(range(prompts)), responses, int(job["prompts"]), int(job["responses"]))
        size = SIZES[job["configured"]]
        rollout = rollout_table(prompts * responses, int(job["gpus"]) // size)
        rollout.responses["prompt"], rollout.responses["group"] = job["prompt_tokens"], np.arange(prompts * responses) // responses
        fleet = ObservedFleet(rollout, size, 0.0, True)
        self._wake = check_wake(guarded(self._own.control.begin, WHO)(fleet, due), fleet, self._setting)
        replicas = int(job["gpus"]) // (fleet.orders.size or size)
        if fleet.orders.replica != {k: k % replicas for k in range(prompts * responses)}:
            raise _no_action("launches responses otherwise than in turns")
        return fleet.orders

    def _act(self, jobs: RolloutTables, e: int) -> int:
        finished = int(jobs.order[e, -1])
        while self._wake.finished is not None and finished >= self._wake.finished:
            fleet = _observe(jobs, e)
            self._wake = check_wake(guarded(self._own.control.act, WHO)(fleet), fleet, self._setting)
            if fleet.orders.aborted:
                raise _no_action("drops responses of its own choice")
            if fleet.orders.size is not None:
                return _resize(fleet.orders.size)
            if fleet.orders.replica:
                return _row_of(jobs, e, fleet.orders.replica)
        return KEEP


def _row_of(jobs: RolloutTables, e: int, replica: dict[int, int]) -> int:
    """Return the action that moves responses to the given replicas."""
    for row in (TAIL, REBALANCE):
        which, where = shifted(jobs.jobs[e], rollout_of(jobs, e), jobs.quantiles[e], row)
        if replica == dict(zip(which.tolist(), where.tolist(), strict=True)):
            return row
    raise _no_action("moves responses otherwise than to half of the replicas, or evenly")


def _resize(size: int) -> int:
    """Return the action that changes the replicas to a size."""
    if size not in SIZES:
        raise _no_action(f"has replicas of {size} GPUs")
    return RESIZE + SIZES.index(size)


def _no_action(what: str) -> InputError:
    return InputError(f"rollout policy: {what}, and no action of RollMux/Rollout-v0 does")


def _observe(jobs: RolloutTables, e: int) -> ObservedFleet:
    job, rollout = jobs.jobs[e], rollout_of(jobs, e)
    rollout = rollout._replace(replicas=rollout.replicas[: job["live"]], batch=rollout.batch[: job["live"]])
    return ObservedFleet(rollout, SIZES[job["size"]], float(job["now_s"]), True)
