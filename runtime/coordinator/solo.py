"""Measurement of jobs alone, after all have done their last iteration."""

from __future__ import annotations

from rollmux_env.scheduler import facts
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiling import needs_of, request_of
from runtime.coordinator.run_loop import RunLoop
from runtime.journal.facts import SoloIterationSlice
from runtime.machine import Pool

SOLO = 5  # iterations alone; the first one loads offloaded state, and is excluded from all means
_MOST = 8  # jobs whose processes remain to be measured alone


class SoloIterations:
    """Measurement of jobs alone, after their last iteration.

    Each job runs a few more iterations on the nodes that it had, while no other job runs. Its processes are those that it has, so
    nothing starts cold. These iterations do not count: no checkpoint is written, and the job's model is that of the last iteration
    that counts. Until all jobs are done, the processes of waiting jobs sleep in host memory.

    Args:
        run: The run.
    """

    def __init__(self, run: RunLoop) -> None:
        self._run = run
        self._measured: list[JobHandle] = []

    def enlist(self, handle: JobHandle) -> bool:
        """Return whether a job that has done its last iteration, and has left its place, will be measured alone."""
        run = self._run
        if run.stopping:
            return False
        if handle.spec.is_asynchronous:
            why = "its rollouts run ahead of its iterations, and end with the last one"
        elif len(self._measured) == _MOST:
            why = f"the processes of {_MOST} jobs wait for that already"
        else:
            self._measured.append(handle)
            handle.place.set_leaving(True)  # the order then takes its state off the devices
            run.apply(run.order(handle, run.log.now()))
            self._run.check_end()
            return True
        run.log.say(f"{handle.id}: is not measured alone: {why}")
        return False

    async def measure(self) -> None:
        """Measure one job after the other when all are done, then let all end: a job that writes its model uses cores."""
        run = self._run
        await self._run.quiet.wait()
        for handle in self._measured:
            if not handle.life.is_alive or run.stopping:
                continue
            if problem := run.capacity.problem_of_placing(handle.spec):
                run.log.say(f"{handle.id}: is not measured alone: {problem}")
                continue
            await run.written()
            run.log.say(f"{handle.id}: {SOLO} iterations alone, on the nodes that it had")
            over = handle.profile.begin(SOLO)
            needs = needs_of(run, handle)
            run.apply(Consequences((request_of(run, [handle])._replace(names=self._nodes(handle, needs)),)))
            await over.wait()
        for handle in self._measured:
            if handle.life.is_alive and not run.stopping:
                handle.close()
                handle.send_order(None, run.log.now())
        self._run.check_end()

    def _nodes(self, handle: JobHandle, needs: dict[Pool, int]) -> frozenset[str]:
        """Return the names of the nodes that a job had, if they are free and as many as it asks for, else an empty set."""
        names = {node.name: node.pool for nodes in handle.place.nodes.values() for node in nodes}
        there = {node.name for pool in needs for node in self._run.nodes.free(pool)}
        alike = all([*names.values()].count(pool) == count for pool, count in needs.items())
        return frozenset(names) if alike and names.keys() <= there else frozenset()

    def iterated(self, handle: JobHandle) -> None:
        """Record an iteration alone."""
        run, now_s = self._run, self._run.log.now()
        began_s, _ = handle.permits.end_iteration(handle.iteration, now_s, is_asynchronous=False)
        note = SoloIterationSlice(handle.id, handle.iteration, began_s, now_s)
        run.apply(Consequences((), (note,), (f"{handle.id}: alone, {now_s - began_s:.2f} s",)))
        handle.counts.begin(handle.iteration + 1)
        if handle.profile.count():
            run.apply(run.order(handle, run.log.now()))
        else:
            handle.leave_place()
            run.apply(Consequences((facts.Profiled(handle.id),)))
            handle.profile.end()
