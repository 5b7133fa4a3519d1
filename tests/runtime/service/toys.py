"""Policies and jobs for tests of services."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import rollmux
from policies.api import Arrived, Move, Place, Placement, Ticked, Wait, isolated, may_move
from tests.runtime.execution.toy_jobs import WithWorkers


class MoveOne:
    """Places jobs alone while there are nodes, then beside the last group's; and once moves the job `moved`."""

    keeps_slo = False
    wakes_every_s = 0.3

    def __init__(self) -> None:
        self.moved = False

    def decide(self, state: Any, event: Any) -> Any:
        groups = state.group_list()
        if isinstance(event, Arrived):
            alone = state.has_room(1, 1)
            place = isolated(event.job) if alone else Placement(groups[-1].id, groups[-1].rollout_nodes[:1])
            return (Place(event.job.id, place),)
        if isinstance(event, Ticked) and not self.moved and state.knows("moved") and state.is_running("moved"):
            others = [group for group in groups if "moved" not in group.jobs]
            if others and state.iterations_done("moved") > 1 and may_move(state, "moved"):
                self.moved = True
                return (Move("moved", Placement(others[0].id, others[0].rollout_nodes[:1])),)
        return ()


class Never:
    """Places nobody where nodes are limited, as all real ones are."""

    keeps_slo = True

    def decide(self, state: Any, event: Any) -> Any:
        if not isinstance(event, Arrived):
            return ()
        job = event.job
        return (Wait(job.id),) if state.cluster.rollout.max_nodes else (Place(job.id, isolated(job)),)


class Steady(WithWorkers):
    """Its phases take half a second, however long its workers need to start."""

    def load(self, phase: str) -> None:
        super().load(phase)
        rollmux.runtime_hook.wait([worker.call("say") for worker in self.workers[phase]])

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        super().rollout()
        time.sleep(0.5)

    @rollmux.phase("train")
    def train(self) -> None:
        super().train()
        time.sleep(0.5)


class KilledOnce(WithWorkers):
    """The process of its worker is killed in its fourth training, if a file is still there."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)

    @rollmux.phase("train")
    def train(self) -> None:
        if rollmux.runtime_hook.iteration == 3 and self.file.exists():
            self.file.unlink()
            rollmux.runtime_hook.wait(self.workers["train"][0].call("die"))
        super().train()


class Slower:
    """Its rollouts take longer from an iteration on."""

    def __init__(self, rollout_s: float, later_s: float, at: int) -> None:
        self.rollout_s, self.later_s, self.at = rollout_s, later_s, at

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        time.sleep(self.rollout_s if rollmux.runtime_hook.iteration < self.at else self.later_s)

    @rollmux.phase("train")
    def train(self) -> None:
        time.sleep(0.05)
