"""Complete groups of responses go to the trainer while the rollout continues, as in RolloutPipe (arXiv 2606.26997).

The samples stay on-policy, and a job keeps its two pools: the weights change once all groups have been trained on. A group is a
prompt's responses, and is complete with its last one. The trainer takes groups in the order in which they are complete, and a
group's share of the training is its share of the tokens. RolloutPipe also starts responses group by group; here all start at once.

Lengths are those of `rollmux_env.timing.tail.TailModel`, independent within a group. Training divides without loss or fixed costs,
and members of a group share nodes in the best order, so this is an upper bound of what such a pipeline can do.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.portable import exp
from rollmux_env.replay.lent import Borrower, cycle_s, loads_s
from rollmux_env.timing.tail import TailModel

EACH = 8  # responses of a group
_ROLLOUTS, _SEED = 64, 0  # number of rollouts whose mean is taken, and the seed of their lengths


@cache
def group_shares(model: TailModel) -> tuple[Floats, Floats]:
    """Return when groups are complete in some rollouts, and the training that is left then.

    Args:
        model: Model of the lengths.

    Returns:
        Two arrays of shape (rollouts, groups), with groups in the order in which they are complete: the share of the rollout's
        seconds after which each is complete, and the share of the training of it and all later ones.
    """
    scores = np.random.default_rng(_SEED).standard_normal((_ROLLOUTS, model.responses // EACH, EACH))
    lengths = np.minimum(1.0, model.median * exp(model.sigma * scores))
    each = lengths.reshape(_ROLLOUTS, 1, -1)
    longest = np.sort(lengths.max(axis=2), axis=1)
    at = longest + model.batching * np.minimum(each, longest[:, :, None]).mean(axis=2)
    order = np.argsort(lengths.max(axis=2), axis=1, kind="stable")
    tokens = np.take_along_axis(lengths.sum(axis=2), order, axis=1)
    left = np.cumsum(tokens[:, ::-1], axis=1)[:, ::-1] / tokens.sum(axis=1, keepdims=True)
    return at / at[:, -1:], left


def piped_s(rollout_s: float, training_s: float) -> float:
    """Return the mean seconds from the start of a rollout to the end of the training on its last group.

    Args:
        rollout_s: Seconds of the rollout.
        training_s: Seconds of the training on all its responses.
    """
    at, left = group_shares(TailModel())
    return float((at * rollout_s + left * training_s).max(axis=1).mean())


def piped_share(members: tuple[Borrower, ...]) -> float:
    """Return the factor by which the pipeline shortens a group's period: 1 if its nodes are busy throughout."""
    cycles_s = (cycle_s(one, piped_s(one.rollout_s, one.training_s)) for one in members)
    alone_s = (cycle_s(one, one.rollout_s + one.training_s) for one in members)
    return max(loads_s(members), *cycles_s) / max(loads_s(members), *alone_s)
