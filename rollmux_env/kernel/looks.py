"""What a learner sees of a decision: of one of many streams, or of a candidate table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.candidates import ANY_NODES
from rollmux_env.kernel.choices import Rules
from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    N_PARTS,
    Out,
    candidate_features,
    cluster_features,
    job_features,
    own_usd,
    shared_features,
)
from rollmux_env.kernel.horizons import N_VALUES, Stays, present_rates, stays_table, value_of, work_price, write_stay, write_stays
from rollmux_env.kernel.joining import Terms
from rollmux_env.kernel.regroupings import enumerate_regroupings
from rollmux_env.kernel.row_features import move_features, value_features
from rollmux_env.kernel.rows import Space, write_stop
from rollmux_env.kernel.stream import ADMIT, CONSOLIDATE, Records, Streams
from rollmux_env.kernel.tables import Floats, GroupTable, Ints, JobTable, Limits

_CANDIDATES = len(CANDIDATE_FEATURES)


class Seen(NamedTuple):
    """What a learner sees: (E, ...) numbers as `rollmux_env.kernel.features` defines them, and the mask."""

    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]
    mask: NDArray[np.int8]


class Desk(NamedTuple):
    """Scratch for the values of places, one after the other.

    Attributes:
        stays: by job row. parts: for `shared_features`. base, values: (N_VALUES,) of a group without and with a job.
        needed: for `value_of`.
    """

    stays: Stays
    parts: Floats
    base: Floats
    values: Floats
    needed: Floats


def make_desk(jobs: int, nodes: int) -> Desk:
    """A desk for tables of so many job rows, and groups of at most so many rollout nodes."""
    return Desk(stays_table(jobs), np.zeros(N_PARTS), np.zeros(N_VALUES), np.zeros(N_VALUES), np.zeros(nodes + 1))


@uncounted
def look(
    streams: Streams,
    s: int,
    jobs: Records,
    groups: Records,
    limits: Limits,
    rules: Rules,
    choices: Records,
    desk: Desk,
    seen: Seen,
) -> None:
    """Write what a learner sees."""
    c = streams.clock[s]
    count = c.choices
    consolidate = c.asks == CONSOLIDATE
    order = streams.order[s, : c.n_groups]
    waiting = c.taken - c.admitted
    first_s = jobs.arrival_s[0]
    now_s = c.now_s
    nodes = c.rollout_nodes, c.training_nodes
    cluster_features(jobs, groups, order, limits, now_s, first_s, nodes[0], nodes[1], waiting, consolidate, seen.cluster[s])
    out = seen.candidates[s]
    for k in range(count):
        seen.mask[s, k] = choices.allowed[k]
    seen.job[s] = 0.0
    if c.asks == ADMIT:
        job = c.admitted
        stay_s = 0.0
        if rules.known_stays:
            stay_s = min(jobs.duration_s[job], jobs.iterations[job] * jobs.solo_s[job])
        job_features(jobs, limits, job, stay_s, seen.job[s])
        shared = -1  # row that has what the present group's rows have in common
        for k in range(count):
            choice = choices[k]
            group = choice.group[0]
            if shared < 0 or choices.group[shared, 0] != group:
                shared = k
                known = rules.known_stays
                shared_features(jobs, groups, limits, now_s, known, stay_s, job, group, desk.parts)
            new, period = choice.new_nodes[0], choice.period_s
            place = choices.nodes[k, 0]
            candidate_features(jobs, groups, limits, job, group, new, place, choice.usd, period, desk.parts, out[k])
        if rules.moves:
            duration_s, iterations = jobs.duration_s[job], jobs.iterations[job]
            known = rules.known_stays
            work_usd = _begin_values(jobs, groups, order, limits, now_s, known, duration_s, iterations, job, desk)
            shared = -1
            for k in range(count):
                choice = choices[k]
                group = choice.group[0]
                if shared < 0 or choices.group[shared, 0] != group:
                    shared = k
                    _value_group(jobs, groups, limits, group, work_usd, desk)
                new, place = choice.new_nodes[0], choices.nodes[k, 0]
                _value_place(jobs, groups, limits, group, job, place, new, choice.period_s, work_usd, desk, out[k])
                out[k, _CANDIDATES:] = 0.0
    elif consolidate:
        rates = present_rates(jobs, groups, order, limits)
        unit_usd = rates[1] / max(rates[3], 1)
        for k in range(count):
            move_features(jobs, groups, limits, now_s, rules.known_stays, unit_usd, work_price(rates), choices[k], out[k])
    out[count:] = 0.0
    seen.mask[s, count:] = 0
    if count == 0:
        seen.mask[s, 0] = 1  # nothing is decided any more; a masked draw still needs something to draw


@uncounted
def _begin_values(
    jobs: JobTable,
    groups: GroupTable,
    order: Ints,
    limits: Limits,
    now_s: float,
    known_stays: bool,
    duration_s: float,
    iterations: float,
    job: int,
    desk: Desk,
) -> float:
    """Write how long the running jobs and the waiting one stay; returns what a work-hour costs with its own nodes, $."""
    rates = present_rates(jobs, groups, order, limits)
    write_stays(jobs, groups, order, now_s, known_stays, desk.stays)
    write_stay(jobs, desk.stays, job, duration_s, iterations, 0.0, 0.0, 0.0, known_stays)
    return work_price((rates[0] + own_usd(jobs, limits, job), rates[1], rates[2] + 1.0, rates[3]))


@uncounted
def _value_group(jobs: JobTable, groups: GroupTable, limits: Limits, group: int, work_usd: float, desk: Desk) -> None:
    """Value a group as it is, for the places in it; a new one is nothing yet."""
    if group < 0:
        desk.base[:] = 0.0
        return
    nodes = groups.node_number[group]  # of no job
    pool, period = groups.training_nodes[group], groups.period_s[group]
    value_of(jobs, groups, limits, desk.stays, group, pool, -1, nodes, 0, period, 0.0, work_usd, desk.needed, desk.base)


@uncounted
def _value_place(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    group: int,
    job: int,
    nodes: Ints,
    new: int,
    period_s: float,
    work_usd: float,
    desk: Desk,
    out: Out,
) -> None:
    """Write `VALUE_FEATURES` of a place of a waiting job, after `_value_group` of its group."""
    pool = jobs.training_nodes[job] if group < 0 else groups.training_nodes[group]
    values, base = desk.values, desk.base
    value_of(jobs, groups, limits, desk.stays, group, pool, job, nodes, new, period_s, 0.0, work_usd, desk.needed, values)
    for v in range(base.shape[0]):
        values[v] -= base[v]
    value_features(base, values, own_usd(jobs, limits, job), work_usd, out)


@uncounted
def features_of_table(
    jobs: JobTable,
    groups: GroupTable,
    order: Ints,
    limits: Limits,
    now_s: float,
    first_s: float,
    rollout_nodes: int,
    training_nodes: int,
    waiting: int,
    known_stays: bool,
    duration_s: float,
    iterations: float,
    job: int,
    group: Ints,
    new_nodes: Ints,
    nodes: Ints,
    usd: Floats,
    period_s: Floats,
    desk: Desk,
    job_out: Out,
    candidates_out: Out,
    cluster_out: Out,
) -> None:
    """Write the features of a waiting job's whole candidate table; arguments as in `rollmux_env.kernel.features`.

    Args:
        duration_s, iterations: after which the job leaves, or infinite.
    """
    stay_s = min(duration_s, iterations * jobs.solo_s[job]) if known_stays else 0.0
    job_features(jobs, limits, job, stay_s, job_out)
    cluster_features(jobs, groups, order, limits, now_s, first_s, rollout_nodes, training_nodes, waiting, False, cluster_out)
    work_usd = _begin_values(jobs, groups, order, limits, now_s, known_stays, duration_s, iterations, job, desk)
    shared = -2
    for k in range(group.shape[0]):
        if new_nodes[k] == ANY_NODES:
            continue
        if group[k] != shared:
            shared = group[k]
            shared_features(jobs, groups, limits, now_s, known_stays, stay_s, job, group[k], desk.parts)
            _value_group(jobs, groups, limits, group[k], work_usd, desk)
        out = candidates_out[k]
        candidate_features(jobs, groups, limits, job, group[k], new_nodes[k], nodes[k], usd[k], period_s[k], desk.parts, out)
        _value_place(jobs, groups, limits, group[k], job, nodes[k], new_nodes[k], period_s[k], work_usd, desk, out)


@uncounted
def look_at_moves(
    jobs: Records,
    groups: Records,
    looked: Ints,
    limits: Limits,
    stays: Stays,
    work_usd: float,
    unit_usd: float,
    rollout_nodes: int,
    training_nodes: int,
    shield: bool,
    migration_s: float,
    now_s: float,
    known_stays: bool,
    space: Space,
    choices: Records,
    out: Out,
) -> tuple[int, int]:
    """Write `stop`, the rows of moves, and their features.

    Args:
        looked: as in `enumerate_regroupings`, whose result is returned. stays: scratch.
        work_usd: what a work-hour costs at present, $. unit_usd: mean price of the running jobs' own nodes, $/h.
        rollout_nodes, training_nodes: provisioned now. migration_s: pause of a move.
    """
    write_stop(choices[0])
    write_stays(jobs, groups, looked, now_s, known_stays, stays)
    terms = Terms(migration_s / 3600.0, work_usd, rollout_nodes, training_nodes, shield)
    count, there = enumerate_regroupings(jobs, groups, looked, limits, stays, terms, now_s, space, choices)
    for k in range(count + 1):
        move_features(jobs, groups, limits, now_s, known_stays, unit_usd, work_usd, choices[k], out[k])
    return count, there
