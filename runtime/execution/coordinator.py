"""The coordinator of a run: it asks the policy where jobs go and each group's dispatcher which phase is next, and tells the jobs.

An asynchronous Ray actor. Everything that decides happens between two `await`s, so that what it knows is never half changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import ray

from rollmux_env.cluster.events import Reprofiled, Resumed, Ticked
from rollmux_env.errors import InputError
from runtime.execution.gate import boot_id
from runtime.execution.members import PROFILE, Runner
from runtime.execution.messages import Done, End, Order, Report, Stopped
from runtime.execution.profiles import Measured
from runtime.execution.resuming import Resuming
from runtime.facts import Checkpointed, Ended, Iteration, Node, PhaseSlice, Pool, SyncSlice


class Coordinator(Resuming):
    """One run: what the driver asks, and what jobs ask and tell. A Ray actor whose methods are asynchronous."""

    async def run(self) -> str:
        """Run all jobs to their end.

        Returns:
            `done` or `stopped`.

        Raises:
            InputError: a policy or the folder cannot be used; one line.
            PlanError, InvariantError: the run cannot go on.
        """
        self._open()
        plan = self._plan
        self._me = self._itself()
        if plan.resume:
            self._take_up()
        coming = [runner for runner in self._runners.values() if not runner.gone and not self._knows(runner.spec.id)]
        self._coming = len(coming)
        self._spawn(self._bring_all(coming))
        self._spawn(self._patrol())
        if getattr(self._policy, "wakes_every_s", None):
            self._spawn(self._tick(float(self._policy.wakes_every_s)))  # type: ignore[attr-defined]
        try:
            outcome = await self._over
            if outcome == "stopped":
                self._note_progress()
                self._note(Ticked(self._now()))  # until then nodes were provisioned
            self._write(Ended(self._now(), "stopped" if outcome == "stopped" else "done"))
            return outcome
        finally:
            for task in self._tasks:
                task.cancel()
            with contextlib.suppress(InputError):  # of a disk without room: that has been said
                self._journal.close()

    @staticmethod
    def _itself() -> Any:
        return ray.get_runtime_context().current_actor

    async def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary."""
        if not self._stopping:
            self._stopping = True
            for runner in self._runners.values():
                self._interrupt(runner)
            self._freed.set()
            self._check_over()

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`."""
        return self._news[behind:]

    async def status(self) -> dict[str, dict[str, Any]]:
        """What every job does."""
        return {
            job_id: {
                "group": runner.gang.number if runner.gang else None,
                "iteration": runner.iteration,
                "holds": runner.hold.pool if runner.hold else None,
                "waits": runner.wanted is not None and not runner.wanted.done(),
                "progress": how_far(runner.progress),
                "gone": runner.gone,
            }
            for job_id, runner in self._runners.items()
        }

    async def clock(self, job_id: str) -> tuple[str, float]:
        """Which machine's clock this is, and its reading at time 0."""
        return boot_id(), self._zero_s

    async def now(self, job_id: str) -> float:
        """The time, seconds."""
        return self._now()

    async def order(self, job_id: str, done: Done | None) -> Order | None:
        """The last order has been carried out, if there was one; answer with the next one, or None: the job is done."""
        runner = self._runners[job_id]
        runner.since_s = None
        if done is not None:
            self._completed(runner, done)
        if self._stopping:
            raise Stopped
        if runner.next is None:
            runner.next = asyncio.get_running_loop().create_future()
        order = await runner.next
        runner.next = None
        return order

    async def acquire(self, job_id: str, pool: Pool, parts: tuple[Node, ...] = ()) -> None:
        """Wait for the permit of a phase.

        Args:
            parts: of a rollout: what its nodes are cut into, if it can do with a part of them.

        Raises:
            Stopped: the run stops.
        """
        runner = self._runners[job_id]
        runner.since_s = None
        if self._stopping:
            raise Stopped
        assert runner.gang is not None and runner.hold is None
        runner.asked_s, runner.parts = self._now(), parts
        if pool == "rollout":
            runner.began_s = runner.asked_s
        runner.wanted = asyncio.get_running_loop().create_future()
        runner.gang.dispatcher.ready(job_id, pool)
        self._pump(runner.gang)
        await runner.wanted

    async def release(self, job_id: str, report: Report) -> None:
        """A phase is over."""
        runner = self._runners[job_id]
        hold, gang = runner.hold, runner.gang
        if hold is None or gang is None:
            return  # the job has failed meanwhile
        now_s = runner.since_s = self._now()
        done = self._slice(runner, hold, report, now_s)
        self._write(done)
        if report.keeps:
            hold.start_s = hold.asked_s = now_s
            return
        if runner.iteration == PROFILE and self._timings is not None:
            if hold.paired == (self._lockstep.mode == "paired"):
                self._timings.add(self._lockstep.mode, job_id, hold.pool, report.done_s - report.run_s)
        elif runner.iteration == PROFILE:
            cold_s = report.run_s - report.begun_s
            runner.measured[hold.pool] = Measured(
                seconds=report.done_s - report.run_s, warm_s=report.warm_s, cold_s=cold_s, host_gb=report.host_gb
            )
        pool = self._pool_of(runner, hold.pool)
        if runner.iteration != PROFILE:
            runner.busy_s[pool] += busy_s(done)
        self._give(runner)
        gang.dispatcher.finished(job_id, hold.pool, report.done_s - report.run_s)
        self._pump(gang)

    async def synced(self, job_id: str, start_s: float, end_s: float) -> None:
        """A sync is over."""
        runner = self._runners[job_id]
        nodes = runner.nodes["rollout"]
        profile = runner.iteration == PROFILE
        if profile and runner.job is None:
            runner.sync_s = end_s - start_s
        names = tuple(node.name for node in nodes)
        beside = tuple(holder for holder in self._ground.holders(nodes) if holder != job_id)
        self._write(SyncSlice(job_id, profile, runner.iteration, names, start_s, end_s, beside))

    async def progress(self, job_id: str, done: int, total: int, tokens: int, who: str) -> None:
        """How far the phase in hand is.

        Args:
            done: responses that are finished, of those that `who` counts. total: all of the phase.
        """
        runner = self._runners[job_id]
        runner.progress[who] = (done, total, tokens)
        finished, total, _ = how_far(runner.progress)
        if self._migrates_at is None or runner.hold is None or runner.hold.pool != "rollout" or runner.past_threshold:
            return
        if self._migrates_at * total <= finished < total and len(runner.parts) > 1 and runner.gang is not None:
            runner.past_threshold = True
            runner.gang.dispatcher.threshold(job_id)
            self._pump(runner.gang)

    async def changes(self, job_id: str) -> bool:
        """Wait until a job's rollout is to use other parts of its nodes than it knows of; False: it is over, or never is."""
        runner = self._runners[job_id]
        while self._migrates_at is not None and runner.hold is not None and runner.hold.pool == "rollout":
            if self._tails.changed(job_id):
                return True
            await runner.stirred.wait()
        return False

    async def parts(self, job_id: str) -> tuple[int, ...]:
        """Numbers of the parts that a job's rollout is to use from now on."""
        return self._tails.parts(job_id)

    async def left(self, job_id: str) -> None:
        """A job's rollout uses no others any more."""
        self._tails.left(job_id, self._now())
        self._make_room()

    async def started_worker(self, job_id: str, worker: Any) -> None:
        """A job has one more process."""
        self._runners[job_id].workers.append(worker)

    def _completed(self, runner: Runner, done: Done) -> None:
        """A job has carried out its order."""
        job_id, gang = runner.spec.id, runner.gang
        assert gang is not None
        if runner.iteration == PROFILE:
            runner.began_s, runner.movable = None, done.movable
            runner.passes -= 1
            if runner.passes:
                self._tell(runner, self._order(runner))
                return
            self._quit(runner)
            self._pass(runner)
            return
        number, now_s = runner.iteration, self._now()
        began_s = runner.began_s if runner.began_s is not None else now_s
        runner.began_s = None
        metrics, iteration = done.metrics, Iteration(job_id, number, began_s, now_s, done.metrics)
        if done.checkpoint is None:
            self._write(iteration)
        else:
            self._write(iteration, Checkpointed(now_s, job_id, number + 1, done.seconds, done.gb))
            runner.checkpoint, runner.keeping_s = done.checkpoint, done.seconds
        shown = "".join(f", {name} {metrics[name]:.4g}" for name in ("reward", "loss") if name in metrics)
        self._say(f"{job_id}: iteration {number + 1} of {runner.spec.iterations}, {now_s - began_s:.2f} s{shown}")
        runner.iteration = number + 1
        if runner.iteration > runner.done:
            runner.done, runner.deaths = runner.iteration, 0
        self._changed[job_id] = None
        if runner.iteration == runner.spec.iterations:
            self._quit(runner)
            self._depart(runner)
            self._tell(runner, None)
            return
        if not done.movable and self._stays(runner):
            return
        if runner.moves_to is not None:
            target, runner.moves_to = runner.moves_to, None
            self._quit(runner)
            self._join(runner, target)
            self._note(Resumed(now_s, job_id))
            self._settle()
            self._freed.set()
        self._tell(runner, self._order(runner))

    def _stays(self, runner: Runner) -> bool:
        """Let the state know that a job cannot be moved, which its profile did not show; whether it is begun anew in its new place,
        because it was to be moved already."""
        if runner.job is not None and runner.job.movable:
            runner.job = runner.job.model_copy(update={"movable": False})
            known = self._state.job(runner.spec.id)
            self._note(Reprofiled(self._now(), known.model_copy(update={"movable": False})))
        if runner.moves_to is None:
            return False
        self._spawn(self._die(runner, End("died", "step", "it is to move, but has workers and no checkpoint")))
        return True


def how_far(progress: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """(finished, all, tokens) of a phase, from what each of its processes says."""
    told = progress.values()
    return sum(done for done, _, _ in told), max((total for _, total, _ in told), default=0), sum(tokens for _, _, tokens in told)


def busy_s(part: PhaseSlice) -> float:
    """Node-seconds in which a phase ran."""
    return sum(span.share * max(0.0, min(span.until_s, part.done_s) - max(span.from_s, part.run_s)) for span in part.held())
