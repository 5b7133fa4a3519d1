"""The same group in the environment's arrays and in the event replay."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.envs.dispatch.dynamics import begin
from rollmux_env.envs.dispatch.env import DispatchVectorEnv, load_group
from rollmux_env.envs.dispatch.replay import replay_group
from rollmux_env.envs.dispatch.types import MIGRATION, Groups, SimulatedGroup, TailParameters, group_table
from rollmux_env.kernel.dispatch.rows import TRAINING_POOL
from rollmux_env.scheduler.view import DispatchPolicy
from rollmux_env.timing.tail import TailModel

MODEL = TailModel()
TAILS = TailParameters(MIGRATION.share, MODEL.rate(MIGRATION.share), MODEL.move_s)
ROOM = 20_000  # spans

Span = tuple[Any, ...]  # (job, phase, iteration, nodes, start, end, switch, share)


def replayed(group: SimulatedGroup, dispatch: DispatchPolicy) -> list[Span]:
    """Spans (job, phase, iteration, nodes, start, end, switch, share) of the event replay that end before the horizon."""
    return sorted(
        (p.job_id, p.phase, p.iteration, p.nodes, *(round(x, 6) for x in (p.start_s, p.end_s, p.switch_s)), p.share)
        for p in replay_group(group, dispatch).phases
        if p.end_s < group.horizon_s - 1
    )


def loaded(group: SimulatedGroup) -> Groups:
    """The group as row 0 of its own tables, with room for all its spans, begun."""
    stale = any(job.staleness for job in group.jobs)
    groups = group_table(1, len(group.jobs), group.rollout_nodes + 1, 1024, stale, spans=ROOM)
    load_group(groups, 0, group, MODEL)
    begin(groups, 0)
    return groups


def with_room(env: DispatchVectorEnv, spans: int = ROOM) -> DispatchVectorEnv:
    """The environment with another room for the spans of its history; before its first reset."""
    history = group_table(env.num_envs, 1, 1, 1, stale=False, spans=spans).history
    env._groups = env.groups._replace(history=history)  # noqa: SLF001 (no user needs more than pictures show)
    return env


def spans_of(group: SimulatedGroup, groups: Groups, e: int = 0) -> list[Span]:
    """The same of row `e` of the arrays."""
    found = []
    for span in groups.history[e, : groups.clocks["spans"][e]]:
        mask = int(span["nodes"])
        nodes = tuple(range(group.training_nodes))
        if mask != TRAINING_POOL:
            nodes = tuple(np.flatnonzero([mask >> bit & 1 for bit in range(1, 62)]).tolist())
        times = [float(span[name]) for name in ("start_s", "end_s", "switch_s")]
        if times[0] < times[1] < group.horizon_s - 1:
            what = {1: "rollout", 2: "training", 3: "tail"}[int(span["what"])]
            times = [round(at_s, 6) for at_s in times]
            found.append((group.jobs[span["member"]].id, what, int(span["iteration"]), nodes, *times, float(span["share"])))
    return sorted(found)
