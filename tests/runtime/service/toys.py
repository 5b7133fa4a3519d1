"""Policies and jobs for tests of services."""

from __future__ import annotations

import os
import signal
import subprocess
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
            alone = state.has_room({event.job.id: isolated(event.job)})
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
        return (Wait(job.id),) if state.cluster.pools["rollout"].max_nodes else (Place(job.id, isolated(job)),)


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


class Eats(Slower):
    """Takes more and more memory in its rollouts after the third, 3 GB at most."""

    def __init__(self) -> None:
        super().__init__(0.05, 0.05, 0)
        self.eaten: list[bytes] = []

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        while rollmux.runtime_hook.iteration > 2 and len(self.eaten) < 60:
            self.eaten.append(b"x" * 50_000_000)
            time.sleep(0.02)
        time.sleep(0.05)


class Leaves(Slower):
    """Leaves processes behind: one in a session of its own, one that was forked twice. Their ids go to a file."""

    def __init__(self, file: str, dies: bool = False) -> None:
        super().__init__(0.05, 0.05, 0)
        self.file, self.dies = Path(file), dies

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        if rollmux.runtime_hook.iteration != 1:
            return
        none = subprocess.DEVNULL
        pids = [subprocess.Popen(["sleep", "3000"], stdin=none, stdout=none, stderr=none, start_new_session=True).pid]
        read, write = os.pipe()
        if not (child := os.fork()):
            os.setsid()
            if not os.fork():
                os.write(write, str(os.getpid()).encode())
                time.sleep(3000)
            os._exit(0)
        os.waitpid(child, 0)
        pids.append(int(os.read(read, 20)))
        with self.file.open("a") as file:
            file.write("".join(f"{pid}\n" for pid in pids))
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)


class Talks(Slower):
    """Prints a gigabyte in its second rollout."""

    def __init__(self) -> None:
        super().__init__(0.05, 0.05, 0)

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        line = "x" * 999_999
        for _ in range(1000 if rollmux.runtime_hook.iteration == 1 else 0):
            print(line)
