"""`mixed`, `balanced`, `rollout-heavy` and `train-heavy`: the simulation profiles of RollMux, arXiv 2512.11306, Table 6.

A profile gives the ranges from which a job's rollout and training seconds are drawn, independently, in three sizes. The paper's
arrivals and stays are a segment of Microsoft's Philly trace: 300 jobs over 580 h, with stays of mean 14.4 h, the longest 142.9 h.
Its rows are in the authors' repository (the workload `authors` reads them). The streams here are fitted to it, so that there can be
many: gamma gaps with coefficient of variation 1.83 and lognormal stays with sigma 1.59, both as in the one-GPU jobs of the trace's
virtual cluster 6c71a0, which resembles the segment; mu is chosen for a mean of 14.4 h with no stay above 142.9 h. The workload
`philly` takes arrivals and stays from a trace itself.

Every job keeps the same host memory resident, that of a 7B model, so that five of them always fit on a node: at the default group
size only time limits packing, as in the paper's simulations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.portable import between, uniform
from rollmux_env.published import source
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import not_one_of
from rollmux_env.workloads import draws
from rollmux_env.workloads.catalogue import paper_cluster, phases
from rollmux_env.workloads.draws import with_staleness
from rollmux_env.workloads.options import STREAM_OPTIONS, STRUCTURE_OPTIONS, WorkloadOptions
from rollmux_env.workloads.structure import in_order_of_traits, with_labels

_ROLLMUX = source("rollmux")
RANGES_S = _ROLLMUX.table("profiles", tuple[str, float, float, float, float])
"""Profile, size, and the ranges of its phases: seconds of the shortest and the longest rollout, then of the trainings."""

NAMES = ("mixed", *dict(RANGES_S))
SHORT = {"balanced": "BL", "rollout-heavy": "RH", "train-heavy": "TH"}
JOBS, LAST_ARRIVAL_H, LONGEST_STAY_H = _ROLLMUX.value("profile_stream", tuple[int, float, float])
STAY_MU, STAY_SIGMA, GAP_CV = 1.804, 1.59, 1.83
OPTIONS = STREAM_OPTIONS | STRUCTURE_OPTIONS


def profile_workload(name: str, options: WorkloadOptions) -> Scenario:
    """Return a stream of jobs of a profile, with one rollout and one training node each. `mixed` is uniform over all nine ranges.

    Args:
        name: Name of the profile, one of `NAMES`.
        options: Options of the workload.

    Raises:
        InputError: If the profile is unknown.
    """
    jobs = profile_jobs(name, options, *draw_times(name, options))
    return Scenario(version=1, cluster=paper_cluster(options.max_group_size), jobs=with_labels(jobs, options))


def draw_times(name: str, options: WorkloadOptions) -> tuple[list[float], list[float]]:
    """Draw the arrivals and stays of a profile's stream, in seconds."""
    n = options.jobs or JOBS
    mean_gap_s = 3600 * LAST_ARRIVAL_H / (JOBS - 1)
    arrivals_s = draws.times(draws.at_pace(options, draws.gamma_arrivals(options.seed, n, mean_gap_s, GAP_CV)))
    stays_h = draws.lognormal_up_to(uniform(options.seed, "stays", n), STAY_MU, STAY_SIGMA, LONGEST_STAY_H)
    if options.has_structure:
        drawn = draw_profile(name, options, n)
        solo_s = [rollout_s + training_s for rollout_s, training_s in zip(drawn.rollouts_s, drawn.trainings_s, strict=True)]
        stays_h = in_order_of_traits(options, stays_h, arrivals_s, solo_s)
    return arrivals_s, draws.seconds(3600 * stays_h)


class ProfileDraws(NamedTuple):
    """The draws of n jobs of a profile.

    Attributes:
        cells: Name of each job's range.
        rollouts_s: Rollout of each job, in seconds.
        trainings_s: Training of each job, in seconds.
        slos: SLO of each job.
    """

    cells: list[str]
    rollouts_s: list[float]
    trainings_s: list[float]
    slos: list[float]


def draw_profile(name: str, options: WorkloadOptions, n: int) -> ProfileDraws:
    """Return the draws of `profile_jobs` without building jobs, since learners need thousands of streams.

    Args:
        name: Name of the profile, one of `NAMES`.
        options: Options of the workload.
        n: Number of jobs.

    Raises:
        InputError: If the profile is unknown.
    """
    if name not in NAMES:
        raise InputError(f"profile: {not_one_of(name, NAMES)}")
    cells = [(f"{SHORT[profile]}-{size}", ranges) for profile, (size, *ranges) in RANGES_S if name in ("mixed", profile)]
    seed = options.seed
    drawn = np.floor(len(cells) * uniform(seed, "profiles", n)).astype(np.int64)
    ranges = np.array([cell[1] for cell in cells], dtype=np.float64)[drawn]
    rollouts_s = draws.seconds(between(uniform(seed, "rollouts", n), ranges[:, 0], ranges[:, 1]))
    trainings_s = draws.seconds(between(uniform(seed, "trainings", n), ranges[:, 2], ranges[:, 3]))
    return ProfileDraws([cells[k][0] for k in drawn.tolist()], rollouts_s, trainings_s, draws.slos(options, n))


def profile_jobs(name: str, options: WorkloadOptions, arrivals_s: list[float], stays_s: list[float]) -> tuple[Job, ...]:
    """Return jobs of a profile with given arrivals and stays.

    Args:
        name: Name of the profile, one of `NAMES`.
        options: Options of the workload.
        arrivals_s: Arrival of each job, in seconds.
        stays_s: Stay of each job, in seconds.

    Raises:
        InputError: If the profile is unknown.
    """
    drawn = draw_profile(name, options, len(arrivals_s))
    jobs = [
        Job(
            id=f"{drawn.cells[k]}-{k:03d}",
            arrival_s=arrivals_s[k],
            slo=drawn.slos[k],
            **phases(7, (drawn.rollouts_s[k], drawn.trainings_s[k]), with_switches=False),
            **draws.stay(options, stays_s[k], drawn.rollouts_s[k] + drawn.trainings_s[k]),
        )
        for k in range(len(arrivals_s))
    ]
    return with_staleness(jobs, stays_s, options)
