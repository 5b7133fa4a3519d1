"""Jobs without a model for tests of runs: classes whose phases sleep, and do there what a test says.

The process of each job imports this: nothing large.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import rollmux
from runtime.machines.job_processes import started
from runtime.phases import WorkerHandle


class Sleeper:
    """Sleeps in every phase, and does what a test asks of it in some of them.

    Args:
        does: what it does at the beginning of a phase of an iteration, as `{"train 1": "wait go; kill"}`: words that name methods
            (`do_kill`), each with its arguments, one after the other. There are none while it is profiled. Besides the phases there
            are `init`, `step`, `parts` and, where it has any, `checkpoint`.
        folder: of files by which jobs tell each other how far they are. journal: of the run.
    """

    def __init__(
        self,
        rollout_s: float = 0.02,
        train_s: float = 0.02,
        does: Mapping[str, str] | None = None,
        folder: str = "",
        journal: str = "",
    ) -> None:
        self.rollout_s, self.train_s = rollout_s, train_s
        self.does, self.folder, self.journal = does or {}, Path(folder), journal
        self._act("init")

    def step(self) -> None:
        self._turn("step")
        self.rollout()
        self.train()
        self.sync()

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
        if not rollmux.runtime_hook.worst_case:
            self._act(f"{phase} {rollmux.runtime_hook.iteration}")

    def _act(self, when: str) -> None:
        words = [word.split() for word in self.does.get(when, "").split(";") if word]
        for name, *arguments in words:
            if getattr(self, f"do_{name}")(*arguments) is False:
                return

    def do_raise(self, error: str = "ValueError") -> None:
        raise {"ValueError": ValueError, "MemoryError": MemoryError}[error]("it went wrong\nin two lines")

    def do_kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_hang(self) -> None:
        time.sleep(1000)

    def do_sleep(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def do_once(self) -> bool:
        """What follows is done once, however often the job is made anew."""
        done = self.folder / "done"
        is_first = not done.exists()
        done.touch()
        return is_first

    def do_touch(self, file: str) -> None:
        (self.folder / file).touch()

    def do_wait(self, file: str) -> None:
        while not (self.folder / file).exists():
            time.sleep(0.01)

    def do_if(self, file: str) -> bool:
        return (self.folder / file).exists()

    def do_fact(self, kind: str, job_id: str) -> None:
        """Wait until the journal has a fact of a kind, of those that are written at once, about a job."""
        query = "SELECT count(*) FROM facts WHERE kind = ? AND json_extract(body, '$.job_id') = ?"
        with closing(sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)) as database:
            while not database.execute(query, (kind, job_id)).fetchone()[0]:
                time.sleep(0.02)

    def do_eat(self) -> None:
        """Take more and more memory, 3 GB at most."""
        self.eaten: list[bytes] = []
        while len(self.eaten) < 60:
            self.eaten.append(b"x" * 50_000_000)
            time.sleep(0.02)

    def do_talk(self) -> None:
        """Print a gigabyte."""
        for _ in range(1000):
            print("x" * 999_999)

    def do_leave(self) -> None:
        """Leave processes behind: one in a session of its own, one that was forked twice. Their ids go to a file."""
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
        with (self.folder / "pids").open("a") as file:
            file.write("".join(f"{pid}\n" for pid in pids))


class Forgetful(Sleeper):
    """Writes checkpoints, and cannot continue from one."""

    def checkpoint(self, folder: Path) -> None:
        (folder / "state").touch()


class Doubled(Sleeper):
    """Trains twice in its second iteration."""

    def step(self) -> None:
        self.rollout()
        self.train()
        if rollmux.runtime_hook.iteration == 1:
            self.train()
        self.sync()


class Counter(Sleeper):
    """Counts its iterations and draws a number in each; its checkpoint is a JSON file. It is not made anew after its profile."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.drawn: list[float] = []
        random.seed(1)

    @rollmux.phase("train")
    def train(self) -> None:
        super().train()
        self.drawn.append(random.random())
        rollmux.runtime_hook.report(count=float(len(self.drawn)), drawn=self.drawn[-1])
        print(f"trained {len(self.drawn)} times")

    def profile(self) -> None:
        self.rollout()
        self.train()
        self.drawn.pop()
        random.seed(1)  # whether it was profiled makes no difference

    def checkpoint(self, folder: Path) -> None:
        (folder / "drawn.json").write_text(json.dumps(self.drawn))
        self._turn("checkpoint")

    def restore(self, folder: Path) -> None:
        self.drawn = json.loads((folder / "drawn.json").read_text())

    def do_fill(self) -> None:
        """Find the disk full."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Tailed(Sleeper):
    """Has most of its responses early, and can do with a part of its rollout nodes.

    Args:
        steps: of a rollout.
    """

    def __init__(self, rollout_s: float = 0.5, steps: int = 50, **more: Any) -> None:
        self.steps = steps
        super().__init__(rollout_s=rollout_s, **more)

    def parts(self) -> list[Any]:
        """The last thing that is asked of it before its permit is."""
        self._turn("parts")
        return list(rollmux.runtime_hook.nodes("rollout"))

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        hook = rollmux.runtime_hook
        self.had = [hook.parts]
        self._turn("rollout")
        for step in range(self.steps):
            time.sleep(self.rollout_s / self.steps)
            hook.progress(9 if step > 12 else step // 2, 10)
            if hook.stops():
                self._regroup()
        sizes = [len(parts) for parts in self.had]
        hook.report(shrank=any(one > other for one, other in pairwise(sizes)), began_with=sizes[0], ended_with=sizes[-1])

    def _regroup(self) -> None:
        hook = rollmux.runtime_hook
        before: tuple[int, ...] = hook.parts
        left: list[int] = []
        self.had.append(hook.regroup(left.extend))
        assert set(left) == set(before) - set(hook.parts) and hook.parts == self.had[-1]

    def do_tail(self) -> None:
        """Have a tail until it is to leave a part of its nodes."""
        while not rollmux.runtime_hook.stops():
            rollmux.runtime_hook.progress(9, 10)  # again and again: a report soon after another one is put off
            time.sleep(0.01)
        self._regroup()

    def do_beside(self) -> None:
        """Where it has begun on a part of its nodes, beside another job's tail: tell, and wait for the rest of them."""
        if len(self.had[0]) == 1:
            self.do_touch("begun")
            while not rollmux.runtime_hook.stops():
                time.sleep(0.01)
            self._regroup()


