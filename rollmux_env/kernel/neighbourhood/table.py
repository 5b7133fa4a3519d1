"""The rows of a decision to move jobs.

These are the places of one job by the future cost of the group with it, the fields of a row, and the choice of the rows with the
greatest gain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import bar_nodes, next_period
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import entry_limit, keeps_alone, shape_row, training_memory_fits, training_seconds
from rollmux_env.kernel.pools import has_room, is_same, nodes_usd, rollout_usd
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Floats, Ints, Limits, Records, View
from rollmux_env.kernel.trials import Trial, make_trial
from rollmux_env.kernel.valuation import N_VALUES, STAY, Valuation, net_usd, value_group, value_members

_TIE_USD = 1e-9


def place_type(nodes: int) -> np.dtype[Any]:
    """Return the record type of a place of a job with at most `nodes` rollout nodes.

    Fields:
        ok: 1 if there is a place.
        breaks: 1 if it breaks an SLO.
        of_shape: Number of the job's shape there.
        new_nodes: Rollout nodes to add.
        nodes: Numbers of the group's nodes, padded with -1.
        period_s: Period of the group with the job, seconds.
        usd: `net_usd` of `more`.
        more: (N_VALUES,) changes of the group's values.
    """
    floats = [("period_s", "f8"), ("usd", "f8"), ("more", "f8", (N_VALUES,))]
    ints = [(name, "i8") for name in ("ok", "breaks", "of_shape", "new_nodes")]
    return np.dtype([*ints, ("nodes", "i8", (nodes,)), *floats])


@compiled(arrays=False, inline=True)
def _may_join(jobs: Records, group: Records, job: Records, limits: Limits, shield: bool) -> bool:
    """Return whether a job might have a place in a group, before its training seconds there are known. Both are records."""
    return bool(
        0 < group.n_members < limits.group_size_max
        and group.exclusive == 0
        and is_same(group, job)
        and group.training_nodes >= job.training_nodes
        and not (shield and group.period_s > entry_limit(jobs, job, group, 0) * (1.0 + TOLERANCE))
        and training_memory_fits(group, job, limits)
    )


@compiled(arrays=False, inline=True)
def best_place(view: View, valuation: Valuation, group: int, job: int, barred: int, before: Floats, best: Records) -> None:
    """Find the place in a group, and the shape, where a running job costs least.

    Args:
        view: Tables of the cluster.
        valuation: Stays, terms and scratch.
        group: Row of a group that the job is not in.
        job: Row of the job.
        barred: Number of a shape that is left out, negative for none.
        before: (N_VALUES,) values of the group without the job.
        best: Record of `place_type`; written.
    """
    best.ok = 0
    best.usd = np.inf
    asks, shield = view.jobs[job], valuation.terms[0].shield == 1
    for shape in range(1 + asks.more_shapes):
        row = shape_row(asks, job, shape)
        if shape != barred and _may_join(view.jobs, view.groups[group], view.jobs[row], view.limits, shield):
            _search_group(view, valuation, group, row, before, best)


@compiled(arrays=False)
def _search_group(view: View, valuation: Valuation, group: int, job: int, before: Floats, best: Records) -> None:
    """Search a group for places of the job, or of one of its shapes, in a row, and store what costs less than `best`."""
    g, j = view.groups[group], view.jobs[job]
    place, values, subsets = valuation.place[0], valuation.values, valuation.subsets
    training_s = training_seconds(view.jobs, job, g.training_nodes)
    limit = entry_limit(view.jobs, j, g, 0) * (1.0 + TOLERANCE)  # a running job enters no other group warm
    longest = limit if valuation.terms[0].shield == 1 else np.inf
    if max(g.period_s, g.training_load_s + training_s) > longest:
        return
    bar_nodes(g, j, view.limits, longest, subsets)
    valued_s = -1.0
    for new in range(max(0, j.rollout_nodes - g.n_nodes), j.rollout_nodes + 1):
        size = j.rollout_nodes - new
        if not has_room(j, new, 0, view.limits, view.clock):
            break
        period = next_period(view, job, group, subsets, size, True, (training_s, longest))
        while period < np.inf:
            place.new_nodes, place.period_s = new, period
            for k in range(len(place.nodes)):
                place.nodes[k] = g.node_number[subsets.chosen[k]] if k < size else -1
            if period != valued_s:
                value_members(view, valuation, group, period)
                valued_s = period
            value_group(view, valuation, group, job, place, values)
            usd = net_usd(values) - net_usd(before)
            if usd < best.usd - _TIE_USD:
                for k in range(len(values)):
                    values[k] -= before[k]
                _store_place(best, j.of_shape, place, usd, values)
                best.breaks = 1 if period > limit else 0
            period = next_period(view, job, group, subsets, size, False, (training_s, longest))


@compiled(arrays=False)
def place_alone(view: View, valuation: Valuation, job: int, barred: int, best: Records) -> None:
    """Find the place of a running job in a new group; arguments as in `best_place`."""
    place, values = valuation.place[0], valuation.values
    best.ok = 0
    best.usd = np.inf
    for shape in range(1 + view.jobs[job].more_shapes):
        row = shape_row(view.jobs[job], job, shape)
        asks = view.jobs[row]
        n = asks.rollout_nodes
        if shape == barred or not keeps_alone(asks) or not has_room(asks, n, asks.training_nodes, view.limits, view.clock):
            continue
        place.new_nodes, place.period_s = n, asks.alone_s
        for k in range(len(place.nodes)):
            place.nodes[k] = -1
        value_members(view, valuation, NOWHERE, place.period_s)
        value_group(view, valuation, NOWHERE, row, place, values)
        usd = net_usd(values)
        if usd < best.usd - _TIE_USD:
            _store_place(best, shape, place, usd, values)


@compiled(arrays=False)
def _store_place(best: Records, shape: int, place: Records, usd: float, more: Floats) -> None:
    """Write a place that keeps every SLO; `more` are the changes of the group's values with the job."""
    best.ok = 1
    best.breaks = 0
    best.of_shape = shape
    best.usd, best.new_nodes, best.period_s = usd, place.new_nodes, place.period_s
    for k in range(len(best.nodes)):
        best.nodes[k] = place.nodes[k]
    for k in range(len(more)):
        best.more[k] = more[k]


