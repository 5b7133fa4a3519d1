"""The running jobs of an event replay: each continues when one of its phases, rewards, syncs or checkpoints ends.

`rollmux_env.replay.event` has the rules.
"""

from __future__ import annotations

from rollmux_env.network.link import SharedLink
from rollmux_env.replay.checks import check_sample
from rollmux_env.replay.replayed import ReplayedGroup, ReplayedJob
from rollmux_env.replay.run import Run
from rollmux_env.replay.running_phases import RunningPhases
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.ticks import INSTANT_S
from rollmux_env.scheduler.view import PhaseName


class RunningJobs:
    """Jobs with a place, each with its progress.

    Args:
        run: Record of the replay.
        scheduler: Scheduler that receives the facts about ends.
        write_s: Seconds to write a checkpoint.
        keeps: Whether phases are recorded in `run.phases`.

    Attributes:
        by_id: Jobs by id, including those that a move is taking to another place, and parked ones.
        departing: Jobs that have done their last iteration.
        parking: Jobs that have finished an iteration and will be parked.
        phases: Running phases of the jobs.
        listener: Receiver of facts: the scheduler, or a recorder while the scheduler is away.
    """

    def __init__(self, run: Run, scheduler: Scheduler, write_s: float, keeps: bool) -> None:
        self._run = run
        self._write_s = write_s
        self._groups: dict[int, ReplayedGroup] = {}
        network = run.scenario.cluster.network
        self._link: SharedLink[ReplayedJob] | None = None if network is None else SharedLink(network.link_gbps)
        self.by_id: dict[str, ReplayedJob] = {}
        self.departing: list[ReplayedJob] = []
        self.parking: list[ReplayedJob] = []
        self.phases = RunningPhases(run, scheduler.members.migration, keeps)
        self.listener = scheduler

    @property
    def next_s(self) -> float:
        """Time at which something of a job ends next in seconds, or infinity."""
        return self.phases.next_s if self._link is None else min(self.phases.next_s, self._link.next_s)

    def enter(self, job_run: ReplayedJob, seating: Seating) -> None:
        """Let a job enter a placement."""
        self.by_id[job_run.job.id] = job_run
        job_run.enter(self._run.state, self._groups.setdefault(seating.group, ReplayedGroup(seating.group)), seating)

    def leave(self, job_run: ReplayedJob) -> None:
        """Remove a job from its place."""
        group = job_run.place.group
        job_run.placed = False
        group.members -= 1
        if not group.members:
            self._groups.pop(group.number, None)

    def cut(self, job_run: ReplayedJob, now_s: float) -> None:
        """Stop a job before the end of its phases and remove it from its place."""
        self._stop(job_run, now_s)
        self.leave(job_run)

    def start(self, job_run: ReplayedJob, phase: PhaseName, now_s: float) -> None:
        """Start a phase that has its permit."""
        if phase == "rollout":
            if job_run.sampled >= len(job_run.durations.rollout):
                job_run.durations.extend()
            if job_run.ahead:
                job_run.versions.append(job_run.weights)
        elif job_run.ahead:
            check_sample(job_run.job, job_run.trained, job_run.versions.popleft())
        self.phases.start(job_run, phase, now_s)

    def advance(self, until_s: float, now_s: float) -> float:
        """Handle everything that ends by `until_s`.

        Args:
            until_s: Time limit, in seconds.
            now_s: Current time, in seconds.

        Returns:
            Time of the last end, at least `now_s`.
        """
        while (ended := self.phases.next_ended(until_s)) is not None:
            end_s, job_run, what = ended
            now_s = max(now_s, end_s)
            self._end(job_run, what, end_s)
        if self._link is not None:
            while (synced := self._link.finish(until_s)) is not None:
                job_run, end_s = synced
                now_s = max(now_s, end_s)
                if job_run.unsent:
                    job_run.unsent -= 1
                    self._sync(job_run, end_s)
                self._iterate(job_run, end_s)
        return now_s

    def report_ready(self, job_run: ReplayedJob) -> None:
        """Report the phases of a job that can begin now.

        They are the training of a sampled iteration, and a rollout whose weights are fresh enough.
        """
        sampled = job_run.sampled
        if job_run.trainings == job_run.trained < sampled:
            job_run.trainings += 1
            self.listener.members.ready(job_run.job.id, "training")
        if job_run.rollouts == sampled <= job_run.weights + job_run.ahead and sampled < job_run.last:
            job_run.rollouts += 1
            self.listener.members.ready(job_run.job.id, "rollout")

    def _end(self, job_run: ReplayedJob, what: str, now_s: float) -> None:
        """Handle the end of something that a job waited for."""
        job_id = job_run.job.id
        match what:
            case "rollout":
                frees = self.phases.is_tail(job_run)
                self.listener.members.finished(job_id, "rollout", self.phases.book(job_run, "rollout", now_s))
                if frees:
                    self.phases.after_tail(job_run, now_s)
                if (rewarding_s := job_run.durations.rewarding_s(job_run.sampled, frees)) > 0.0:
                    job_run.rewarding = True
                    self.phases.wake(job_run, now_s + rewarding_s, "rewards")
                else:
                    self._count_rewarded_rollout(job_run)
            case "rewards":
                job_run.rewarding = False
                self._count_rewarded_rollout(job_run)
            case "training":
                self.listener.members.finished(job_id, "training", self.phases.book(job_run, "training", now_s))
                job_run.trained += 1
                if job_run.place.sync_s > 0.0:
                    self._sync(job_run, now_s)
                    self.report_ready(job_run)
                else:
                    self._iterate(job_run, now_s)
            case "sync":
                self._iterate(job_run, now_s)
            case "threshold":
                self.listener.members.threshold(job_id)
                self.phases.pass_threshold(job_run, now_s)
            case "checkpoint":
                self._save(job_run)
                self.report_ready(job_run)
            case "restart":
                self.report_ready(job_run)

    def _count_rewarded_rollout(self, job_run: ReplayedJob) -> None:
        """Count a rollout that has all its rewards."""
        job_run.sampled += 1
        if job_run.ahead and job_run.sampled == job_run.last:
            self.listener.members.sampled(job_run.job.id)
        self.report_ready(job_run)

    def _sync(self, job_run: ReplayedJob, now_s: float) -> None:
        """Start a sync of new weights, or queue it behind the job's previous one."""
        if self._link is None or not job_run.place.crosses:
            self.phases.wake(job_run, now_s + job_run.place.sync_s, "sync")
        elif job_run in self._link:
            job_run.unsent += 1
        else:
            network = self._run.scenario.cluster.network
            assert network is not None
            self._link.add(job_run, job_run.place.sync_s, network.own_rate_gbps(job_run.job.sync_s, job_run.job.sync_gb), now_s)

    def _iterate(self, job_run: ReplayedJob, now_s: float) -> None:
        """Finish an iteration: the job departs, writes a checkpoint, or continues."""
        job_run.iteration += 1
        state, job, checkpoints = self._run.state, job_run.job, job_run.checkpoints
        done = job_run.iteration == job_run.last or now_s >= job_run.place.leaves_s - INSTANT_S
        if done or (job.budget is not None and state.charges.is_spent(state.row(job.id), now_s + INSTANT_S)):
            self._stop(job_run, now_s)
            self.listener.jobs.iterated(job_run.progress())
            self.listener.jobs.left(job_run.job.id, not done)
            job_run.placed = False
            self.departing.append(job_run)
            return
        self.listener.jobs.iterated(job_run.progress())
        if job_run.parks:
            checkpoints.saved = checkpoints.writes = job_run.iteration
            self._stop(job_run, now_s)
            self.listener.jobs.yielded(job.id)
            job_run.placed = job_run.parks = False
            self.parking.append(job_run)
            return
        if job_run.iteration - checkpoints.saved >= checkpoints.every:
            if checkpoints.writes > checkpoints.saved:  # the last checkpoint is still being written
                self.report_ready(job_run)
                return
            checkpoints.writes = job_run.iteration
            if self._write_s > 0.0:
                self.phases.wake(job_run, now_s + self._write_s, "checkpoint")
                self.report_ready(job_run)
                return
            self._save(job_run)
        job_run.weights = job_run.iteration
        self.report_ready(job_run)

    def _save(self, job_run: ReplayedJob) -> None:
        """Record a checkpoint. New weights reach the rollout nodes only when it is written."""
        assert self._run.failures is not None
        job_run.checkpoints.saved = job_run.checkpoints.writes
        job_run.weights = job_run.iteration
        self._run.failures.checkpoints += 1

    def _stop(self, job_run: ReplayedJob, now_s: float) -> None:
        """Stop a job before the end of its phases. Samples that are not trained are lost."""
        self.phases.cut(job_run, now_s)
        if self._link is not None:
            self._link.drop(job_run, now_s)
        job_run.drop()
