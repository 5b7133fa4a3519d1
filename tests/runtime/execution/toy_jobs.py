"""Jobs without a model, for tests: plain Python classes whose phases sleep."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import rollmux
from runtime.phases import WorkerHandle


class Sleeper:
    """Sleeps in every phase, and does what a test asks of it in one of them."""

    def __init__(self, rollout_s: float = 0.02, train_s: float = 0.02, poison: str = "", at: int = 1) -> None:
        self.rollout_s, self.train_s = rollout_s, train_s
        self.poison, self.at = poison, at
        if poison == "init":
            raise ValueError("no such model")

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        self._turn("rollout")
        time.sleep(self.rollout_s)
        rollmux.runtime_hook.progress(4, 4, tokens=64)

    @rollmux.phase("train")
    def train(self) -> None:
        self._turn("train")
        time.sleep(self.train_s)
        rollmux.runtime_hook.report(reward=rollmux.runtime_hook.iteration / 10, cores=float(len(os.sched_getaffinity(0))))

    @rollmux.phase("sync")
    def sync(self) -> None:
        self._turn("sync")

    def _turn(self, phase: str) -> None:
        if rollmux.runtime_hook.iteration != self.at:
            return
        if self.poison == phase:
            raise ValueError(f"{phase} went wrong\nin two lines")
        if self.poison == f"kill in {phase}":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.poison == f"nothing left in {phase}":
            raise MemoryError("cannot allocate 64 GB")


class Tailed(Sleeper):
    """Has most of its responses early, and can do with a part of its rollout nodes."""

    STEPS = 50

    def __init__(self, rollout_s: float = 0.5, **more: Any) -> None:
        super().__init__(rollout_s, **more)

    def parts(self) -> list[Any]:
        return list(rollmux.runtime_hook.nodes("rollout"))

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        hook = rollmux.runtime_hook
        had = [hook.parts]
        for step in range(self.STEPS):
            time.sleep(self.rollout_s / self.STEPS)
            hook.progress(9 if step > 12 else step // 2, 10)
            if hook.stops():
                before: tuple[int, ...] = hook.parts
                left: list[int] = []
                had.append(hook.regroup(left.extend))
                assert set(left) == set(before) - set(hook.parts) and hook.parts == had[-1]
        hook.report(
            shrank=any(len(one) > len(other) for one, other in pairwise(had)), began_with=len(had[0]), ended_with=len(had[-1])
        )


class Meets(Sleeper):
    """Two that meet: one's second sync ends when the other has begun a rollout, and that rollout when the sync is known to be over.

    The one that syncs begins after the first rollout of the other, whose first sync ends when it has: so both are in the round
    robin by then, and nobody waits for a rollout whose turn comes after its own.

    Args:
        folder: where they say to each other how far they are. role: `syncs` or `holds`.
    """

    def __init__(self, folder: str, role: str, **more: Any) -> None:
        super().__init__(**more)
        self.folder, self.role = Path(folder), role

    def step(self) -> None:
        if self.role == "syncs" and self._is_in(0):
            self._wait_for("holds-0")
        self.profile()

    def profile(self) -> None:
        """With it the job is not made anew after its profile, which would be done under the permit that `step` is to wait for."""
        self.rollout()
        self.train()
        self.sync()

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        if self._is_in(0):
            (self.folder / f"{self.role}-0").touch()
        if self.role == "syncs" and self._is_in(1):
            (self.folder / "rolled").touch()
        if self.role == "holds" and (self.folder / "rolled").exists():  # else its turn comes again
            self._wait_for("syncs")
            (self.folder / "holds").touch()
            self._wait_for("synced")

    @rollmux.phase("sync")
    def sync(self) -> None:
        if self.role == "holds" and self._is_in(0):
            self._wait_for("syncs-0")
        if self.role == "syncs" and self._is_in(1):
            (self.folder / "syncs").touch()
            self._wait_for("holds")

    def checkpoint(self, folder: Path) -> None:
        """Called when a sync is known to be over."""
        if self.role == "syncs" and self._is_in(1):
            (self.folder / "synced").touch()

    def restore(self, folder: Path) -> None: ...

    def _is_in(self, iteration: int) -> bool:
        return bool(rollmux.runtime_hook.iteration == iteration and not rollmux.runtime_hook.worst_case)

    def _wait_for(self, what: str) -> None:
        while not (self.folder / what).exists():
            time.sleep(0.01)


class Doubled(Sleeper):
    """Trains twice."""

    def step(self) -> None:
        self.rollout()
        self.train()
        if rollmux.runtime_hook.iteration == 1:
            self.train()
        self.sync()


class Echo:
    """The object of a worker."""

    def __init__(self, word: str) -> None:
        self.word = word

    def say(self) -> tuple[str, int, int]:
        rollmux.runtime_hook.warn("a worker has been asked\nfor its word")
        return self.word, os.getpid(), len(os.sched_getaffinity(0))

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        raise ValueError("the worker's own words")


class WithWorkers:
    """Has a worker on each node, counts its iterations, and can be moved."""

    def __init__(self, poison: str = "", at: int = 1) -> None:
        self.poison, self.at = poison, at
        self.count = 0
        self.workers: dict[str, list[WorkerHandle]] = {}

    def load(self, phase: str) -> None:
        if phase not in self.workers:
            nodes = rollmux.runtime_hook.nodes("rollout" if phase == "rollout" else "training")
            with rollmux.runtime_hook.stage("process"):
                self.workers[phase] = [
                    rollmux.runtime_hook.start_worker(node, "toy_jobs:Echo", f"{phase} on {node.name}") for node in nodes
                ]

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        words = rollmux.runtime_hook.wait([worker.call("say") for worker in self.workers["rollout"]])
        assert all(word.startswith("rollout on rollout-") and cores == 1 for word, _, cores in words), words
        if rollmux.runtime_hook.iteration == self.at and self.poison:
            rollmux.runtime_hook.wait(self.workers["rollout"][0].call(self.poison))
        time.sleep(0.02)

    @rollmux.phase("train")
    def train(self) -> None:
        said = rollmux.runtime_hook.wait(self.workers["train"][0].call("say"))
        assert said[0].startswith("train on training-")
        self.count += 1
        time.sleep(0.02)
        rollmux.runtime_hook.report(count=float(self.count), pid=float(said[1]))

    def profile(self) -> None:
        self.rollout()
        self.train()
        self.count -= 1

    def checkpoint(self, folder: Path) -> None:
        (folder / "count").write_text(str(self.count))

    def restore(self, folder: Path) -> None:
        self.count = int((folder / "count").read_text())


class MoveOnce:
    """Places every job alone, and moves the first one into the second one's group when it is woken."""

    keeps_slo = False
    wakes_every_s = 0.4

    def __init__(self) -> None:
        self.moved = False

    def decide(self, state: Any, event: Any) -> Any:
        from policies.api import Arrived, Move, Place, Placement, Ticked, isolated, may_move

        if isinstance(event, Arrived):
            return (Place(event.job.id, isolated(event.job)),)
        groups = state.group_list()
        if isinstance(event, Ticked) and not self.moved and len(groups) == 2:
            job_id = groups[0].jobs[0]
            if may_move(state, job_id):
                self.moved = True
                return (Move(job_id, Placement(groups[1].id, groups[1].rollout_nodes)),)
        return ()


