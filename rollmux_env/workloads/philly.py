"""`philly`: arrivals and stays from a trace in the format of Microsoft's Philly traces, phase times from a profile.

The file is CSV (UTF-8) with a header. These columns are read, in any order; others are ignored:

- `timestamp`: submission, ISO 8601 (UTC without an offset) or a number of seconds; rows need not be sorted
- `duration`: seconds; rows of duration 0 never ran and are skipped
- `cluster` (or `vc`): virtual cluster, needed only to choose one

The option `columns` names others, and further ones: `start` and `end` in place of a duration, `user`, and `gpus`, which are whole
nodes of 8 of each pool; rows of 0 GPUs are skipped.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.files import DATA_BYTES, read_text
from rollmux_env.keys.job import Job
from rollmux_env.progress import ProgressLines, say_read
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import describe, one_line
from rollmux_env.workloads import draws
from rollmux_env.workloads.catalogue import paper_cluster
from rollmux_env.workloads.options import MAX_JOBS, STREAM_OPTIONS, WorkloadOptions
from rollmux_env.workloads.profiles import profile_jobs
from rollmux_env.workloads.trace_columns import TraceColumns, TraceRow, parse_columns

_OF_TRACE = {"profile", "csv", "columns", "window_start_h", "window_h", "virtual_cluster", "min_stay_h", "max_stay_h"}
OPTIONS = STREAM_OPTIONS | _OF_TRACE
GPUS_PER_NODE = 8
_LOOKS = 4096  # rows between two reports of progress
_MAX_NAMED_CLUSTERS = 10  # largest number of virtual clusters that an error message names


def philly(options: WorkloadOptions) -> Scenario:
    """Return the selected rows as jobs of a profile, in order of submission. The first one arrives at 0.

    Raises:
        InputError: If no file is given or it cannot be used. The message names file, line and column.
    """
    trace = PhillyTrace(options)
    scenario = trace.scenario(options.seed)
    say_read(Path(str(options.csv)), trace.note + draws.stays_note(options, trace.stays_s, scenario.jobs))
    return scenario


class PhillyTrace:
    """The selected rows of a trace, from which each seed draws phase times and SLOs. The file is read once.

    Args:
        options: Options of the workload, whose seed is not used.

    Attributes:
        cluster: Cluster of all streams.
        jobs: Number of jobs of a stream.
        note: Description of the selection.
        stays_s: Stay of each job, in seconds.

    Raises:
        InputError: If no file is given or it cannot be used. The message names file, line and column.
    """

    def __init__(self, options: WorkloadOptions) -> None:
        self._options = options
        self._rows, read = _select_rows(options)
        left_out = f" ({read - len(self._rows):,} are left out: of duration 0, or by the options)" if len(self._rows) < read else ""
        made_up = f"phase times and SLOs are drawn from the profile {options.profile}"
        width = "" if any(row.gpus for row in self._rows) else "; each has one node of each pool, since columns= names none of gpus"
        self.note = f"{len(self._rows):,} of {read:,} rows are jobs{left_out}; {made_up}{width}"
        times = np.array([row[:2] for row in self._rows])
        self._arrivals_s = draws.times(draws.at_pace(options, times[:, 0] - times[0, 0]))
        self.stays_s = draws.seconds(times[:, 1])
        self.cluster, self.jobs = paper_cluster(options.max_group_size), len(self._rows)
        self.nodes = max(_nodes(row) for row in self._rows)

    def scenario(self, seed: int) -> Scenario:
        """Return the stream of a seed."""
        options = replace(self._options, seed=seed)
        jobs = profile_jobs(options.profile, options, self._arrivals_s, self.stays_s)
        if any(row.user or row.gpus for row in self._rows):
            jobs = tuple(_as_wide(job, row) for job, row in zip(jobs, self._rows, strict=True))
        return Scenario(version=1, cluster=self.cluster, jobs=jobs)


def _select_rows(options: WorkloadOptions) -> tuple[list[TraceRow], int]:
    """Return the rows that become jobs, in order of submission, and the number of rows that were read."""
    if options.csv is None:
        raise InputError("csv: the workload philly needs a trace file")
    path = Path(options.csv)
    name = one_line(str(path), 4096)
    others: Counter[str] = Counter()
    rows = sorted(_rows(path, name, options, others), key=lambda row: row.submitted_s)
    if not rows and others:
        known = [f"{cluster} ({count:,} rows)" for cluster, count in others.most_common(_MAX_NAMED_CLUSTERS)]
        more = f" and {len(others) - _MAX_NAMED_CLUSTERS} more" if len(others) > _MAX_NAMED_CLUSTERS else ""
        asked = describe(options.virtual_cluster)
        raise InputError(f"virtual_cluster: {name} has none called {asked}; it has {', '.join(map(one_line, known))}{more}")
    read = len(rows) + others.total()
    if rows:
        start_s = rows[0][0] + 3600 * options.window_start_h
        end_s = start_s + 3600 * (math.inf if options.window_h is None else options.window_h)
        low_s = 3600 * options.min_stay_h
        high_s = 3600 * (math.inf if options.max_stay_h is None else options.max_stay_h)
        rows = [row for row in rows if start_s <= row[0] <= end_s and low_s <= row[1] <= high_s and row[1] > 0 and row.gpus != 0]
    rows = rows[: options.jobs or MAX_JOBS]
    if not rows:
        raise InputError(f"{name}: no row is left by the options; the file needs one with a duration above 0 in the window")
    return rows, read


def _rows(path: Path, name: str, options: WorkloadOptions, others: Counter[str]) -> Iterator[TraceRow]:
    """Yield the rows of a virtual cluster, or of all. Rows of other virtual clusters are counted in `others`."""
    reader = csv.reader(io.StringIO(read_text(path, DATA_BYTES), newline=""), strict=True)
    try:
        with ProgressLines(f"reading {name}") as progress:
            for number, row in enumerate(_parse(name, reader, options, others), 1):
                if not number % _LOOKS:
                    progress.report(f"line {reader.line_num:,}")
                yield row
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num}: is not CSV: {error}") from None


def _parse(name: str, reader: Iterator[list[str]], options: WorkloadOptions, others: Counter[str]) -> Iterator[TraceRow]:
    header = [name.strip() for name in next(reader, [])]
    for column, times in Counter(header).items():
        if column and times > 1:
            raise InputError(f"{name}: line 1: the column {describe(column)} is there twice")
    columns = TraceColumns(name, header, parse_columns(options.columns), options.virtual_cluster is not None)
    for row in reader:
        if not any(map(str.strip, row)):  # spreadsheets write a blank line as commas
            continue
        where = f"{name}: line {reader.line_num}"  # type: ignore[attr-defined]
        columns.check(where, row)
        if (cluster := columns.cluster(row)) is not None and cluster != options.virtual_cluster:
            others[cluster] += 1
            continue
        yield columns.read(where, row)


def _nodes(row: TraceRow) -> int:
    """Return the number of nodes of each pool that the GPUs of a row fill."""
    return max(1, ceil((row.gpus or 1) / GPUS_PER_NODE))


def _as_wide(job: Job, row: TraceRow) -> Job:
    """Return the job with the user of its row, on as many nodes of each pool as its GPUs fill."""
    nodes = _nodes(row)
    sides = {side: getattr(job, side).model_copy(update={"nodes": nodes}) for side in ("rollout", "training")}
    return job.model_copy(update={"user": row.user, **(sides if nodes > 1 else {})})
