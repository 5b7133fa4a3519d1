"""The pictures of `rollmux trace`: the choice of group and window, and the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

from rollmux_env.cluster.events import Event
from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from rollmux_env.replay.run import Run
from rollmux_env.report.folder import make_folder
from rollmux_env.report.gantt import gantt_picture
from rollmux_env.report.lanes import POOLS, Membership, follow, shares
from rollmux_env.report.perfetto import happened, trace_json
from rollmux_env.report.styles import Kind

META_ITERATIONS = 6  # length of a Gantt chart whose hours are not given


class _Stay(NamedTuple):
    """A time in which a group's members stay the same.

    Attributes:
        members: Members and the start of the time.
        until_s: End of the time, in seconds.
    """

    members: Membership
    until_s: float


class GanttWindow(NamedTuple):
    """The part of a replay that a Gantt chart shows.

    Attributes:
        group: Number of the group.
        from_s: Start of the window, in seconds.
        until_s: End of the window, in seconds.
    """

    group: int
    from_s: float
    until_s: float


def write_pictures(
    folder: Path,
    run: Run,
    title: str,
    group: int | None = None,
    from_h: float | None = None,
    hours: float | None = None,
    kind: Kind = "png",
) -> list[str]:
    """Write `group-N`, a Gantt chart of one group, and `trace.json`, for Perfetto, of an event replay with its phases.

    Args:
        folder: Folder of the files. It is made if there is something to write.
        run: Event replay that kept its phases.
        title: Beginning of the Gantt chart's title.
        group: Number of the group that both files show. If None, the trace shows all groups and the Gantt chart that of
            `choose_view`.
        from_h: Start of the window that both files show, in hours, or None.
        hours: Length of the window that both files show, in hours. If both are None, the trace shows the whole replay and the Gantt
            chart the window of `choose_view`.
        kind: Kind of file of the Gantt chart.

    Returns:
        One line per file that says what it shows.

    Raises:
        InputError: If there is no such group, no job runs in the window, or a file cannot be written.
    """
    zero_s = run.time_s[0]
    lanes, memberships = follow(run.scenario.cluster, run.log)
    view = choose_view(memberships, zero_s, group, from_h, hours)
    own = [lane for lane in lanes if lane.group == view.group]
    phases = [phase for phase in run.phases if phase.group == view.group]
    span = f"{(view.from_s - zero_s) / 3600:.2f} to {(view.until_s - zero_s) / 3600:.2f} h"
    make_folder(folder)
    gantt, trace = folder / f"group-{view.group}.{kind}", folder / "trace.json"
    drawn = gantt_picture(phases, own, view.from_s, view.until_s, f"{title}: group {view.group}, {span}", kind)
    write_whole(gantt, drawn)
    by_pool = {pool: shares(phases, [lane for lane in own if lane.pool == pool], view.from_s, view.until_s) for pool in POOLS}
    bubbles = ", ".join(f"{pool} {100 * of_nodes.bubble:.1f}%" for pool, of_nodes in by_pool.items() if of_nodes)

    which, shown, traced, log = "all groups", lanes, run.phases, run.log
    if group is not None:
        which, shown, traced, log = f"group {group}", own, phases, _events_of(run.log, memberships, group)
    window = None if from_h is None and hours is None else (view.from_s, view.until_s)
    if window:
        shown = [lane for lane in shown if lane.from_s < view.until_s and lane.until_s > view.from_s]
    write_whole(trace, trace_json(run.scenario.cluster, traced, shown, log, zero_s, window))
    return [
        f"{gantt}: group {view.group}, {span}, bubbles: {bubbles}",
        f"{trace}: {which}, {span if window else 'the whole replay'}, for ui.perfetto.dev",
    ]


def _events_of(log: Iterable[Event], memberships: Iterable[Membership], group: int) -> list[Event]:
    """Return the events of the jobs that were members of a group at any time."""
    jobs = {job_id for membership in memberships if membership.group == group for job_id in membership.jobs}
    return [event for event in log if (about := happened(event)) and about[0] in jobs]


def choose_view(
    memberships: Iterable[Membership],
    zero_s: float,
    group: int | None = None,
    from_h: float | None = None,
    hours: float | None = None,
) -> GanttWindow:
    """Choose the group and window of a Gantt chart.

    The default is the longest time in which a group has the largest number of members.

    Args:
        memberships: Memberships in order of time.
        zero_s: Time from which hours are counted, in seconds.
        group: Number of the group, or None to choose it.
        from_h: Start of the window in hours, or None for the start of the default.
        hours: Length of the window in hours, or None for six meta-iterations at the planned period, up to the end of the replay.

    Raises:
        InputError: If there is no such group or window, or no job runs in it.
    """
    _check_hours("--from", from_h, "0 or more", 0.0)
    _check_hours("--hours", hours, "above 0", 5e-324)
    every = list(_stays(memberships))
    stays = [stay for stay in every if group is None or stay.members.group == group]
    if not stays:
        last = max(stay.members.group for stay in every)
        raise InputError(f"--group {group}: there is no such group; the last one is {last}")
    end_s = max(stay.until_s for stay in stays)
    if from_h is not None:
        from_s = zero_s + 3600 * from_h
        until_s = from_s + 3600 * (hours or 0.0)
        shown = [stay for stay in stays if stay.until_s > from_s and stay.members.at_s <= until_s]
        if not shown:
            who = "the replay" if group is None else f"group {group}"
            span = f"from {(stays[0].members.at_s - zero_s) / 3600:.2f} to {(end_s - zero_s) / 3600:.2f} h"
            raise InputError(f"--from {from_h:g}: no job runs then; {who} has jobs {span}")
        stays = shown
    best = max(stays, key=lambda stay: (len(stay.members.jobs), stay.until_s - stay.members.at_s, -stay.members.group)).members
    begin_s = best.at_s if from_h is None else from_s
    until_s = min(begin_s + META_ITERATIONS * best.period_s, end_s) if hours is None else begin_s + 3600 * hours
    return GanttWindow(best.group, begin_s, until_s)


def _stays(memberships: Iterable[Membership]) -> Iterator[_Stay]:
    """Yield each membership with its end; one that has not ended lasts forever."""
    present: dict[int, Membership] = {}
    for members in memberships:
        before = present.pop(members.group, None)
        if before is not None:
            yield _Stay(before, members.at_s)
        if members.jobs:
            present[members.group] = members
    for members in present.values():
        yield _Stay(members, inf)


def _check_hours(option: str, value: float | None, wanted: str, least: float) -> None:
    if value is not None and not least <= value < inf:
        raise InputError(f"{option} {value:g}: must be a number of hours, {wanted}")