class Counter:
    """Counts its iterations and draws a number in each; its checkpoint is a JSON file.

    Args:
        at: the iteration in which it does what a file in `folder` asks for by its name, once: `kill` its process, `hang`, or find
            the disk full (`fill`) at its checkpoint.
    """

    def __init__(self, rollout_s: float = 0.01, train_s: float = 0.01, at: int = 1, folder: str = "") -> None:
        self.rollout_s, self.train_s, self.at, self.folder = rollout_s, train_s, at, Path(folder)
        self.drawn: list[float] = []
        random.seed(1)

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        time.sleep(self.rollout_s)

    @rollmux.phase("train")
    def train(self) -> None:
        time.sleep(self.train_s)
        if rollmux.runtime_hook.iteration == self.at and not rollmux.runtime_hook.worst_case:
            if self._asked("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self._asked("hang"):
                time.sleep(1000)
        self.drawn.append(random.random())
        rollmux.runtime_hook.report(count=float(len(self.drawn)), drawn=self.drawn[-1])

    def profile(self) -> None:
        self.rollout()
        self.train()
        self.drawn.pop()
        random.seed(1)  # whether it was profiled makes no difference

    def checkpoint(self, folder: Path) -> None:
        if rollmux.runtime_hook.iteration == self.at and self._asked("fill"):
            (folder / "part").write_text("half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        (folder / "drawn.json").write_text(json.dumps(self.drawn))

    def restore(self, folder: Path) -> None:
        self.drawn = json.loads((folder / "drawn.json").read_text())

    def _asked(self, what: str) -> bool:
        asked = self.folder / what
        if str(self.folder) != "." and asked.exists():
            asked.unlink()
            return True
        return False


class Helper(Sleeper):
    """Its second rollout, for which it waits without nodes until there is one file, makes another."""

    def __init__(self, waits_for: str, makes: str) -> None:
        super().__init__()
        self.waits_for, self.makes = Path(waits_for), Path(makes)

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        super().rollout()
        if rollmux.runtime_hook.iteration == 1:
            self.makes.touch()

    @rollmux.phase("sync")
    def sync(self) -> None:
        while rollmux.runtime_hook.iteration == 0 and not self.waits_for.exists():
            time.sleep(0.01)
