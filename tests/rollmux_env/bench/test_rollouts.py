"""The suite `rollout` as data, and how it measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.makers import makers
from policies.rollout import make_rollout, migrating
from rollmux_env.bench.suites import find_suite, rollout
from rollmux_env.bench.suites.rollout import (
    AT,
    COLUMNS,
    DOLLARS,
    GAIN,
    OVER_BEST,
    SECONDS,
    RolloutCase,
    pair_s,
    rollout_rows,
    setting,
)
from rollmux_env.bench.suites.tables import PACKED_JOBS, make_packed_lengths
from rollmux_env.errors import InputError
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import setting_of
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.modelled import with_models

MAKERS = makers()


def test_every_figure_of_the_papers_has_its_cell_and_every_policy_can_be_made() -> None:
    cells = {(case.label, policy, column.heading) for case in rollout.CASES for policy in case.policies for column in COLUMNS}
    assert set(rollout.SUITE.paper) <= cells
    assert len({case.label for case in rollout.CASES}) == len(rollout.CASES)
    for case in rollout.CASES:
        for policy in case.policies:
            make_rollout(policy.rpartition("/")[2].partition(AT)[0])
        assert set(case.static) <= set(case.policies)
    for policy in rollout.SWEPT:
        make_rollout(policy)


def test_a_gain_is_the_first_policys_figure_over_a_policys_seed_by_seed() -> None:
    figures = {("a", 0): 6.0, ("a", 1): 9.0, ("b", 0): 3.0, ("b", 1): 3.0}
    case = RolloutCase("case", ("a", "b"), lambda policy, seed, quick, makers: figures[policy, seed], DOLLARS)
    first, second = rollout_rows([case], (0, 1), False, MAKERS)
    found = [row.figures[figure] for row, figure in ((first, GAIN), (second, GAIN), (second, DOLLARS))]
    assert [figure and figure.mean for figure in found] == [1, 2.5, 3]
    assert second.figures[SECONDS] is None


def test_a_gain_over_the_best_size_is_over_the_best_of_those_that_never_change() -> None:
    figures = {"small": 8.0, "large": 5.0, "adaptive": 4.0}
    case = RolloutCase("case", tuple(figures), lambda policy, *_: figures[policy], static=("small", "large"))
    rows = rollout_rows([case], (0,), False, MAKERS)
    assert [(mean := row.figures[GAIN]) and mean.mean for row in rows] == [1, 1.6, 2]
    assert [(mean := row.figures[OVER_BEST]) and mean.mean for row in rows] == [0.625, 1, 1.25]


def test_migration_makes_a_pair_of_7b_jobs_faster() -> None:
    plain, moved = (pair_s(("7B-4k", "7B-4k"), policy, 0, True, MAKERS) for policy in ("plain", "tail-migration"))
    assert 1.05 < plain / moved < 1.25  # the paper's 1.12


def test_careful_migration_costs_a_long_job_beside_a_short_one_nothing() -> None:
    policies = ("plain", "tail-migration", "tail-migration,careful=true")
    plain, moved, careful = (pair_s(("7B-8k", "14B-8k"), policy, 0, True, MAKERS) for policy in policies)
    assert moved > plain > careful


def test_jobs_of_the_catalogue_become_jobs_with_models() -> None:
    stream = make_workload("production", WorkloadOptions(jobs=40))
    found = with_models(stream)
    for job, other in zip(stream.jobs, found.jobs, strict=True):
        assert (job.id, job.arrival_s, job.slo, job.iterations) == (other.id, other.arrival_s, other.slo, other.iterations)
        inside = setting_of(other)
        assert inside is not None and inside.lengths.cap == 1024 * int(job.id.split("-")[1].removesuffix("k"))


def test_a_dispatch_policy_migrates_when_the_rollout_policy_does() -> None:
    assert migrating("fifo", make_rollout("plain")) == "fifo"
    assert migrating("fifo", make_rollout("tail-batching+tail-migration,at=0.7")) == "fifo,migrate=0.7"
    assert migrating("fifo", make_rollout("tail-migration,careful=true")) == "fifo,migrate=0.8,careful=true"
    assert migrating("round-robin,migrate=0.9", make_rollout("tail-migration")) == "round-robin,migrate=0.9"
    assert migrating("fifo", make_rollout("tail-migration,share=0.25")) == "fifo,migrate=0.8,share=0.25"


@pytest.mark.parametrize(
    ("size", "gpus", "cap", "sizes"),
    [("14B", 48, 16384, [1, 2, 4, 8]), ("14B", 12, 16384, [1, 2, 4]), ("32B", 64, 32768, [2, 4, 8])],
)
def test_replicas_of_every_size_that_fits_are_offered(size: str, gpus: int, cap: int, sizes: list[int]) -> None:
    found = setting(size, "H800", gpus, 2, make_packed_lengths(cap))
    assert [size for size, _ in found.timings] == sizes


def test_the_jobs_of_the_paper_have_its_tensor_parallelism() -> None:
    assert {job.size: job.parallel for job in PACKED_JOBS.values()} == {"7B": 1, "14B": 2, "32B": 2}


def test_the_planner_halves_the_profiled_size_after_four_rollouts_without_preemptions() -> None:
    where = setting("14B", "H800", 16, 2, make_packed_lengths(4096))
    half = replace(where, parallel=1)
    jobs = [
        JobRollouts(at, make_rollout(name), 0) for at, name in ((where, "parallelism-planner"), (where, "plain"), (half, "plain"))
    ]
    found = [[job.next().seconds for job in jobs] for _ in range(5)]
    assert all(planned == same for planned, same, _ in found[:4])
    assert found[4][0] == found[4][2] != found[4][1]


def test_an_unknown_suite_is_told_of_this_one() -> None:
    with pytest.raises(InputError, match="rollout"):
        find_suite("none")
