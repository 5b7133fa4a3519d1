"""Jobs without a model that wait for what the journal of their run says of others, so that a test causes what it asserts."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import rollmux
from tests.runtime.execution.toy_jobs import Sleeper, Tailed


def wait_for_fact(journal: str, kind: str, job_id: str) -> None:
    """Wait until a journal has a fact of a kind about a job.

    Args:
        kind: one that is written at once, not in a batch.
    """
    query = "SELECT count(*) FROM facts WHERE kind = ? AND json_extract(body, '$.job_id') = ?"
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
        while not database.execute(query, (kind, job_id)).fetchone()[0]:
            time.sleep(0.02)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


class StaysUntilMoved(Sleeper):
    """Does not end its second rollout before another job has been moved, which has nodes of its own until then."""

    def __init__(self, journal: str, mover: str, **more: Any) -> None:
        super().__init__(**more)
        self.journal, self.mover = journal, mover

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        super().rollout()
        if rollmux.runtime_hook.iteration == 1:
            wait_for_fact(self.journal, "Moved", self.mover)


class TailedUntilAsked(Tailed):
    """Its second rollout has a tail until it is asked to leave a part of its nodes; the first one has all of them.

    Args:
        folder: where it says that it has come.
    """

    def __init__(self, folder: str, **more: Any) -> None:
        super().__init__(**more)
        self.folder = Path(folder)

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        hook = rollmux.runtime_hook
        if hook.iteration == 0:
            (self.folder / "come").touch()
        if hook.iteration == 1:
            while not hook.stops():
                hook.progress(9, 10)  # again and again: a report soon after another one is put off
                time.sleep(0.01)
            hook.regroup(lambda parts: None)
        super().rollout()


class TailedTogether(Sleeper):
    """Two of them: the tail of one's second rollout lasts until a rollout of the other has begun beside it, and that one until it
    has been given the rest of the nodes.

    The first rollout of the other one needs all nodes, so the one with the tail begins after it. It must not wait for it later: in
    round robin the other one may be behind its next rollout already.

    Args:
        folder: where they say to each other how far they are. tail: whether it is the one that has the tail.
    """

    def __init__(self, folder: str, tail: bool, **more: Any) -> None:
        super().__init__(**more)
        self.come, self.begun, self.tail = Path(folder) / "come", Path(folder) / "begun", tail

    def parts(self) -> list[Any]:
        return list(rollmux.runtime_hook.nodes("rollout"))

    def step(self) -> None:
        if self.tail and rollmux.runtime_hook.iteration == 0 and not rollmux.runtime_hook.worst_case:
            _wait_for(self.come)
        self.profile()

    def profile(self) -> None:
        """With it the job is not made anew after its profile, which would be done under the permit that `step` is to wait for."""
        self.rollout()
        self.train()
        self.sync()

    @rollmux.phase("rollout")
    def rollout(self) -> None:
        hook = rollmux.runtime_hook
        began_with = len(hook.parts)
        if self.tail and hook.iteration == 1:
            while not hook.stops():
                hook.progress(9, 10)  # again and again: a report soon after another one is put off
                time.sleep(0.01)
            hook.regroup(lambda parts: None)
            _wait_for(self.begun)
        elif began_with == 1:
            self.begun.touch()
            while not hook.stops():
                time.sleep(0.01)
            hook.regroup(lambda parts: None)
        elif not self.tail and hook.iteration == 0:  # and not in its profile
            self.come.touch()
        hook.report(began_with=began_with, ended_with=len(hook.parts))


class WaitsForTailed(Sleeper):
    """Does not end its first sync before another job's first rollout, so that its later rollouts wait for that one's."""

    def __init__(self, folder: str, **more: Any) -> None:
        super().__init__(**more)
        self.folder = Path(folder)

    @rollmux.phase("sync")
    def sync(self) -> None:
        if rollmux.runtime_hook.iteration == 0:
            _wait_for(self.folder / "come")


class TailedBeside(Tailed):
    """Does not end its second sync before another job has done an iteration, so that it waits for that one's later rollouts."""

    def __init__(self, journal: str, other: str, **more: Any) -> None:
        super().__init__(**more)
        self.journal, self.other = journal, other

    @rollmux.phase("sync")
    def sync(self) -> None:
        """Here it holds no node that the other one could need for that."""
        super().sync()
        if rollmux.runtime_hook.iteration == 1:
            wait_for_fact(self.journal, "Checkpointed", self.other)


class AsksBeside(Tailed):
    """Asks for a rollout when the rollout of the same number of a job with the task `WaitsForOther` has begun; that goes on then.

    Args:
        folder: where they say so to each other.
    """

    def __init__(self, folder: str, **more: Any) -> None:
        super().__init__(**more)
        self.folder = Path(folder)

    def step(self) -> None:
        if rollmux.runtime_hook.iteration > 0:
            _wait_for(self.folder / f"began-{rollmux.runtime_hook.iteration}")
        self.rollout()
        self.train()
        self.sync()

    def parts(self) -> list[Any]:
        """The last thing that is asked of it before its permit is."""
        if not rollmux.runtime_hook.worst_case:
            (self.folder / f"asks-{rollmux.runtime_hook.iteration}").touch()
        return super().parts()