class TailedCounter(Tailed, Counter):
    """Both; so it is not made anew after its profile, which would be done under the permit that `step` is to wait for."""


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

    def miss(self, pid: int) -> None:
        """Lose a process, as a rank loses another one in the middle of a collective."""
        while started(pid):
            time.sleep(0.01)
        raise RuntimeError("Connection closed by peer")

    def await_file(self, file: str) -> None:
        while not Path(file).exists():
            time.sleep(0.01)


class WithWorkers(Counter):
    """Has a worker on each node, which is there when its phase begins."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.workers: dict[str, list[WorkerHandle]] = {}

    def load(self, phase: str) -> None:
        hook = rollmux.runtime_hook
        if phase not in self.workers:
            nodes = hook.nodes("rollout" if phase == "rollout" else "training")
            with hook.stage("process"):
                self.workers[phase] = [hook.start_worker(node, f"{__name__}:Echo", f"{phase} on {node.name}") for node in nodes]
            hook.wait([worker.call("say") for worker in self.workers[phase]])

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        words = rollmux.runtime_hook.wait([worker.call("say") for worker in self.workers["rollout"]])
        assert all(word.startswith("rollout on rollout-") and cores == 1 for word, _, cores in words), words
        super().rollout()

    @rollmux.phase("train")
    def train(self) -> None:
        said = rollmux.runtime_hook.wait(self.workers["train"][0].call("say"))
        assert said[0].startswith("train on training-")
        super().train()
        rollmux.runtime_hook.report(pid=float(said[1]))

    def do_worker(self, phase: str, what: str) -> None:
        rollmux.runtime_hook.wait(self.workers[phase][0].call(what))

    def do_lose_other(self) -> None:
        """Lose the worker of the rollouts, of which only that of the trainings tells."""
        hook, (rollout,), (train,) = rollmux.runtime_hook, self.workers["rollout"], self.workers["train"]
        pid = hook.wait(rollout.call("say"))[1]
        rollout.call("die")
        hook.wait(train.call("miss", pid))


class Waiting(WithWorkers):
    """Has a worker that waits for another one until the job is over."""

    def do_fail_other(self) -> None:
        waits, fails = self.workers["rollout"][0], self.workers["train"][0]
        rollmux.runtime_hook.wait([waits.call("await_file", str(self.folder / "over")), fails.call("fail")])

    def close(self) -> None:
        self.do_touch("over")
