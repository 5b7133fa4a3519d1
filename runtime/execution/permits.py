"""The part of the coordinator that gives permits: whose turn it is says each group's dispatcher."""

from __future__ import annotations

import asyncio

from rollmux_env.scheduler.dispatcher import PhaseName
from runtime.execution.books import Books
from runtime.execution.members import PROFILE, Gang, Hold, Runner
from runtime.execution.messages import Report
from runtime.facts import PhaseSlice, Pool


class Permits(Books):
    """Who holds what."""

    def _pump(self, gang: Gang) -> None:
        """Give the permits that are due."""
        if self._stopping:
            return
        gang.dispatcher.now_s = self._now()
        try:
            permits = gang.dispatcher.permits()
            for job_id in gang.dispatcher.migrations:
                wanted = [self._runners[permit.job_id].nodes["rollout"] for permit in permits if permit.phase == "rollout"]
                self._tails.migrate(job_id, {node.name for nodes in wanted for node in nodes})
                self._stir(self._runners[job_id])
            for permit in permits:
                self._grant(self._runners[permit.job_id], permit.phase, len(permits) > 1)
        except Exception as error:
            self._break(error)

    def _grant(self, runner: Runner, phase: PhaseName, paired: bool) -> None:
        job_id, nodes, now_s = runner.spec.id, runner.nodes[phase], self._now()
        switched = self._tails.begin(job_id, nodes, runner.parts, now_s) if phase == "rollout" else self._ground.take(job_id, nodes)
        if switched is None:
            self._delayed[job_id] = paired
            return
        runner.hold = Hold(phase, runner.asked_s, now_s, switched, paired)
        runner.progress, runner.past_threshold = {}, False
        assert runner.wanted is not None
        runner.wanted.set_result(None)
        runner.since_s = self._now()

    def _give(self, runner: Runner) -> None:
        """What a job holds is free."""
        assert runner.hold is not None
        job_id, phase = runner.spec.id, runner.hold.pool
        runner.hold = None
        if phase == "training":
            self._ground.give(job_id, runner.nodes[phase])
            return
        self._tails.end(job_id)
        self._stir(runner)
        self._make_room()

    def _make_room(self) -> None:
        """A tail has left nodes: rollouts beside it get more of theirs, and those that have waited for it begin."""
        for job_id in self._tails.grow(self._now()):
            self._stir(self._runners[job_id])
        delayed, self._delayed = self._delayed, {}
        for job_id, paired in delayed.items() if not self._stopping else ():
            self._grant(self._runners[job_id], "rollout", paired)

    @staticmethod
    def _stir(runner: Runner) -> None:
        """Let those who watch a job's rollout know that the parts of it have changed, or that it is over."""
        runner.stirred.set()
        runner.stirred = asyncio.Event()

    def _quit(self, runner: Runner) -> None:
        """A job leaves the dispatcher that it is a member of; what it holds is free."""
        gang, job_id = runner.gang, runner.spec.id
        if gang is None:
            return
        self._delayed.pop(job_id, None)
        if runner.hold is not None:
            self._give(runner)
        gang.dispatcher.gone(job_id)
        runner.gang = None
        if not gang.dispatcher.members:
            self._gangs.pop(gang.number, None)
        self._pump(gang)

    @staticmethod
    def _pool_of(runner: Runner, phase: Pool) -> Pool:
        """Whose nodes a phase holds: a co-located job's rollouts hold training nodes."""
        return runner.nodes[phase][0].pool

    def _slice(self, runner: Runner, hold: Hold, report: Report, now_s: float) -> PhaseSlice:
        assert runner.gang is not None
        pool = self._pool_of(runner, hold.pool)
        return PhaseSlice(
            job_id=runner.spec.id,
            phase=report.phase,  # type: ignore[arg-type]
            profile=runner.iteration == PROFILE,
            iteration=runner.iteration,
            group=runner.gang.number,
            pool=pool,
            numbers=runner.numbers[hold.pool],
            nodes=tuple(node.name for node in runner.nodes[hold.pool]),
            asked_s=hold.asked_s,
            start_s=hold.start_s,
            end_s=now_s,
            run_s=report.run_s,
            done_s=report.done_s,
            permit_s=report.begun_s - hold.start_s,
            load_s=report.load_s,
            offload_s=report.offload_s,
            cold=report.cold,
            switched=hold.switched,
            stages=report.stages,
            host_gb=report.host_gb,
            spans=self._tails.spans(runner.spec.id, now_s) if report.phase == "rollout" else (),
        )
