"""A group under any dispatch policy in the event replay, with the same figures as the environment."""

from __future__ import annotations

from rollmux_env.cluster.events import Arrived, Event, Placement
from rollmux_env.cluster.plan import Place, Plan
from rollmux_env.cluster.state import State
from rollmux_env.envs.dispatch.types import SimulatedGroup
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.run import Run
from rollmux_env.replay.sampling import Durations
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.view import DispatchPolicy
from rollmux_env.timing.tail import TailModel


def replay_group(group: SimulatedGroup, dispatch: DispatchPolicy, tails: TailModel | None = None) -> Run:
    """Replay a group and keep its phases. A member leaves after the iteration in which its `duration_s` ends, if it has one."""
    scenario = Scenario(version=1, cluster=group.cluster, jobs=group.jobs)
    return replay_events(
        scenario, _PinnedPlacement(group), dispatch, group.seed, watch=Watch(check=True, keep_phases=True), tails=tails
    )


def figures(group: SimulatedGroup, run: Run) -> dict[str, float]:
    """Return the environment's figures of an episode.

    They are `cost_usd`, `work_h`, `usd_per_work_hour`, `slo_attainment` and `worst_over_slo`.

    Args:
        group: The group.
        run: Result of `replay_group`, with jobs that stay at least until the horizon.
    """
    work_s, over_slo = 0.0, []
    for job in group.jobs:
        rollout_s, training_s = job.rollout.worst_case_s, job.training_s(group.training_nodes) + job.sync_s
        if job.staleness:  # an iteration counts when its training ends, with the seconds that it takes alone
            rollout_s, training_s = 0.0, alone_s(rollout_s, training_s - job.sync_s, job.sync_s, job.staleness)
        whole = []
        for (trains, _), end_s in _ends(run, job.id).items():
            if end_s <= group.horizon_s:
                work_s += training_s if trains else rollout_s
                whole += [end_s + job.sync_s] if trains and end_s + job.sync_s <= group.horizon_s else []
        durations = Durations(job, group.seed)
        while len(durations.rollout) < len(whole):
            durations.extend()
        over_slo.append(max(whole) / durations.solo_s(len(whole)) / job.slo if whole else float("inf"))
    usd, work_h = group.usd_per_hour * group.horizon_s / 3600, work_s / 3600
    return {
        "cost_usd": usd,
        "work_h": work_h,
        "usd_per_work_hour": usd / max(work_h, 1e-9),
        "slo_attainment": sum(value <= 1 + 1e-9 for value in over_slo) / len(over_slo),
        "worst_over_slo": max(over_slo),
    }


def _ends(run: Run, job_id: str) -> dict[tuple[bool, int], float]:
    """Return the end of each phase of a job, by whether it is a training and by iteration. Only a rollout's last span counts."""
    ends: dict[tuple[bool, int], float] = {}
    for phase in run.phases:
        if phase.job_id == job_id:
            key = phase.phase == "training", phase.iteration
            ends[key] = max(ends.get(key, 0.0), phase.end_s)
    return ends


class _PinnedPlacement:
    """A placement policy that gives the jobs of a group their given pins."""

    keeps_slo = False

    def __init__(self, group: SimulatedGroup) -> None:
        self._group = group
        self._names = [job.id for job in group.jobs]

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Arrived):
            return ()
        k = self._names.index(event.job.id)
        if k == 0:
            return (Place(event.job.id, Placement(None, (), event.job.rollout.nodes, self._group.training_nodes)),)
        known = 1 + max(node for pins in self._group.pins[:k] for node in pins)
        old = tuple(node for node in self._group.pins[k] if node < known)
        new = len(self._group.pins[k]) - len(old)
        return (Place(event.job.id, Placement(state.group_list()[0].id, old, new)),)
