"""The workers of a job are closed at the same time, since each one that is stuck takes 10 s."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier
from typing import Any, cast

import pytest

from runtime.grpo.job import Grpo
from runtime.jobside.job_session import JobSession
from tests.runtime.jobs.task_job import task_job


class Stuck:
    """A worker whose `close` returns once that of every other one has begun."""

    def __init__(self, begun: Barrier) -> None:
        self.close = begun.wait


def of_a_task(stuck: list[Any]) -> Callable[[], None]:
    job = Grpo(task_job({"id": "a", "slo": 2, "iterations": 1, "task": "echo", "model": "tiny"}))
    job._engines._workers, job._engines._reward_workers, job._ranks._workers = stuck[:2], stuck[2:3], stuck[3:]
    return job.close


def of_a_session(stuck: list[Any]) -> Callable[[], None]:
    session = JobSession(task_job({"id": "a", "slo": 2, "iterations": 1, "task": "echo", "model": "tiny"}), None, "")
    session.workers.extend(stuck)
    return session.close_workers


@pytest.mark.parametrize("make", [of_a_task, of_a_session])
def test_no_worker_waits_for_the_close_of_another(make: Callable[[list[Any]], Callable[[], None]]) -> None:
    begun = Barrier(5, timeout=60)
    make([cast(Any, Stuck(begun)) for _ in range(5)])()
    assert not begun.broken
