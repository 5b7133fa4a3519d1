"""The checks of jobs that are submitted to a service, before any of them is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rollmux_env.errors import Conflict, InputError, Stopping, Unprocessable
from runtime.jobs.spec import JobSpec
from runtime.journal.write import Unwritable
from runtime.machines.forecast import check_memory, check_space, checkpoint_bytes, forecasts, limits
from runtime.run.driver import RunDriver
from runtime.service.plan import MOST_JOBS, check_limits
from runtime.service.quotas import UserQuotas


class Admission:
    """Decides whether a service can take jobs.

    Args:
        driver: Driver of the service's run.
        quotas: Quotas of the users.
    """

    def __init__(self, driver: RunDriver, quotas: UserQuotas) -> None:
        self._driver, self._run, self._quotas = driver, driver.run, quotas

    def check(self, specs: Sequence[JobSpec]) -> list[str]:
        """Check that jobs can be taken, and return a line about each job whose memory may not suffice.

        Args:
            specs: Jobs in order.

        Raises:
            InputError: As in `RunService.submit`; one line.
        """
        run = self._run
        if self._driver.rolls_over:
            raise Stopping("the service begins the next part of its journal; ask again")
        if run.stopping or run.over.done():
            raise Conflict("the service is stopping; it takes no more jobs")
        if run.log.problem is not None:
            raise Unwritable(run.log.problem)
        self._check_each(specs)
        present = len(run.handles)  # those that have ended need not be counted as long as all are within the limit
        if present + len(specs) > MOST_JOBS:
            present = sum(not handle.life.is_gone for handle in run.handles.values())
        check_limits(specs, present)
        self._quotas.check(specs)
        try:
            return self._check_room(specs)
        except InputError as error:
            raise Unprocessable(str(error)) from None

    def _check_each(self, specs: Sequence[JobSpec]) -> None:
        """Check that the names of jobs are new, and that each job could run on the service's nodes."""
        run, ids = self._run, Counter(spec.id for spec in specs)
        for spec, beyond in zip(specs, run.capacity.new_beyond(specs), strict=True):
            if spec.id in run.handles or ids[spec.id] > 1:
                again = "names can be used again once its journal is rolled over without jobs"
                raise Conflict(f"job {spec.id}: this service has had a job of that name; {again}")
            if (left := run.checkpoints(spec.id)).exists():
                raise Conflict(f"job {spec.id}: an earlier job of that name has left {left}; move it first")
            if problem := beyond or self._driver.lacks(spec):
                raise Unprocessable(f"job {spec.id}: {problem}")

    def _check_room(self, specs: Sequence[JobSpec]) -> list[str]:
        """Check that there is disk space for the jobs' checkpoints and memory for the jobs; return lines as `check` does."""
        run, lines = self._run, list[str]()
        writing = [number for number, spec in enumerate(specs) if checkpoint_bytes(spec)]
        present = [handle.spec for handle in run.handles.values() if not handle.life.is_gone] if writing else []
        for number in writing:
            check_space([*present, *specs[: number + 1]], Path(run.plan.folder), f"job {specs[number].id}")
        if expected := forecasts(specs, run.plan.nodes):
            check_memory(expected, limits(run.plan.nodes, None), lines.append)
        return lines
