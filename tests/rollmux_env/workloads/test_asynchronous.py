"""Asynchronous jobs in streams: as many as are asked for, and the rest of the stream as it was."""

from __future__ import annotations

import pytest

from rollmux_env.keys.assumptions import OURS
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions


@pytest.mark.parametrize("name", ["production", "mixed"])
def test_a_share_of_the_jobs_is_asynchronous_and_the_others_are_as_they_were(name: str) -> None:
    plain = make_workload(name, WorkloadOptions(seed=3)).jobs
    some, every = (make_workload(name, WorkloadOptions(seed=3, asynchronous=share)).jobs for share in (0.5, 1))
    stale = [job for job in some if job.staleness]
    assert 0.4 < len(stale) / len(some) < 0.6
    assert {job.staleness for job in stale} == set(OURS.asynchrony.staleness) == {job.staleness for job in every}
    assert all(one == was for one, was in zip(some, plain, strict=True) if not one.staleness)
    assert all(one == other for one, other in zip(some, every, strict=True) if one.staleness)  # a larger share has those of a less


def test_an_asynchronous_job_stays_as_long_alone_at_equal_work() -> None:
    plain, stale = (make_workload("production", WorkloadOptions(asynchronous=share)).jobs for share in (0, 1))
    for was, job in zip(plain, stale, strict=True):
        assert was.iterations is not None and job.iterations is not None
        assert job.sync_s == pytest.approx(0.2 * was.solo_s, abs=1e-3)
        assert abs(was.iterations * was.solo_s - job.iterations * job.solo_s) <= (was.solo_s + job.solo_s) / 2 + 1e-6


def test_a_fixed_stay_is_the_same() -> None:
    plain, stale = (make_workload("mixed", WorkloadOptions(stays="fixed", asynchronous=share)).jobs for share in (0, 1))
    assert [job.duration_s for job in plain] == [job.duration_s for job in stale]