PLACE, STOP, MOVE, EXCHANGE, MERGER = range(5)  # kinds of choices
MOVES_MOST = 4  # of one row, so the largest group that a merger dissolves
GROUPS_MOST = 24  # that are examined
JOBS_MOST = 96  # that may move

NEW_GROUP = -1
_PER_MOVE = ("job", "of_shape", "group", "new_nodes")


MOVER = np.dtype(
    [
        ("job", "i8"),  # its row
        ("home", "i8"),  # position of its group among the examined ones
        ("left", "i8", (2,)),  # rollout and training nodes that no job needs after it has left
        ("saved", "f8"),  # what its leaving saves, $
        ("nearest", "i8", (2,)),  # the two other groups where it costs least, -1 for none
    ]
)


class Examined(NamedTuple):
    """The F groups that a decision examines, and their M jobs that may move.

    Attributes:
        looked: (F,) rows of the groups.
        copies: Records of groups: as many as there are group rows, unused but indexed by members, then M groups without one
            member.
        base: (F, N_VALUES) values of the groups.
        cut: (M, N_VALUES) values of each mover's group without it.
        movers: (M,) records of `MOVER`.
        joins: (M, F + M) places in the groups, then in those without one member; the place in the job's own group is in another
            shape.
        alone: (M,) places in a new group.
    """

    looked: Ints
    copies: Records
    base: Floats
    cut: Floats
    movers: Records
    joins: Records
    alone: Records


class Merger(NamedTuple):
    """A merger of up to K moves that is put together.

    Attributes:
        places: (K + 1,) places of the movers, and one that is being examined.
        leaving: (K,) numbers of the movers.
        goes: (K,) positions of the groups that they go to.
        gains: (F,) 1 for each group that the merger has changed.
        sums: (F, N_VALUES) values of the groups after the merger.
        trial: Rows that the merger changes.
        stays: (K,) stays of the movers without the merger.
    """

    places: Records
    leaving: Ints
    goes: Ints
    gains: Ints
    sums: Floats
    trial: Trial
    stays: Records


