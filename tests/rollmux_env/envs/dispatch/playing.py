"""The same group in the environment's arrays and in the event replay."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.events import Departed, Placement, isolated
from rollmux_env.cluster.plan import Place
from rollmux_env.envs.dispatch.group import Group
from rollmux_env.envs.dispatch.steps import Tails, begin
from rollmux_env.envs.dispatch.tables import TRAINING_POOL, Groups, group_tables
from rollmux_env.envs.dispatch.vector import load_group
from rollmux_env.replay.event import replay_events
from rollmux_env.scenario import Scenario
from rollmux_env.timing.tail import TailModel

MODEL = TailModel()
TAILS = Tails(MODEL.share, MODEL.rate, MODEL.move_s)


class Pinned:
    """A placement policy that puts a group's jobs where the group has them."""

    keeps_slo = False

    def __init__(self, group: Group) -> None:
        self._group = group

    def decide(self, state, event):
        if isinstance(event, Departed):
            return ()
        k = [job.id for job in self._group.jobs].index(event.job.id)
        if k == 0:
            return (Place(event.job.id, isolated(event.job)),)
        known = {node for pins in self._group.pins[:k] for node in pins}
        pins = self._group.pins[k]
        old = tuple(node for node in pins if node in known)
        return (Place(event.job.id, Placement(state.group_list()[0].id, old, len(pins) - len(old))),)


def in_order(group: Group) -> Group:
    """The group with its rollout nodes numbered in the order in which members first need them, as a replay numbers them."""
    names: dict[int, int] = {}
    for pins in group.pins:
        for node in pins:
            names.setdefault(node, len(names))
    pins = tuple(tuple(sorted(names[node] for node in own)) for own in group.pins)
    return Group(group.cluster, group.jobs, pins, group.training_nodes, group.horizon_s, group.seed)


def replayed(group: Group, dispatch, tails: TailModel = MODEL):
    """Spans (job, phase, iteration, nodes, start, end, switch, share) of the event replay that end before the horizon."""
    scenario = Scenario(version=1, cluster=group.cluster, jobs=group.jobs)
    run = replay_events(scenario, Pinned(group), dispatch, group.seed, check=True, keep_phases=True, tails=tails)
    return sorted(
        (p.job_id, p.phase, p.iteration, p.nodes, *(round(x, 6) for x in (p.start_s, p.end_s, p.switch_s)), p.share)
        for p in run.phases
        if p.end_s < group.horizon_s - 1
    )


def loaded(group: Group) -> Groups:
    """The group as row 0 of its own tables, with room for all its spans, begun."""
    groups = group_tables(1, len(group.jobs), group.rollout_nodes + 1, 1024, spans=20_000)
    load_group(groups, 0, group, MODEL)
    begin(groups, 0)
    return groups


def spans_of(group: Group, groups: Groups):
    """The same of the arrays."""
    spans = groups.history[0, : groups.clocks["spans"][0]]
    found = []
    for span in spans:
        what = {1: "rollout", 2: "training", 3: "tail"}[int(span["what"])]
        mask = int(span["nodes"])
        nodes = (
            tuple(range(group.training_nodes))
            if mask == TRAINING_POOL
            else tuple(np.flatnonzero([mask >> b & 1 for b in range(1, 62)]).tolist())
        )
        times = (round(float(span[name]), 6) for name in ("start_s", "end_s", "switch_s"))
        if span["end_s"] < group.horizon_s - 1:
            found.append((group.jobs[span["member"]].id, what, int(span["iteration"]), nodes, *times, float(span["share"])))
    return sorted(found)
