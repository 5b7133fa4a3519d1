"""The process of one job: it holds the instance of the job's class and does what the coordinator orders."""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path
from typing import Any

from rollmux_env.complaint import one_line
from rollmux_env.errors import InputError
from runtime.execution.gate import JobGate
from runtime.execution.messages import End, Order, OutOfOrder, Stopped
from runtime.jobs.named import load_named
from runtime.jobs.spec import JobSpec
from runtime.phases import runtime_hook, set_gate


class Controller:
    """Runs one job. A Ray actor.

    Args:
        spec: the job. coordinator: whom to ask.
    """

    def __init__(self, spec: JobSpec, coordinator: Any) -> None:
        self._spec = spec
        self._coordinator = coordinator
        self._job: Any = None
        self._gate = JobGate(spec, coordinator)

    def identity(self) -> int:
        """Process id."""
        return os.getpid()

    def run(self) -> End:
        """Carry out orders until there are none."""
        where = "start"
        try:
            self._gate.align_clocks()
            set_gate(self._gate)
            while (order := self._gate.ask("order", dict(runtime_hook.metrics))) is not None:
                where = "step"
                self._carry_out(order)
        except Stopped:
            return End("stopped")
        except BaseException as error:
            problem = one_line(" ".join(str(error).split()), 500) or "no message"
            if not isinstance(error, RuntimeError | InputError | OutOfOrder):
                problem = f"{type(error).__name__}: {problem}"
            return End("failed", self._gate.where or where, problem, traceback.format_exc())
        finally:
            self._gate.where = ""
            self._close()
        return End("done")

    def _carry_out(self, order: Order) -> None:
        gate = self._gate
        gate.iteration, gate.worst_case = order.iteration, order.profile
        runtime_hook.metrics = {}
        changed = gate.place(order.nodes, Path(order.folder))
        if changed and (gate.workers or not order.iteration):  # else it is moved by affinity alone
            self._close()
        if self._job is None:
            self._make(order.folder)
        job = self._job
        if not order.profile:
            _step(job)
        elif hasattr(job, "profile"):
            job.profile()
        else:
            _step(job)
            self._close()
        gate.iteration_done()

    def _make(self, folder: str) -> None:
        """Make the job, under the permit of its first rollout; from its checkpoint, where there is one."""
        gate, spec = self._gate, self._spec
        with gate.initialise():
            if spec.job_class is None:
                from runtime.grpo.job import Grpo

                self._job = Grpo(spec)
            else:
                self._job = load_named(spec.job_class, spec.folder)(**spec.options)
            if Path(folder).is_dir():
                self._job.restore(Path(folder))

    def _close(self) -> None:
        if self._job is not None and hasattr(self._job, "close"):
            with contextlib.suppress(Exception):
                self._job.close()
        self._job = None
        self._gate.close_workers()


def _step(job: Any) -> None:
    """One iteration of a job."""
    if hasattr(job, "step"):
        job.step()
        return
    methods = {}
    for name in dir(type(job)):
        marked = getattr(getattr(type(job), name, None), "rollmux_phase", None)
        if marked in methods:
            raise OutOfOrder(f"{type(job).__name__} has two methods of the phase '{marked}' and no method `step`")
        if marked is not None:
            methods[marked] = getattr(job, name)
    for wanted in ("rollout", "train"):
        if wanted not in methods:
            raise OutOfOrder(f'{type(job).__name__} has no method marked with @rollmux.phase("{wanted}"), and no method `step`')
    for wanted in ("rollout", "train", "sync"):
        if wanted in methods:
            methods[wanted]()
