"""Ways to distribute the responses of a rollout: spread them, leave them, or gather the last ones."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.tables import Ints
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Round, Wake


class Stay:
    """A control that distributes the responses in turns and leaves them there."""

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """See `rollmux_env.rollout.policy.Control`."""
        deal(fleet, np.arange(fleet.size))
        return Wake()

    def act(self, fleet: Fleet) -> Wake:
        """Do nothing."""
        return Wake()

    def end(self, fleet: Fleet) -> None:
        """Do nothing."""


def deal(fleet: Fleet, replicas: Ints) -> None:
    """Launch every response, at these replicas in turns."""
    responses = np.arange(fleet.state.size)
    fleet.launch(responses, replicas[responses % replicas.size])


def gather(fleet: Fleet, keep: int) -> None:
    """Move all open responses to the `keep` replicas with the most of them; those already there stay."""
    left, context = fleet.open, fleet.context()
    counts = np.bincount(fleet.replica[left], minlength=fleet.size)
    chosen = np.argsort(-counts, kind="stable")[:keep]
    moving = left[~np.isin(fleet.replica[left], chosen)]
    moving = moving[np.argsort(-context[moving], kind="stable")]  # the longest first to where least is
    where = np.empty(moving.size, np.int64)
    load = counts[chosen]
    for n in range(moving.size):
        where[n] = load.argmin()
        load[where[n]] += 1
    fleet.migrate(moving, chosen[where])
