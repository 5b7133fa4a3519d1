"""Ways to distribute the responses of a rollout: spread them, leave them, or gather the last ones."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.rollout_trials import gathered
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
    left, replica, context = fleet.open, fleet.replica, fleet.context()
    where = gathered(replica[left], context[left], fleet.size, keep)
    moving = np.flatnonzero(where != replica[left])
    moving = moving[np.argsort(-context[left][moving], kind="stable")]  # in this order they wait there
    fleet.migrate(left[moving], where[moving])
