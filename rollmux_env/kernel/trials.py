"""A trial saves the rows that it changes, so that it can be undone: a group's columns depend on its members alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Ints, Records


class Trial(NamedTuple):
    """Jobs and groups before a trial.

    Attributes:
        jobs: Records of jobs before the trial.
        groups: Records of groups before the trial.
        job_rows: Rows of these jobs.
        group_rows: Rows of these groups.
        counts: (2,) numbers of jobs and groups that are saved.
    """

    jobs: Records
    groups: Records
    job_rows: Ints
    group_rows: Ints
    counts: Ints


def make_trial(jobs: Records, groups: Records, most: int) -> Trial:
    """Return room for trials with tables like these records in which at most `most` jobs leave a group and enter another."""
    rows = np.zeros(3 * most, np.int64)
    return Trial(np.zeros(most, jobs.dtype), np.zeros(2 * most, groups.dtype), rows[:most], rows[most:], np.zeros(2, np.int64))


@compiled(arrays=False)
def begin_trial(trial: Trial) -> None:
    """Begin a trial; earlier changes become permanent."""
    trial.counts[0] = trial.counts[1] = 0


@compiled(arrays=False)
def save_job(trial: Trial, jobs: Records, row: int) -> None:
    """Save a job before it changes."""
    at = trial.counts[0]
    trial.jobs[at], trial.job_rows[at] = jobs[row], row
    trial.counts[0] += 1


@compiled(arrays=False)
def save_group(trial: Trial, groups: Records, row: int) -> None:
    """Save a group before it changes."""
    at = trial.counts[1]
    trial.groups[at], trial.group_rows[at] = groups[row], row
    trial.counts[1] += 1


@compiled(arrays=False)
def undo_trial(trial: Trial, jobs: Records, groups: Records) -> None:
    """Restore jobs and groups to the beginning of the trial."""
    for k in range(trial.counts[1] - 1, -1, -1):
        groups[trial.group_rows[k]] = trial.groups[k]
    for k in range(trial.counts[0] - 1, -1, -1):
        jobs[trial.job_rows[k]] = trial.jobs[k]
    begin_trial(trial)
