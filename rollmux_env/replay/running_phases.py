"""The running phases of an event replay: their switches, their ends, and the nodes that they hold.

The speeds of migrated tails and of rollouts beside them are handled here too. `rollmux_env.replay.event` has the rules.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from rollmux_env.kernel.dispatch import pace
from rollmux_env.replay.replayed import PHASES, TRAINING_POOL, ReplayedJob
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.scheduler.view import PhaseName
from rollmux_env.timing.tail import Migration

_MOVABLE_ENDS = frozenset({"threshold", "rollout"})  # ends whose times change when tails begin or end


class RunningPhases:
    """Running phases, and the instants at which a phase, a sync, a reward or a checkpoint of a job ends.

    Args:
        run: Record of the replay.
        migration: Migration of the dispatch policy, or None if it migrates no tails.
        keeps: Whether phases are recorded in `run.phases`.
    """

    def __init__(self, run: Run, migration: Migration | None, keeps: bool) -> None:
        self._run = run
        self._migrates = migration is not None
        self._tail_share = migration.share if migration else 0.0
        self._keeps = keeps
        self._heap: list[tuple[float, int, ReplayedJob, str]] = []  # (end, stamp, job, kind of end)
        self._stamps = 0

    @property
    def next_s(self) -> float:
        """Time of the first entry in seconds, or infinity without entries.

        The entry may be void: replaced by a later one, or of a job that was cut.
        """
        return self._heap[0][0] if self._heap else inf

    def next_ended(self, until_s: float) -> tuple[float, ReplayedJob, str] | None:
        """Remove and return the next valid end by `until_s`. Void entries are skipped.

        Returns:
            Time, job and kind of the end, or None if nothing ends by then.
        """
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            end_s, stamp, job_run, what = heappop(heap)
            if stamp == job_run.stamp or (stamp > job_run.void and what not in _MOVABLE_ENDS):
                return end_s, job_run, what
        return None

    def start(self, job_run: ReplayedJob, phase: PhaseName, now_s: float) -> None:
        """Start a phase that has its permit: switch, then run."""
        switched = False
        place = job_run.place
        last = place.group.last
        for key in place.keys[phase]:
            if last.get(key, job_run) is not job_run:
                switched = True
            last[key] = job_run
        switch_s = 0.0
        if switched or place.cold[phase]:
            switch = place.switch[phase]
            switch_s = switch.cold_s if place.cold[phase] else switch.warm_s
            place.cold[phase] = False
        job_run.runs[phase] = (now_s, switch_s)
        if not self._migrates or phase == "training" or not place.bits:  # without its own rollout nodes, no tail migrates
            self.wake(job_run, now_s + (switch_s + job_run.phase_s(phase)), phase)
            return
        paced = job_run.paced
        paced.began_s, paced.passed = now_s, False
        pace.begin_rollout(paced, now_s + switch_s, job_run.phase_s(phase), job_run.durations.threshold[job_run.sampled])
        place.group.rollouts[job_run] = None
        self._run_beside_tails(job_run)

    def _run_beside_tails(self, job_run: ReplayedJob) -> None:
        """Schedule the threshold or the end of a rollout at the speed that tails on its nodes leave it."""
        nodes, tails, paced = job_run.place.keys["rollout"], job_run.place.group.tails, job_run.paced
        shared = tuple(node for node in nodes if tails >> (node + 1) & 1)
        paced.nodes_by_share = {1.0: tuple(node for node in nodes if node not in shared), 1 - self._tail_share: shared}
        rate = job_run.durations.rate[job_run.sampled] if shared else 1.0
        self.wake(job_run, pace.ends_s(paced, paced.passed, rate), "rollout" if paced.passed else "threshold")

    def pass_threshold(self, job_run: ReplayedJob, now_s: float) -> None:
        """Mark a rollout as migratable, since enough of its responses are done."""
        pace.pass_threshold(job_run.paced, now_s)
        job_run.paced.passed = True
        self._run_beside_tails(job_run)

    def migrate(self, job_run: ReplayedJob, now_s: float) -> None:
        """Migrate the tail of a rollout to a share of its nodes, where it runs at another speed."""
        durations, place = job_run.durations, job_run.place
        ends_s = pace.tail_s(job_run.paced, now_s, durations.move_s, durations.stretch[job_run.sampled])
        self._span(job_run, now_s)
        del place.group.rollouts[job_run]
        place.group.tails |= place.bits
        job_run.paced.nodes_by_share = {self._tail_share: place.keys["rollout"]}
        self.wake(job_run, ends_s, "rollout")

    @staticmethod
    def is_tail(job_run: ReplayedJob) -> bool:
        """Return whether a job's rollout is a migrated tail."""
        return bool(job_run.paced.nodes_by_share) and job_run not in job_run.place.group.rollouts

    def after_tail(self, gone: ReplayedJob, now_s: float) -> None:
        """Give the nodes of a finished tail back to the rollouts that shared them."""
        group, bits = gone.place.group, gone.place.bits
        group.tails &= ~bits
        for job_run in sorted(group.rollouts, key=lambda one: one.row):  # ends at the same time are handled in this order
            if job_run.place.bits & bits:
                pace.advance(job_run.paced, now_s)
                self._span(job_run, now_s)
                self._run_beside_tails(job_run)

    def _span(self, job_run: ReplayedJob, now_s: float) -> None:
        """Account for the nodes that a rollout has held since the last change, and begin a new span."""
        group = job_run.place.group
        start_s, switches_s = job_run.runs["rollout"]
        switch_s = min(switches_s, now_s - start_s)
        phase = "rollout" if job_run in group.rollouts else "tail"
        for share, nodes in job_run.paced.nodes_by_share.items():
            job_run.busy_s["rollout"] += max(0.0, now_s - start_s - switch_s) * len(nodes) * share
            if self._keeps and nodes and now_s > start_s:
                place = (job_run.sampled, group.number, "rollout", nodes)
                self._run.phases.append(PhaseRun(job_run.job.id, phase, *place, start_s, now_s, switch_s, share))
        job_run.runs["rollout"] = (now_s, switches_s - switch_s)

    def wake(self, job_run: ReplayedJob, at_s: float, what: str) -> None:
        """Schedule an end of a job on the heap.

        Args:
            job_run: Job whose phase, sync, reward or checkpoint ends.
            at_s: Time of the end, in seconds.
            what: Kind of end: a phase, `threshold`, `rewards`, `sync`, `checkpoint` or `restart`.
        """
        self._stamps += 1
        if what in _MOVABLE_ENDS:
            job_run.stamp = self._stamps
        heappush(self._heap, (at_s, self._stamps, job_run, what))

    def book(self, job_run: ReplayedJob, phase: PhaseName, now_s: float) -> float:
        """Record a phase that ends or is cut now, and return the seconds for which it held its nodes."""
        place = job_run.place
        if phase == "rollout" and job_run.paced.nodes_by_share:
            self._span(job_run, now_s)
            del job_run.runs[phase]
            job_run.paced.nodes_by_share = {}
            if job_run in place.group.rollouts:
                del place.group.rollouts[job_run]
            return now_s - job_run.paced.began_s
        start_s, switch_s = job_run.runs.pop(phase)
        pool = "training" if place.keys[phase][0] == TRAINING_POOL else "rollout"
        job_run.busy_s[pool] += max(0.0, now_s - start_s - switch_s) * place.nodes[phase]
        if self._keeps:
            nodes = tuple(range(place.nodes[phase])) if pool == "training" else place.keys[phase]
            group = place.group.number
            span = (start_s, now_s, min(switch_s, now_s - start_s))
            number = job_run.sampled if phase == "rollout" else job_run.trained
            self._run.phases.append(PhaseRun(job_run.job.id, phase, number, group, pool, nodes, *span))
        return now_s - start_s

    def cut(self, job_run: ReplayedJob, now_s: float) -> None:
        """Stop all phases of a job: record them up to now, and make the job's entries on the heap void."""
        frees = self.is_tail(job_run)
        for phase in PHASES:
            if phase in job_run.runs:
                self.book(job_run, phase, now_s)
        job_run.stamp, job_run.void = -1, self._stamps
        if frees:
            self.after_tail(job_run, now_s)