class Offers(NamedTuple):
    """The choices found so far, at most R of them.

    Attributes:
        rows: (R,) choices, unsorted.
        serial: (R,) number at which each choice was found.
        rank: (R,) order of the choices.
        counts: (3,) counts as in `offer`.
    """

    rows: Records
    serial: Ints
    rank: Ints
    counts: Ints


class Scratch(NamedTuple):
    """Room for the moves of one decision."""

    examined: Examined
    merger: Merger
    offers: Offers


class Chance(NamedTuple):
    """Tables, terms and scratch of a decision to move jobs. The groups to examine are in order of creation."""

    cluster: View
    valuation: Valuation
    scratch: Scratch


def choice_type(nodes: int) -> np.dtype[Any]:
    """Return the record type of one choice.

    Fields:
        kind: Kind of the row, as above.
        n_moves: Number of jobs that get a place, in this order.
        job: (K,) their rows.
        of_shape: (K,) numbers of the shapes that they get.
        group: (K,) rows of the groups, NEW_GROUP for a new one.
        new_nodes: (K,) rollout nodes to add.
        nodes: (K, N) numbers of the groups' nodes, padded with -1.
        feasible: 1 if no SLO is broken.
        allowed: 1 if it may be chosen.
        usd: Change of the cluster's $/h after the pauses.
        period_s: Period of the first job's group with it, seconds.
        gain: Gain of the row, as above, $.
        price: Price of the nodes that are left, $.
        before: (N_VALUES,) values of the groups that it changes.
        more: (N_VALUES,) changes of these values.
    """
    ints = [
        *((name, "i8") for name in ("kind", "n_moves", "feasible", "allowed")),
        *((n, "i8", (MOVES_MOST,)) for n in _PER_MOVE),
    ]
    floats = [
        *((name, "f8") for name in ("usd", "period_s", "gain", "price")),
        *((n, "f8", (N_VALUES,)) for n in ("before", "more")),
    ]
    return np.dtype([*ints, ("nodes", "i8", (MOVES_MOST, nodes)), *floats])


def make_scratch(jobs: Records, groups: Records, rows: int) -> Scratch:
    """Return room for tables like these records, and for `rows` choices."""
    nodes = jobs.dtype["pins"].shape[0]
    place, whole = place_type(nodes), np.int64
    examined = Examined(
        looked=np.zeros(GROUPS_MOST, whole),
        copies=np.zeros(len(groups) + JOBS_MOST, groups.dtype),
        base=np.zeros((GROUPS_MOST, N_VALUES)),
        cut=np.zeros((JOBS_MOST, N_VALUES)),
        movers=np.zeros(JOBS_MOST, MOVER),
        joins=np.zeros((JOBS_MOST, GROUPS_MOST + JOBS_MOST), place),
        alone=np.zeros(JOBS_MOST, place),
    )
    merger = Merger(
        places=np.zeros(MOVES_MOST + 1, place),
        leaving=np.zeros(MOVES_MOST, whole),
        goes=np.zeros(MOVES_MOST, whole),
        gains=np.zeros(GROUPS_MOST, whole),
        sums=np.zeros((GROUPS_MOST, N_VALUES)),
        trial=make_trial(jobs, groups, MOVES_MOST),
        stays=np.zeros(MOVES_MOST, STAY),
    )
    offers = Offers(np.zeros(rows, choice_type(nodes)), np.zeros(rows, whole), np.zeros(rows, whole), np.zeros(3, whole))
    return Scratch(examined, merger, offers)


@compiled(arrays=False)
def write_stop(choice: Records) -> None:
    """Make a choice that of no more moves."""
    choice.kind = STOP
    choice.n_moves = 0
    choice.usd = choice.period_s = choice.gain = choice.price = 0.0
    choice.feasible = choice.allowed = 1


