"""The part of the coordinator that goes on with a run that was killed or stopped: what the journal says is so."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, time

from rollmux_env.cluster.events import Departed, Resized, Resumed, Withdrawn
from rollmux_env.scheduler.dispatcher import Dispatcher
from runtime.checkpoints import drop, newest
from runtime.execution.members import Gang, Runner
from runtime.execution.nodes import POOLS
from runtime.execution.profiles import versions
from runtime.execution.profiling import Profiling
from runtime.facts import Assigned, Relaunched, Restarted, Returned
from runtime.journal import JOURNAL, read_facts, record_of, state_of
from runtime.record import RunRecord


class Resuming(Profiling):
    """Groups and placements are as they were; every job that was placed begins there with its last checkpoint."""

    def _take_up(self) -> None:
        """Replay the journal, and set everything going."""
        facts = read_facts(Path(self._plan.folder) / JOURNAL)
        record = record_of(facts)
        self._state = state_of(record)
        self._ground.remember(fact for fact in facts if isinstance(fact, Assigned | Returned))
        self._zero_s = monotonic() - record.last_s
        self._write(Relaunched(record.last_s, time(), self._plan.nodes, versions()))
        for runner in self._runners.values():
            self._attempt(runner, "resume", self._recall, runner, record)
        for job_id in [*self._runners]:
            if self._state.is_paused(job_id):
                self._note(Resumed(self._now(), job_id))
        for runner in [*self._runners.values()]:
            job_id = runner.spec.id
            if runner.gone and self._state.is_running(job_id):  # its end is in the journal, but not that it left
                self._note(Departed(self._now(), job_id))
            elif runner.gone and job_id in self._state.waiting:
                self._note(Withdrawn(self._now(), job_id))
        again = self._fit(record)
        self._settle()
        for group in self._state.group_list():
            gang = self._gangs[group.id] = Gang(group.id, Dispatcher(self._dispatch))
            for job_id in group.jobs:
                runner = self._runners[job_id]
                self._join(runner, gang)
                self._start(runner)
                self._tell(runner, self._order(runner))
        for job_id in self._state.waiting:
            self._start(self._runners[job_id])
        self._serve_queue()
        for runner in again:
            self._start(runner)
            self._enlist(runner)

    def _recall(self, runner: Runner, record: RunRecord) -> None:
        """What the journal and the checkpoints know of a job."""
        job_id, folder = runner.spec.id, self._checkpoints(runner.spec.id)
        runner.job = self._state.job(job_id) if self._state.knows(job_id) else record.jobs.get(job_id)
        runner.done = sum(done.job_id == job_id for done in record.iterations)
        ended = {failed.job_id for failed in record.failed} | {cancelled.job_id for cancelled in record.cancelled}
        if runner.done == runner.spec.iterations or job_id in ended:
            runner.gone = True
            return
        found = newest(folder, runner.done)
        drop(folder, above=found.iterations)
        runner.iteration = runner.begins = found.iterations
        runner.checkpoint = str(found.folder) if found.folder is not None else None
        if self._state.knows(job_id):
            row = self._state.row(job_id)
            runner.busy_s = {pool: float(getattr(self._state.jobs, f"{pool}_busy_s")[row]) for pool in POOLS}
            why = found.problems[0] if found.problems else "the run was resumed"
            self._write(Restarted(self._now(), job_id, runner.begins, why))
            self._say(f"{job_id}: goes on at iteration {runner.begins + 1}")

    def _fit(self, record: RunRecord) -> list[Runner]:
        """Let the state know how many nodes there are now. Where they are too few, the last groups are dissolved.

        Returns:
            The members of those, which have to arrive again.
        """
        there = {pool: len(self._ground.nodes(pool)) for pool in POOLS}
        most = {pool: min(there[pool], getattr(record.started.cluster, pool).max_nodes or there[pool]) for pool in POOLS}
        again: list[Runner] = []
        while any(getattr(self._state, f"{pool}_nodes") > most[pool] for pool in POOLS):
            for job_id in self._state.group_list()[-1].jobs:
                self._note(Departed(self._now(), job_id))
                again.append(self._runners[job_id])
        if any(getattr(self._state.cluster, pool).max_nodes != most[pool] for pool in POOLS):
            self._note(Resized(self._now(), most["rollout"], most["training"]))
        return again
