"""Rows that a trial changes are kept as they were, so that it can be taken back: a group's columns depend on its members alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Ints, Records


class Trial(NamedTuple):
    """What jobs and groups were before a trial.

    Attributes:
        jobs, groups: records as they were. job_rows, group_rows: where. counts: (2,) how many jobs and groups are kept.
    """

    jobs: Records
    groups: Records
    job_rows: Ints
    group_rows: Ints
    counts: Ints


def make_trial(jobs: Records, groups: Records, most: int) -> Trial:
    """Room for trials with tables like these records that change so many jobs, each of which leaves a group and enters another."""
    rows = np.zeros(3 * most, np.int64)
    return Trial(np.zeros(most, jobs.dtype), np.zeros(2 * most, groups.dtype), rows[:most], rows[most:], np.zeros(2, np.int64))


@compiled(arrays=False)
def begin_trial(trial: Trial) -> None:
    """What has been changed so far stays as it is."""
    trial.counts[0] = trial.counts[1] = 0


@compiled(arrays=False)
def keep_job(trial: Trial, jobs: Records, row: int) -> None:
    """A job is about to change."""
    at = trial.counts[0]
    trial.jobs[at], trial.job_rows[at] = jobs[row], row
    trial.counts[0] += 1


@compiled(arrays=False)
def keep_group(trial: Trial, groups: Records, row: int) -> None:
    """A group is about to change."""
    at = trial.counts[1]
    trial.groups[at], trial.group_rows[at] = groups[row], row
    trial.counts[1] += 1


@compiled(arrays=False)
def take_back(trial: Trial, jobs: Records, groups: Records) -> None:
    """Jobs and groups are as they were when the trial began."""
    for k in range(trial.counts[1] - 1, -1, -1):
        groups[trial.group_rows[k]] = trial.groups[k]
    for k in range(trial.counts[0] - 1, -1, -1):
        jobs[trial.job_rows[k]] = trial.jobs[k]
    begin_trial(trial)
