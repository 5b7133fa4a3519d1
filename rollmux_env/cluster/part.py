"""A part of a large cluster: the groups that a decision looks at, so that it costs what it may change and not what there is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.candidates import cheapest
from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.state import State
from rollmux_env.kernel.lns_choose import choose_part
from rollmux_env.kernel.tables import NOWHERE, Ints


class Part(NamedTuple):
    """Some groups of a state.

    Attributes:
        positions: of the groups in `State.order`, ascending; all of them where there are no more than are asked for.
        host: the cheapest place of a newcomer in the whole cluster, whose group is one of them; None where all are, where there is
            no such place, or no newcomer.
    """

    positions: Ints
    host: Placement | None


def part_of(state: State, most: int, newcomer: str | None = None) -> Part:
    """At most so many groups, others at every event; equal states give equal parts. See `rollmux_env.kernel.lns_choose`.

    Args:
        newcomer: a job that waits for a place.
    """
    positions = np.arange(state.order.size)
    if positions.size <= most:
        return Part(positions, None)
    row = group = NOWHERE
    host = None
    if newcomer is not None:
        row, host = state.row(newcomer), cheapest(state, newcomer, prune=False)
        if host is not None and host.group is not None and (known := state.group_row(host.group)) is not None:
            group = known
    rng = np.random.default_rng(state.arrived + state.departed)
    return Part(positions[: choose_part(state.view, row, group, rng, positions[:most])], host)
