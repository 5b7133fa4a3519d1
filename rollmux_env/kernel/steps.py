"""Decisions of many streams: from the answer to one to the next question."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.choices import Rows, Rules, enumerate_rows, make_rows, write_moves, write_places
from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.events import admit, look_for_moves, move, next_question, pass_on, pass_time
from rollmux_env.kernel.horizons import Stays
from rollmux_env.kernel.looks import Desk, Seen, look
from rollmux_env.kernel.rows import Space
from rollmux_env.kernel.stream import ADMIT, LATER, OVER, Records, Streams, begin_interval
from rollmux_env.kernel.tables import Ints, Limits


@compiled
def _ask(
    streams: Streams,
    s: int,
    jobs: Records,
    groups: Records,
    limits: Limits,
    rules: Rules,
    stays: Stays,
    space: Space,
    rows: Rows,
    choices: Records,
) -> Rows:
    """Let a stream run to the next decision that has a feasible choice, and write its choices."""
    c = streams.clock[s]
    while True:
        c.asks = next_question(streams, s, jobs, groups, limits, rules.moves, rules.decay, np.inf)
        if c.asks == OVER:
            c.choices = 0
            c.overflow = 0
            return rows
        if c.asks == ADMIT:
            rows = write_places(streams, s, jobs, groups, limits, rules, rows, choices)
            for k in range(c.choices):
                if choices.feasible[k] == 1:
                    return rows
        else:
            write_moves(streams, s, jobs, groups, limits, rules, stays, space, choices)
            if c.choices > 1:
                return rows
        pass_on(streams, s)


@uncounted
def _fallback(choices: Records, count: int) -> int:
    """What happens instead of a choice that is masked: choice 0, or the cheapest feasible one where that is masked too."""
    best = 0
    if choices.allowed[0] == 1:
        return best
    usd = np.inf
    for k in range(count):
        if choices.feasible[k] == 1 and choices.usd[k] < usd:
            best = k
            usd = choices.usd[k]
    return best


@uncounted
def _answer(streams: Streams, s: int, jobs: Records, groups: Records, rules: Rules, choices: Records, action: int) -> None:
    """Carry a choice out, or the fallback where it is masked."""
    c = streams.clock[s]
    if not 0 <= action < c.choices or choices.allowed[action] == 0:
        c.invalid = 1
        action = _fallback(choices, c.choices)
    choice = choices[action]
    if c.asks == ADMIT:
        admit(streams, s, jobs, groups, choice.job[0], choice.group[0], choices.nodes[action, 0], choice.new_nodes[0])
        if rules.moves:
            look_for_moves(streams, s)
    elif action == 0:
        pass_on(streams, s)
    else:
        for k in range(choice.n_moves):
            nodes = choices.nodes[action, k]
            move(streams, s, jobs, groups, choice.job[k], choice.group[k], nodes, choice.new_nodes[k], rules.migration_s)


@uncounted
def ask_first(
    streams: Streams, which: Ints, limits: Limits, rules: Rules, choices: Records, desk: Desk, space: Space, seen: Seen
) -> None:
    """Bring streams that have just begun to their first decision.

    Args:
        desk, space: scratch.
        which: (n,) their indices.
    """
    _ask_first(streams, which, limits, rules, choices, desk, space, seen)


@compiled
def _ask_first(
    streams: Streams, which: Ints, limits: Limits, rules: Rules, choices: Records, desk: Desk, space: Space, seen: Seen
) -> None:
    rows = make_rows(256, choices.nodes.shape[3])
    for s in which:
        jobs, groups = streams.jobs[s], streams.groups[s]
        rows = _ask(streams, s, jobs, groups, limits, rules, desk.stays, space, rows, choices[s])
        look(streams, s, jobs, groups, limits, rules, choices[s], desk, seen)


@uncounted
def follow(streams: Streams, s: int, limits: Limits, prune: bool, decay: float, until_s: float, rows: Rows) -> None:
    """Bring a stream under Algorithm 1 to a time, or to its end.

    Args:
        prune: leave saturated groups out, as printed in the paper.
        rows: scratch.
    """
    jobs, groups = streams.jobs[s], streams.groups[s]
    c = streams.clock[s]
    while True:
        asks = next_question(streams, s, jobs, groups, limits, False, decay, until_s)
        if asks == OVER:
            return
        if asks == LATER:
            pass_time(streams, s, limits, until_s, decay)
            return
        job = c.admitted
        n = enumerate_rows(streams, s, jobs, groups, limits, job, True, prune, rows)
        if n == 0:
            pass_on(streams, s)
        else:
            last = min(n, rows.group.shape[0]) - 1
            admit(streams, s, jobs, groups, job, rows.group[last], rows.nodes[last], rows.new_nodes[last])


@uncounted
def step_all(
    streams: Streams,
    actions: Ints,
    limits: Limits,
    rules: Rules,
    choices: Records,
    desk: Desk,
    space: Space,
    seen: Seen,
    reference: Streams,
    prune: bool,
) -> None:
    """Carry out one decision in every stream that is not over, and bring it to the next.

    Args:
        actions: (E,) choices.
        desk, space: scratch.
        reference: the same streams under Algorithm 1, brought to the same times; of no streams where none is asked for.
        prune: of the reference.
    """
    _step_all(streams, actions, limits, rules, choices, desk, space, seen, reference, prune)


@compiled
def _step_all(
    streams: Streams,
    actions: Ints,
    limits: Limits,
    rules: Rules,
    choices: Records,
    desk: Desk,
    space: Space,
    seen: Seen,
    reference: Streams,
    prune: bool,
) -> None:
    rows = make_rows(256, choices.nodes.shape[3])
    for s in range(actions.shape[0]):
        begin_interval(streams, s)
        c = streams.clock[s]
        if c.asks == OVER:
            continue
        jobs, groups = streams.jobs[s], streams.groups[s]
        _answer(streams, s, jobs, groups, rules, choices[s], actions[s])
        rows = _ask(streams, s, jobs, groups, limits, rules, desk.stays, space, rows, choices[s])
        look(streams, s, jobs, groups, limits, rules, choices[s], desk, seen)
        if reference.clock.shape[0] > 0:
            begin_interval(reference, s)
            until_s = np.inf if c.asks == OVER else c.now_s
            follow(reference, s, limits, prune, rules.decay, until_s, rows)