@compiled(arrays=False, inline=True)
def offer(offers: Offers, gain: float, kind: int) -> int:
    """Return where a row with this gain may be written, and start it as one of a kind; -1 if it may not.

    `counts`: rows kept, rows offered, and the worst row of a full table.
    """
    rows, counts = offers.rows, offers.counts
    counts[1] += 1
    if counts[0] == len(rows) and not (counts[0] > 0 and gain > rows[counts[2]].gain):
        return -1
    return _begin_row(rows, offers.serial, counts, gain, kind)


@compiled(arrays=False)
def _begin_row(rows: Records, serial: Ints, counts: Ints, gain: float, kind: int) -> int:
    """Begin a row behind the others, or in place of the worst one where there is no room."""
    if counts[0] < len(rows):
        at = counts[0]
        counts[0] += 1
    else:
        at = counts[2]
    row = rows[at]
    row.gain, row.kind, row.n_moves, row.feasible = gain, kind, 0, 1
    row.usd = row.price = 0.0
    for k in range(len(row.more)):
        row.before[k] = row.more[k] = 0.0
    serial[at] = counts[1]
    if counts[0] == len(rows):
        worst = 0
        for k in range(1, len(rows)):
            less = rows[k].gain - rows[worst].gain
            if less < 0.0 or (less == 0.0 and serial[k] > serial[worst]):
                worst = k
        counts[2] = worst
    return int(at)


@compiled(arrays=False)
def leave(chance: Chance, row: Records, a: int, left: Ints, values: Floats) -> None:
    """Write that members leave the `a`-th group.

    `left` are the rollout and training nodes that are no longer needed; they are paid for until the pauses end. `values` are those
    of the group without the members.
    """
    group = chance.cluster.groups[chance.cluster.order[a]]
    usd_per_hour = nodes_usd(group, left[0], left[1], chance.cluster.limits)
    row.usd -= usd_per_hour
    row.price += usd_per_hour * chance.valuation.terms[0].migration_h
    before = chance.scratch.examined.base[a]
    for k in range(len(before)):
        row.before[k] += before[k]
        row.more[k] += values[k] - before[k]


@compiled(arrays=False)
def leave_one(chance: Chance, row: Records, k: int) -> None:
    """Write that a mover leaves its group."""
    mover = chance.scratch.examined.movers[k]
    leave(chance, row, mover.home, mover.left, chance.scratch.examined.cut[k])


@compiled(arrays=False)
def enter(chance: Chance, row: Records, k: int, b: int, place: Records, counts: bool) -> None:
    """Write that a mover takes a place in the `b`-th group, or in a new one for -1.

    Args:
        chance: Tables, terms and scratch of the decision.
        row: Record of the choice; updated.
        k: Number of the mover.
        b: Position of the group among the examined ones, or -1.
        place: Record of `place_type`.
        counts: Whether the row does not include the change of that group yet.
    """
    view, number, at = chance.cluster, chance.scratch.examined.movers[k].job, row.n_moves
    job = view.jobs[shape_row(view.jobs[number], number, place.of_shape)]
    row.n_moves += 1
    row.job[at] = number
    row.of_shape[at] = place.of_shape
    row.group[at] = NEW_GROUP if b < 0 else view.order[b]
    row.new_nodes[at] = place.new_nodes
    for v in range(len(place.nodes)):
        row.nodes[at, v] = place.nodes[v]
    if at == 0:
        row.period_s = place.period_s
    if place.breaks == 1:
        row.feasible = 0
    row.usd += place.new_nodes * rollout_usd(job, view.limits)
    if b < 0:
        row.usd += nodes_usd(job, 0, job.training_nodes, view.limits)
    for v in range(len(place.more)):
        row.more[v] += place.more[v]
        if counts and b >= 0:
            row.before[v] += chance.scratch.examined.base[b, v]


@compiled(arrays=False)
def clear_unused_moves(row: Records) -> None:
    """Clear the moves of earlier rows after the last move: a row depends on its decision alone, which exact resume requires."""
    for k in range(row.n_moves, len(row.job)):
        row.job[k] = row.of_shape[k] = row.group[k] = row.new_nodes[k] = 0
        for v in range(row.nodes.shape[1]):
            row.nodes[k, v] = 0
