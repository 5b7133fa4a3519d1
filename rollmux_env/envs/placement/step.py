"""Steps of many streams: from the answer to one decision to the next decision."""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.placement.actions import write_moves, write_places
from rollmux_env.envs.placement.dynamics import admit, advance_clock, defer, move, next_question, request_moves
from rollmux_env.envs.placement.observation import observe
from rollmux_env.envs.placement.types import ADMIT, CONSOLIDATE, LATER, OVER, Rules, Streams, begin_interval, view_of
from rollmux_env.kernel.candidates import enumerate_candidates
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations, Workspace
from rollmux_env.kernel.neighbourhood.table import Scratch
from rollmux_env.kernel.tables import Ints, Records

SKIP = np.iinfo(np.int64).min  # action of a stream that is left as it is


@compiled(arrays=False)
def _fallback(choices: Records, count: int) -> int:
    """Return the choice that replaces a masked one: choice 0, or the cheapest feasible one if that is masked too."""
    best = 0
    if choices[0].allowed == 1:
        return best
    usd = np.inf
    for k in range(count):
        if choices[k].feasible == 1 and choices[k].usd < usd:
            best = k
            usd = choices[k].usd
    return best


@compiled(arrays=False)
def _forced(choices: Records, count: int) -> int:
    """Return the only choice that may be made, or -1 if there are several."""
    only = -1
    for k in range(count):
        if choices[k].allowed == 1:
            if only >= 0:
                return -1
            only = k
    return only


@compiled(arrays=False)
def _answer(streams: Streams, s: int, rules: Rules, choices: Records, action: int) -> None:
    """Carry out a choice, or the fallback if it is masked."""
    c = streams.clock[s]
    if not 0 <= action < c.choices or choices[action].allowed == 0:
        c.invalid = 1
        action = _fallback(choices, c.choices)
    if c.asks == CONSOLIDATE and action == 0:
        defer(streams, s)
        return
    choice = choices[action]
    for k in range(choice.n_moves):
        job = choice.job[k]
        kept_nodes = 0
        while kept_nodes < len(choice.nodes[k]) and choice.nodes[k, kept_nodes] >= 0:
            streams.jobs[s, job].pins[kept_nodes] = choice.nodes[k, kept_nodes]
            kept_nodes += 1
        if c.asks == ADMIT:
            admit(streams, s, job, choice.of_shape[k], choice.group[k], kept_nodes, choice.new_nodes[k])
        else:
            move(streams, s, job, choice.of_shape[k], choice.group[k], kept_nodes, choice.new_nodes[k], rules.migration_s)
    if c.asks == ADMIT and rules.moves:
        request_moves(streams, s)


@compiled(arrays=False)
def follow(streams: Streams, s: int, rules: Rules, until_s: float, rows: Records) -> None:
    """Run a stream under Algorithm 1 to a time, or to its end.

    Args:
        streams: All streams.
        s: Number of the stream.
        rules: Rules of the environment.
        until_s: Time at which to stop, seconds.
        rows: Scratch for candidates.
    """
    c = streams.clock[s]
    while True:
        asks = next_question(streams, s, rules, False, until_s)
        if asks == OVER:
            return
        if asks == LATER:
            advance_clock(streams, s, rules, until_s)
            return
        job = c.admitted
        n = enumerate_candidates(view_of(streams, s, rules.limits), job, True, rules.prune, rows)
        if n == 0:
            defer(streams, s)
            continue
        last = rows[min(n, len(rows)) - 1]
        kept_nodes = 0
        while kept_nodes < len(last.nodes) and last.nodes[kept_nodes] >= 0:
            streams.jobs[s, job].pins[kept_nodes] = last.nodes[kept_nodes]
            kept_nodes += 1
        admit(streams, s, job, last.of_shape, last.group, kept_nodes, last.new_nodes)


@compiled(arrays=False)
def _run_to_decision(
    streams: Streams, s: int, rules: Rules, rows: Records, choices: Records, workspace: Workspace, scratch: Scratch | None
) -> None:
    """Run a stream to the next decision with a feasible choice, or to its end. Write its choices.

    With `rules.skip_forced`, decisions with only one choice are made on the way.

    Args:
        streams: All streams.
        s: Number of the stream.
        rules: Rules of the environment.
        rows: Scratch for candidates.
        choices: Choices of the decision; written.
        workspace: Scratch of the observation.
        scratch: Scratch of the search for moves, or None.
    """
    c = streams.clock[s]
    open_choices = False
    while not open_choices:
        c.asks = next_question(streams, s, rules, rules.moves, np.inf)
        c.choices = c.overflow = 0
        if c.asks == OVER:
            return
        if c.asks == ADMIT:
            write_places(streams, s, rules, rows, choices)
            for k in range(c.choices):
                open_choices = open_choices or choices[k].feasible == 1
        elif scratch is not None:
            write_moves(streams, s, rules, workspace.valuation, scratch, choices)
            open_choices = c.choices > 1
        if not open_choices:
            defer(streams, s)
        elif rules.skip_forced:
            forced = _forced(choices, c.choices)
            if forced >= 0:
                _answer(streams, s, rules, choices, forced)
                open_choices = False


@compiled
def step_all(
    streams: Streams,
    actions: Ints,
    rules: Rules,
    choices: Records,
    workspace: Workspace,
    scratch: Scratch | None,
    out: Observations,
    reference: Streams,
) -> None:
    """Carry out one decision in every stream that is not over, and run it to the next decision with a feasible choice.

    A stream that has just begun is run to its first decision, whatever its action is. Anything counted on the way belongs to the
    interval of that decision.

    Args:
        streams: All streams.
        actions: Choices, or SKIP for streams that are left as they are, shape (E,).
        rules: Rules of the environment.
        choices: Choices of the current and then of the next decisions.
        workspace: Scratch of the observation.
        scratch: Scratch of the search for moves, or None without moves, so that no code for them is compiled.
        out: Observations to write.
        reference: The same streams under Algorithm 1, which are run to the same times. Without streams if there is no reference.
    """
    rows = np.empty(256, workspace.valuation.place.dtype)
    for s in range(len(actions)):
        c = streams.clock[s]
        if actions[s] == SKIP:
            continue
        starting = c.asks == LATER
        if not starting and c.first == 1:
            c.first = 0
        elif not starting:
            begin_interval(streams, s)
            if len(reference.clock) > 0:
                begin_interval(reference, s)
        if c.asks == OVER:
            continue
        if not starting:
            _answer(streams, s, rules, choices[s], actions[s])
        _run_to_decision(streams, s, rules, rows, choices[s], workspace, scratch)
        observe(streams, s, rules, choices[s], workspace, scratch, out)
        if len(reference.clock) > 0:
            follow(reference, s, rules, np.inf if c.asks == OVER else c.now_s, rows)
