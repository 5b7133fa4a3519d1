"""Policies for tests of runs."""

from __future__ import annotations

from typing import Any

from policies.api import Arrived, Move, Place, Placement, Ticked, Wait, isolated, may_move


class MoveOnce:
    """Places jobs alone while there are nodes, then beside the last group's; and once moves the job `mover`."""

    keeps_slo = False
    wakes_every_s = 0.3
    mover = "mover"

    def __init__(self) -> None:
        self.moved = False

    def decide(self, state: Any, event: Any) -> Any:
        groups = state.group_list()
        if isinstance(event, Arrived):
            alone = state.has_room({event.job.id: isolated(event.job)})
            place = isolated(event.job) if alone else Placement(groups[-1].id, groups[-1].rollout_nodes[:1])
            return (Place(event.job.id, place),)
        if isinstance(event, Ticked) and not self.moved and state.knows(self.mover) and state.is_running(self.mover):
            others = [group for group in groups if self.mover not in group.jobs]
            if others and state.iterations_done(self.mover) > 1 and may_move(state, self.mover):
                self.moved = True
                return (Move(self.mover, Placement(others[0].id, others[0].rollout_nodes[:1])),)
        return ()


class Never:
    """Places nobody where nodes are limited, as all real ones are."""

    keeps_slo = True

    def decide(self, state: Any, event: Any) -> Any:
        if not isinstance(event, Arrived):
            return ()
        job = event.job
        return (Wait(job.id),) if state.cluster.pools["rollout"].max_nodes else (Place(job.id, isolated(job)),)
