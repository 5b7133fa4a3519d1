"""The tables of a state: its jobs and groups, with a row for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np

from rollmux_env.kernel import membership
from rollmux_env.kernel.tables import Floats, Records, copied, copy_into, group_table, job_table
from rollmux_env.keys.job import Job
from rollmux_env.keys.shapes import Phases

T = TypeVar("T")


def shallow_copy(original: T) -> T:
    """Return a copy that shares every attribute. It takes a tenth of the time of `copy.copy`."""
    twin = object.__new__(type(original))
    vars(twin).update(vars(original))
    return twin


def _with_attributes(table: Records) -> Records:
    """Return a view of a table as a record array."""
    # `table.view(np.recarray)` derives the type of its records each time, which takes most of the time of a copy.
    return np.ndarray(table.shape, _record_type(table.dtype), table).view(np.recarray)


@cache
def _record_type(columns: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype((np.record, columns))


class Tables:
    """The tables of a state, in the format of `rollmux_env.kernel.tables`. Only `apply` writes them.

    Attributes:
        jobs: Job table as a record array, for access such as `jobs.done[row]`.
        groups: Group table as a record array.
        job_records: Memory of `jobs` in the form that compiled code takes.
        group_records: Memory of `groups` in the form that compiled code takes.
        weights: Weight of each row of `jobs`, including rows of shapes, shape (J,).
        models: Job of each row of `jobs`, including rows of shapes. The first row is that of the first job that arrived.
        job_rows: Row of each job that has arrived, by id; the latest one for a job that has arrived again.
        order: Rows of the current groups in order of creation.
        group_rows: Rows of the current groups by id.
        next_group_id: Id of the next new group.
        widest: Largest number of rollout nodes that a job has asked for, at least 1.
        departs_s: Time at which the next member of each group leaves, in seconds, by row of the group. A contiguous copy, because
            it is read for all groups at every instant.
        node_columns: Columns of `groups` that state the nodes of a group.
        warm: Rows of the job that may start without a cold start in this instant.
        estimated: Jobs with an `estimate` as policies see them, by row, while they are here.
    """

    def __init__(self) -> None:
        self.keep(job_table(16, 1, 1), group_table(16, 1, 1))
        self.weights: Floats = np.zeros(16)
        self.models: list[Job] = []
        self.job_rows: dict[str, int] = {}
        self.order = np.zeros(0, dtype=np.int64)
        self.group_rows: dict[int, int] = {}
        self.next_group_id = 0
        self.widest = 1
        self.warm: list[int] = []
        self.estimated: dict[int, Job] = {}
        self._free: list[int] = []  # unused rows of the group table

    def keep(self, jobs: Records, groups: Records) -> None:
        """Replace the tables, and derive from them the attributes that view or copy them."""
        self.job_records, self.group_records = jobs, groups
        self.jobs, self.groups = _with_attributes(jobs), _with_attributes(groups)
        self.node_columns = groups[["rollout_pool", "training_pool", "n_nodes", "training_nodes"]]
        self.departs_s = groups["departs_s"].copy()

    def copy(self) -> Tables:
        """Return an independent copy."""
        twin = shallow_copy(self)
        twin.keep(copied(self.job_records), copied(self.group_records))
        for name in ("weights", "models", "job_rows", "group_rows", "warm", "estimated", "_free"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def sharing(self) -> Tables:
        """Return tables that share the records of jobs and groups, and have a separate list of groups."""
        twin = shallow_copy(self)
        for name in ("departs_s", "group_rows", "_free"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def save(self, rows: list[int], group: int) -> Callable[[], None]:
        """Return a function that restores the records of some jobs and of a group as they are now.

        Args:
            rows: Rows of the jobs.
            group: Row of the group.
        """
        # Rows of bytes: NumPy copies records column by column.
        jobs, groups = (table.view(np.uint8).reshape(len(table), -1) for table in (self.job_records, self.group_records))
        jobs_before, group_before = jobs[rows], groups[group].copy()

        def restore() -> None:
            jobs[rows], groups[group] = jobs_before, group_before

        return restore

    def job_id(self, row: int) -> str:
        """Return the id of the job in a row of the job table."""
        return self.models[row].id

    def phases(self, row: int) -> Phases:
        """Return the phases of a job in the shape of a row of the job table."""
        return self.models[row].phases(int(self.job_records["of_shape"][row]))

    def shape_rows(self, row: int) -> range:
        """Return the rows of a job's shapes, or its own row if it has only one shape."""
        first = int(self.job_records["first_shape"][row])
        return range(first, first + 1 + int(self.job_records["more_shapes"][row]))

    def members(self, group: int) -> list[int]:
        """Return the rows of the jobs of a group, given by its row, in order of admission."""
        rows: list[int] = self.group_records["members"][group, : self.group_records["n_members"][group]].tolist()
        return rows

    def next_departure_s(self) -> float:
        """Return the time of the next departure if nothing changes before, or infinity."""
        return float(self.departs_s[self.order].min()) if self.order.size else np.inf

    def departing(self, until_s: float) -> list[str]:
        """Return the ids of the running jobs that leave by `until_s`, in order of arrival."""
        jobs, groups = self.job_records, self.group_records
        members = [row for group in self.order[self.departs_s[self.order] <= until_s] for row in self.members(group)]
        return [self.job_id(row) for row in sorted(members) if membership.departure_s(jobs, groups, row) <= until_s]

    # The following methods are for `apply` only.

    def add(self, job: Job, pins: int, steps: int) -> int:
        """Add rows for a job and its shapes. Only the stay is filled in.

        Args:
            job: The job.
            pins: Largest number of rollout nodes over its shapes.
            steps: Largest number of rescaling steps over its shapes.

        Returns:
            The first of the rows.
        """
        row, shapes, jobs = len(self.models), 1 + len(job.shapes), self.job_records
        end = row + 1 + (shapes if job.shapes else 0)
        size, width, depth = len(jobs), jobs["pins"].shape[1], jobs["rescale_s"].shape[1]
        if end > size or pins > width or steps > depth:
            larger = job_table(max(2 * size, end) if end > size else size, max(width, pins), max(depth, steps))
            copy_into(larger, jobs)
            self.keep(jobs := larger, self.group_records)
            self.weights = np.append(self.weights, np.zeros(len(jobs) - size))
        self.models += [job] * (end - row)
        self.job_rows[job.id] = row
        jobs["more_shapes"][row], jobs["first_shape"][row:end] = len(job.shapes), row + bool(job.shapes)
        if job.shapes:
            jobs["more_shapes"][row + 1 : end], jobs["of_shape"][row + 1 : end] = -1, np.arange(shapes)
        self.weights[row:end] = job.weight
        jobs["arrival_s"][row:end] = job.arrival_s
        jobs["duration_s"][row:end] = np.inf if job.duration_s is None else job.duration_s
        jobs["iterations"][row:end] = np.inf if job.iterations is None else job.iterations
        return row

    def open_group(self) -> tuple[int, int]:
        """Add a group as the last one. Return its row and its id."""
        if not self._free:
            used = self.order.size
            if used == len(self.group_records):
                self._grow_groups(2 * used, 0, 0)
            self._free.append(used)
        group, number = self._free.pop(), self.next_group_id
        self.group_rows[number] = group
        self.next_group_id += 1
        self.order = np.append(self.order, group)
        return group, number

    def close_group(self, group: int) -> None:
        """Remove a group and free its row."""
        self.order = self.order[self.order != group]
        del self.group_rows[int(self.group_records["id"][group])]
        self._free.append(group)

    def make_room(self, group: int, new_nodes: int) -> None:
        """Make room for one more member and `new_nodes` more rollout nodes in the record of a group."""
        groups = self.group_records
        members, nodes = int(groups["n_members"][group]) + 1, int(groups["n_nodes"][group]) + new_nodes
        if members > groups["members"].shape[1] or nodes > groups["node_number"].shape[1]:
            self._grow_groups(len(groups), members, nodes)

    def _grow_groups(self, rows: int, members: int, nodes: int) -> None:
        now = self.group_records
        larger = group_table(rows, max(members, now["members"].shape[1]), max(nodes, now["node_number"].shape[1]))
        copy_into(larger, now)
        self.keep(self.job_records, larger)
