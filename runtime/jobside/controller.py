"""The process of one job: it holds the instance of the job's class and carries out the coordinator's orders."""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path
from time import monotonic
from typing import Any

import ray

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.checkpoints import CHECKPOINTS
from runtime.export import keep_model
from runtime.gpus import is_out_of_memory
from runtime.jobs.named import load_named
from runtime.jobs.spec import ClassJob, TaskJob
from runtime.jobside.checkpointing import CheckpointWriter, restore_randomness
from runtime.jobside.job_log import iteration_line, note, start_line
from runtime.jobside.job_session import JobSession
from runtime.jobside.messages import CallOutOfOrder, IterationOrder, IterationResult, JobEnd, Stopped
from runtime.jobside.worker import find_death
from runtime.machines.job_processes import mark_process
from runtime.output import capture
from runtime.phases import WorkerDied, runtime_hook, set_session
from runtime.samples import SAMPLES, TRAJECTORIES, write_samples, write_trajectories
from runtime.standstill import PATIENCE, warnings

_DETAILS = 20_000  # last characters of a traceback that are recorded in the journal
_WRITES_S = 60.0  # longest wait for a checkpoint of a job whose processes may be waiting for each other


class Controller:
    """A Ray actor that runs one job.

    Args:
        spec: The job.
        coordinator: Handle of the coordinator's actor.
        logs: Folder of the logs of the job's processes.
        restarted: Reason for a restart, or "" at the first start.
        models: Whether the model of a completed job is written.
    """

    def __init__(self, spec: TaskJob | ClassJob, coordinator: Any, logs: str, restarted: str = "", models: bool = False) -> None:
        capture(logs, "controller")
        mark_process(logs)
        if restarted:
            note(f"restarted: {restarted}")
        self._spec = spec
        self._coordinator = coordinator
        self._job: Any = None
        self._models = models
        self._is_over = False  # whether the last iteration is done
        self._recent: list[dict[str, float]] = []  # metrics of the last iterations
        self._session = JobSession(spec, coordinator, logs)
        self._writer = CheckpointWriter(spec, self._session)
        self._folder = Path(logs).parent.parent  # folder of the run
        self._samples = self._folder / SAMPLES / f"{spec.id}.jsonl"
        self._trajectories = self._folder / TRAJECTORIES / f"{spec.id}.jsonl"
        self._session.watch_memory("its own process", "")

    def identity(self) -> int:
        """Return the process id."""
        return os.getpid()

    def run(self) -> JobEnd:
        """Carry out orders until there are none, and return how the job ended, without objects of the user's classes."""
        try:
            return self._run()
        except BaseException as error:  # the user's `__str__` failed, or closing the job
            return JobEnd("failed", self._session.where or "step", type(error).__name__)

    def _run(self) -> JobEnd:
        where = "start"
        done: IterationResult | None = None
        try:
            self._session.align_clocks()
            set_session(self._session)
            while (order := self._next(done)) is not None:
                where = "step"
                done = self._carry_out(order)
        except Stopped as why:
            note(str(why))
            self._write_last()
            if not self._is_over:
                return JobEnd("stopped")
        except BaseException as error:
            return self._end_of(error, self._session.where or where)
        finally:
            self._session.where = ""
            self._close()
        line, spec = "", self._spec
        if self._models and isinstance(spec, TaskJob):
            line = keep_model(self._folder, self._folder / CHECKPOINTS / spec.id, spec)
        note(f"done; {line}" if line else "done")
        return JobEnd("done", problem=line)

    def _end_of(self, error: BaseException, where: str) -> JobEnd:
        """Return how the job ends by an error, and print the error to its log."""
        problem = one_line(" ".join(str(error).split()), 500) or "no message"
        note(f"ERROR in {where}: {problem}")
        traceback.print_exc()
        died, short = isinstance(error, WorkerDied | ray.exceptions.RayActorError), is_out_of_memory(str(error))
        if not (died or short) and (death := find_death(self._session.workers)) is not None:
            died, problem = True, one_line(str(death), 500)  # the error is that of another process, which has lost this one
            note(f"the reason is that {problem}")
        if died or short:  # the checkpoint in progress may be complete
            self._writer.wait(None if died else _WRITES_S)  # not if a rank waits for another one that had too little memory
        if died:
            return JobEnd("died", where, problem, out_of_memory=short)
        if not isinstance(error, RuntimeError | InputError | CallOutOfOrder):
            problem = f"{type(error).__name__}: {problem}"
        return JobEnd("failed", where, problem, traceback.format_exc()[-_DETAILS:], short)

    def _next(self, done: IterationResult | None) -> IterationOrder | None:
        """Report the result of the last order, and wait for the next one."""
        order: IterationOrder | None = self._session.ask("order", done)
        if done is not None and done.checkpoint is not None:  # the answer means that it is in the journal
            self._writer.drop()
        return order

    def _carry_out(self, order: IterationOrder) -> IterationResult | None:
        session = self._session
        if order.keep:
            self._settle()
            return None
        if self._has_checkpoints(self._job):
            self._writer.write_if_due(self._job)
        began = monotonic()
        session.iteration, session.worst_case = order.iteration, order.profile
        runtime_hook.renew()
        changed = session.place(order.nodes)
        if changed and (session.workers or not order.iteration):  # a job without workers is moved by changing its affinity
            self._close()
        if self._job is None:
            note(start_line(order))
            self._make(order)
            self._writer.begin(Path(order.folder), max(0, order.iteration))
        job, session.in_step = self._job, True
        profiles_itself = hasattr(job, "profile")
        if order.profile and profiles_itself:
            job.profile()
        else:
            _step(job)
        has_checkpoints = self._has_checkpoints(job)
        movable = has_checkpoints or not session.workers
        if order.profile and not profiles_itself:
            self._close()
        session.iteration_done()
        seconds = monotonic() - began
        if order.profile or self._is_over:
            note(f"{'profiled' if order.profile else 'alone'} in {seconds:.2f} s")
            return IterationResult({}, movable, has_checkpoints, is_state_kept=self._job is not None)
        return self._count(order, seconds, movable)

    def _count(self, order: IterationOrder, seconds: float, movable: bool) -> IterationResult:
        """Report and log a completed iteration, and return the result of its order."""
        metrics, has_checkpoints = dict(runtime_hook.metrics), self._has_checkpoints(self._job)
        note(iteration_line(order.iteration + 1, self._spec.iterations, seconds, metrics))
        self._recent = [*self._recent[-PATIENCE:], metrics]
        for line in warnings(self._recent, self._spec.top_p):
            note(f"WARNING: {line}")
        if runtime_hook.reported.samples:
            write_samples(self._samples, order.iteration, runtime_hook.reported.samples)
        if runtime_hook.reported.trajectories:
            write_trajectories(self._trajectories, runtime_hook.reported.trajectories)
        self._writer.iterated(seconds)
        self._is_over = order.iteration + 1 == self._spec.iterations
        return IterationResult(
            metrics, movable, has_checkpoints, self._writer.write(self._job) if has_checkpoints and self._is_over else None
        )

    def _settle(self) -> None:
        """Prepare the job to leave its place: stop its rollouts, and write its state to disk."""
        self._pause()
        self._session.leave_devices()
        if self._has_checkpoints(self._job):
            self._writer.write_now(self._job)
        else:
            self._session.ask("idle")

    def _has_checkpoints(self, job: Any) -> bool:
        """Return whether a job has checkpoints."""
        return self._spec.checkpoint.is_wanted and hasattr(job, "checkpoint")

    def _write_last(self) -> None:
        """Write a checkpoint of the last iteration of a job that stops, if its state is still that one."""
        job = self._job
        if (
            job is None or not self._has_checkpoints(job) or self._session.where == "checkpoint"
        ):  # in the last case there was no room on the disk
            return
        try:
            self._pause()
            self._writer.wait()
            if self._session.is_between(job):
                self._writer.write_now(job)
        except Exception as error:
            note(f"its last checkpoint cannot be written: {one_line(' '.join(str(error).split()), 500)}")

    def _pause(self) -> None:
        """Stop the rollouts of an asynchronous job."""
        if hasattr(self._job, "pause"):
            self._job.pause()

    def _make(self, order: IterationOrder) -> None:
        """Make the job under the permit of a rollout, from a checkpoint if there is one.

        The job's first rollout uses the same permit. An asynchronous job's first rollout asks for its own, since it may have to
        wait for a training.
        """
        session, spec, checkpoint = self._session, self._spec, order.checkpoint
        asynchronous = spec.is_asynchronous and not order.profile
        with session.initialise(keeps_permit=not asynchronous):
            if isinstance(spec, ClassJob):
                self._job = load_named(spec.job_class, spec.folder)(**spec.options)
                if self._has_checkpoints(self._job) and not hasattr(self._job, "restore"):
                    raise InputError(f"{spec.job_class}: has a method checkpoint and no method restore, to continue from it")
            elif spec.is_asynchronous:
                from runtime.grpo.asynchronous import AsynchronousGrpo

                self._job = AsynchronousGrpo(spec)
            else:
                from runtime.grpo.job import Grpo

                self._job = Grpo(spec)
            if checkpoint is not None:
                self._job.restore(Path(checkpoint))
                restore_randomness(Path(checkpoint))
            if asynchronous:
                self._job.load("rollout")  # weights may arrive before its first rollout
                self._job.offload("rollout")
        if asynchronous:
            session.ask("continued", self._job.sampled_ahead)

    def _close(self) -> None:
        if self._job is not None and hasattr(self._job, "close"):
            with contextlib.suppress(BaseException):
                self._job.close()
        self._job = None
        self._session.close_workers()


def _step(job: Any) -> None:
    """Run one iteration of a job."""
    if hasattr(job, "step"):
        job.step()
        return
    methods = {}
    for name in dir(type(job)):
        marked = getattr(getattr(type(job), name, None), "rollmux_phase", None)
        if marked in methods:
            raise CallOutOfOrder(f"{type(job).__name__} has two methods of the phase '{marked}' and no method `step`")
        if marked is not None:
            methods[marked] = getattr(job, name)
    for wanted in ("rollout", "train"):
        if wanted not in methods:
            raise CallOutOfOrder(f'{type(job).__name__} has no method marked with @rollmux.phase("{wanted}"), and no method `step`')
    for wanted in ("rollout", "train", "sync"):
        if wanted in methods:
            methods[wanted]()
