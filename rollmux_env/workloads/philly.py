"""`philly`: arrivals and stays from a trace in the format of Microsoft's Philly traces, phase times from a profile.

The file is CSV (UTF-8) with a header. These columns are read, in any order; others are ignored:

- `timestamp`: submission, ISO 8601 (UTC without an offset) or a number of seconds; rows need not be sorted
- `duration`: seconds; rows of duration 0 never ran and are skipped
- `cluster` (or `vc`): virtual cluster, needed only to choose one
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.files import DATA_BYTES, read_text
from rollmux_env.progress import ProgressLines, say_read
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import describe, one_line
from rollmux_env.workloads import draws
from rollmux_env.workloads.catalogue import paper_cluster
from rollmux_env.workloads.options import MAX_JOBS, WorkloadOptions
from rollmux_env.workloads.profiles import profile_jobs

OPTIONS = frozenset(
    {"seed", "jobs", "stays", "slo", "max_group_size", "asynchronous", "assumptions", "profile", "csv"}
    | {"window_start_h", "window_h", "virtual_cluster", "min_stay_h", "max_stay_h"}
)
CLUSTER_COLUMNS = ("cluster", "vc")
_LOOKS = 4096  # rows between two reports of progress
_NAMED = 10  # largest number of virtual clusters that an error message names
MOST_S = 1e12  # largest timestamp; beyond it, rounding would hide differences


def philly(options: WorkloadOptions) -> Scenario:
    """Return the selected rows as jobs of a profile, in order of submission. The first one arrives at 0.

    Raises:
        InputError: If no file is given or it cannot be used. The message names file, line and column.
    """
    if options.csv is None:
        raise InputError("csv: the workload philly needs a trace file")
    path = Path(options.csv)
    name = one_line(str(path), 4096)
    others: Counter[str] = Counter()
    rows = sorted(_rows(path, name, options.virtual_cluster, others), key=lambda row: row[0])
    if not rows and others:
        known = [f"{cluster} ({count:,} rows)" for cluster, count in others.most_common(_NAMED)]
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        asked = describe(options.virtual_cluster)
        raise InputError(f"virtual_cluster: {name} has none called {asked}; it has {', '.join(map(one_line, known))}{more}")
    read = len(rows) + others.total()
    if rows:
        start_s = rows[0][0] + 3600 * options.window_start_h
        end_s = start_s + 3600 * (math.inf if options.window_h is None else options.window_h)
        low_s = 3600 * options.min_stay_h
        high_s = 3600 * (math.inf if options.max_stay_h is None else options.max_stay_h)
        rows = [row for row in rows if start_s <= row[0] <= end_s and low_s <= row[1] <= high_s and row[1] > 0]
    rows = rows[: options.jobs or MAX_JOBS]
    if not rows:
        raise InputError(f"{name}: no row is left by the options; the file needs one with a duration above 0 in the window")
    times = np.array(rows)
    arrivals_s = draws.times(times[:, 0] - times[0, 0])
    stays_s = draws.seconds(times[:, 1])
    jobs = profile_jobs(options.profile, options, arrivals_s, stays_s)
    left_out = f" ({read - len(rows):,} are left out: of duration 0, or by the options)" if len(rows) < read else ""
    made_up = f"phase times and SLOs are drawn from the profile {options.profile}"
    note = draws.stays_note(options, stays_s, jobs)
    say_read(path, f"{len(rows):,} of {read:,} rows are jobs{left_out}; {made_up}{note}")
    return Scenario(version=1, cluster=paper_cluster(options.max_group_size), jobs=jobs)


def _rows(path: Path, name: str, virtual_cluster: str | None, others: Counter[str]) -> Iterator[tuple[float, float]]:
    """Yield submission and duration of the rows of a virtual cluster, or of all, in seconds.

    Rows of other virtual clusters are counted in `others`.
    """
    reader = csv.reader(io.StringIO(read_text(path, DATA_BYTES), newline=""), strict=True)
    try:
        with ProgressLines(f"reading {name}") as progress:
            for number, row in enumerate(_parsed(name, reader, virtual_cluster, others), 1):
                if not number % _LOOKS:
                    progress.report(f"line {reader.line_num:,}")
                yield row
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num}: is not CSV: {error}") from None


def _parsed(
    name: str, reader: Iterator[list[str]], virtual_cluster: str | None, others: Counter[str]
) -> Iterator[tuple[float, float]]:
    header = [name.strip() for name in next(reader, [])]
    for column, times in Counter(header).items():
        if column and times > 1:
            raise InputError(f"{name}: line 1: the column {describe(column)} is there twice")
    submitted, lasted = _column(name, header, "timestamp"), _column(name, header, "duration")
    cluster = None
    if virtual_cluster is not None:
        cluster = _column(name, header, *CLUSTER_COLUMNS)
    for row in reader:
        if not row:
            continue
        where = f"{name}: line {reader.line_num}"  # type: ignore[attr-defined]
        for index in (submitted, lasted, cluster):
            if index is not None and index >= len(row):
                raise InputError(f"{where}: {header[index]}: is missing")
        if cluster is not None and row[cluster].strip() != virtual_cluster:
            others[row[cluster].strip()] += 1
            continue
        yield _timestamp(f"{where}: timestamp", row[submitted]), _duration(f"{where}: duration", row[lasted])


def _column(name: str, header: list[str], *columns: str) -> int:
    for column in columns:
        if column in header:
            return header.index(column)
    raise InputError(f"{name}: line 1: the column {' or '.join(columns)} is missing")


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _duration(where: str, text: str) -> float:
    duration_s = _seconds(text)
    if duration_s is None or not 0 <= duration_s <= 1e9:
        raise InputError(f"{where}: must be a number of seconds from 0 to 1e9, not {describe(text)}")
    return duration_s


def _timestamp(where: str, text: str) -> float:
    submitted_s = _seconds(text)
    if submitted_s is None:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InputError(f"{where}: must be a time such as 2017-12-01 18:39:32, not {describe(text)}") from None
        try:
            submitted_s = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            submitted_s = math.nan
    if not -MOST_S <= submitted_s <= MOST_S:
        raise InputError(f"{where}: must be a finite time, not {describe(text)}")
    return submitted_s
