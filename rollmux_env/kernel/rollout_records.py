"""The tables of a rollout: its responses, the replicas that they are on, and their groups.

Shapes: R responses of at most T turns, G groups of responses (a group is a prompt), K replicas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.tables import Ints, Records

NEW, WAITING, RUNNING, FINISHED, ABORTED, AWAY = range(6)
NONE = -1
TIE_S = 1e-9  # events within this time are a tie, so that rounding does not decide their order
# As the fields of ReplicaTiming, then those of MixtureTiming, which are 0 of dense models.
STEP, WEIGHTS, KV, SEQUENCE, PREFILL_TOKEN, PREFILL_TOKEN2, PREFILL, MESSAGE, EXPERTS, EXPERT_SHARE = range(10)
COSTS = 10


# Columns of the table of responses.
_RESPONSE = np.dtype(
    [
        ("prompt", "i8"),  # tokens, of the turns so far
        ("length", "i8"),  # tokens that it is going to have
        ("group", "i8"),  # row of its group
        ("turn", "i8"),  # its present one, from 0
        ("until", "i8"),  # tokens that it has when that is through
        ("reads", "i8"),  # tokens of the prompt of each further turn
        ("away_s", "f8"),  # before that
        ("back_s", "f8"),  # when it was or will be back
        ("cached", "i8"),  # tokens of it in the cache of its replica while it is away or waits
        ("sampled", "i8"),  # tokens, as of when it last entered or left a replica's batch
        ("state", "i8"),  # NEW to AWAY
        ("replica", "i8"),  # where it waits or runs, or last did, or NONE
        ("ends", "i8"),  # step of that replica at which its turn is through
        ("end_s", "f8"),  # when it finished or was aborted
        ("refill_s", "f8"),  # seconds in place of its prefill, where its cache is brought; negative: it is prefilled
        ("after", "i8"),  # neighbours in the queue where it waits, or NONE
        ("before", "i8"),
    ],
    align=True,
)

# Columns of the table of replicas.
_REPLICA = np.dtype(
    [
        ("cost", "f8", (COSTS,)),  # seconds, by STEP to EXPERTS, and a share
        ("kv", "i8"),  # tokens of the cache
        ("most", "i8"),  # sequences of a batch
        ("clock_s", "f8"),  # up to when it was followed
        ("next_s", "f8"),  # its next event, or infinite
        ("back_s", "f8"),  # when the next response is back, or infinite
        ("cached", "i8"),  # tokens of those that are away or wait
        ("ahead", "i8"),  # decode steps until its next event
        ("steps", "i8"),  # decode steps done
        ("context", "i8"),  # tokens of its batch
        ("busy_s", "f8"),  # when it last had something to do
        ("running", "i8"),  # responses in its batch
        ("head", "i8"),  # its queue, and how long that is
        ("tail", "i8"),
        ("waiting", "i8"),
    ],
    align=True,
)

_GROUP = np.dtype([("finished", "i8"), ("needed", "i8")], align=True)  # responses that finished, and how many complete it


class Rollout(NamedTuple):
    """A rollout: its responses, and the replicas that they are on.

    Attributes:
        responses: (R,) records of `_RESPONSE`.
        replicas: (K,) records of `_REPLICA`.
        groups: (G,) records of `_GROUP`.
        turns: (R, T) tokens of a response at the end of each of its turns.
        batch: (K, R) running responses of each replica, in the order in which they were taken.
        order: (R + 1,) responses in the order in which they finished, and at the end their number.
        counts: (2,) numbers of complete groups and of preemptions.
    """

    responses: Records
    replicas: Records
    groups: Records
    turns: Ints
    batch: Ints
    order: Ints
    counts: Ints


def response_table(rows: int) -> Records:
    """Return (rows,) new responses without tokens."""
    table = np.zeros(rows, _RESPONSE)
    table["replica"] = table["after"] = table["before"] = NONE
    table["back_s"], table["end_s"], table["refill_s"] = -np.inf, np.inf, -1.0
    return table


def replica_table(rows: int) -> Records:
    """Return (rows,) idle replicas."""
    table = np.zeros(rows, _REPLICA)
    table["next_s"] = table["back_s"] = np.inf
    table["head"] = table["tail"] = NONE
    return table


def group_table(rows: int, needed: int) -> Records:
    """Return (rows,) groups without finished responses."""
    table = np.zeros(rows, _GROUP)
    table["needed"] = needed
    return table


def rollout_table(responses: int = 1, replicas: int = 1, groups: int = 1, needed: int = 1, turns: int = 1) -> Rollout:
    """Return the tables of a rollout that has not begun."""
    return Rollout(
        responses=response_table(responses),
        replicas=replica_table(replicas),
        groups=group_table(groups, needed),
        turns=np.zeros((responses, turns), np.int64),
        batch=np.zeros((replicas, responses), np.int64),
        order=np.zeros(responses + 1, np.int64),
        counts=np.zeros(2, np.int64),
    )
