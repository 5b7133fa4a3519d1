"""The choices of a decision in one of many streams, padded to a fixed number.

Choice 0 always exists: a new group for an arriving job (`isolated`), no more moves otherwise (`stop`). The others are rows of the
candidate table, or the moves of `rollmux_env.kernel.neighbourhood`.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.placement.types import Rules, Streams, view_of
from rollmux_env.kernel.candidates import ANY_NODES, FEASIBLE, SLO, enumerate_candidates
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.neighbourhood.enumerate import choose_groups, enumerate_moves
from rollmux_env.kernel.neighbourhood.table import PLACE, Scratch, choice_type, write_stop
from rollmux_env.kernel.tables import Records, View
from rollmux_env.kernel.valuation import Valuation, present_rates, work_price, write_stays

TAKEN = -1  # replaces the reason of a row that has become a choice


def choice_table(streams: Streams, actions: int) -> Records:
    """Create empty choices of E streams: records of `choice_type`, shape (E, A). A placement is the first of a choice's moves."""
    return np.zeros((len(streams.clock), actions), dtype=choice_type(streams.jobs["pins"].shape[2]))


@compiled(arrays=False)
def _write(choice: Records, job: int, row: Records, usable: bool) -> None:
    choice.kind = PLACE
    choice.n_moves = 1
    choice.job[0] = job
    choice.of_shape[0] = row.of_shape
    choice.group[0] = row.group
    choice.new_nodes[0] = row.new_nodes
    for k in range(len(row.nodes)):
        choice.nodes[0, k] = row.nodes[k]
    choice.usd = row.usd
    choice.period_s = row.period_s
    choice.feasible = 1 if row.reason == FEASIBLE else 0
    choice.allowed = 1 if usable else 0


@compiled(arrays=False)
def _fits(row: Records, shield: bool) -> bool:
    return bool(row.reason == FEASIBLE or (row.reason == SLO and not shield))


@compiled(arrays=False)
def _count(rows: Records, n: int, shield: bool) -> tuple[int, int]:
    """Count the usable rows, and the other rows that can be shown."""
    usable = rest = 0
    for k in range(n):
        if _fits(rows[k], shield):
            usable += 1
        elif rows[k].reason != TAKEN and rows[k].new_nodes != ANY_NODES:
            rest += 1
    return usable, rest


@compiled(arrays=False)
def _highest_shown_usd(rows: Records, n: int, shield: bool, room: int) -> tuple[float, int]:
    """Return the highest price among the `room` cheapest usable rows in $/h, and how many of those rows have this price."""
    usd = -np.inf
    below = 0
    while True:
        least = np.inf
        equal = 0
        for k in range(n):
            if _fits(rows[k], shield) and usd < rows[k].usd <= least:
                equal = equal + 1 if rows[k].usd == least else 1
                least = rows[k].usd
        usd = least
        if below + equal >= room:
            return usd, room - below
        below += equal


@compiled(arrays=False)
def write_places(streams: Streams, s: int, rules: Rules, rows: Records, choices: Records) -> None:
    """Write the choices of a waiting job.

    Args:
        streams: All streams.
        s: Number of the stream.
        rules: Rules of the environment.
        rows: Scratch of `candidate_type`. If it is too small, a larger array is used once.
        choices: Choices of the stream to write.
    """
    c = streams.clock[s]
    _write_places(view_of(streams, s, rules.limits), c, rules.shield, rows, choices)


@compiled
def _write_places(view: View, c: Records, shield: bool, rows: Records, choices: Records) -> None:
    job = c.admitted
    n = enumerate_candidates(view, job, False, False, rows)
    if n > len(rows):
        rows = np.empty(n, rows.dtype)
        enumerate_candidates(view, job, False, False, rows)
    room = len(choices) - 1
    own = n - 1 - view.jobs[job].more_shapes  # the new group in shape 0
    _write(choices[0], job, rows[own], rows[own].reason == FEASIBLE)
    rows[own].reason = TAKEN
    usable, rest = _count(rows, n, shield)
    highest_usd = np.inf  # highest price of a usable row to show, and number of rows to show at this price
    ties = usable
    if usable > room:
        highest_usd, ties = _highest_shown_usd(rows, n, shield, room)
    rest = max(0, min(rest, room - usable))
    at = 1
    for k in range(n):
        row = rows[k]
        fits, shown = _fits(row, shield), False
        if fits and row.usd == highest_usd:
            shown = ties > 0
            ties -= 1
        elif fits:
            shown = row.usd < highest_usd
        elif row.reason != TAKEN and row.new_nodes != ANY_NODES:
            shown = rest > 0
            rest -= 1
        if shown:
            _write(choices[at], job, row, fits)
            at += 1
    c.choices = at
    c.overflow = 1 if usable > room else 0


@compiled(arrays=False)
def write_moves(streams: Streams, s: int, rules: Rules, valuation: Valuation, scratch: Scratch, choices: Records) -> None:
    """Write `stop` and the moves of running jobs, the greatest gain first."""
    c = streams.clock[s]
    view = view_of(streams, s, rules.limits)
    write_stop(choices[0])
    n = choose_groups(view, scratch.examined.looked)
    looked = View(view.jobs, view.groups, scratch.examined.looked[:n], view.limits, view.clock)
    write_stays(looked, rules.known_stays, valuation.stays)
    terms = valuation.terms[0]
    terms.work_usd, terms.migration_h = work_price(present_rates(view)), rules.migration_s / 3600.0
    terms.shield = 1 if rules.shield else 0
    count, total = enumerate_moves(looked, valuation, scratch, choices)
    c.choices = count + 1
    c.overflow = 1 if total > count else 0
