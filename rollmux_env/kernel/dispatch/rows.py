"""A co-execution group and its members as rows: records where rules are compiled, objects with the same attributes elsewhere.

Flags are 0 or 1. Sets of nodes are integers, a bit each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NOTHING, ROLLOUT, TRAINING, TAIL, SYNC = 0, 1, 2, 3, 4
WAITS, HELD = 1, 2  # for its turn; for a sync that became ready before it
TRAINING_POOL = 1  # bit 0 stands for all training nodes, bit n + 1 for rollout node n
ABSENT = 1 << 62  # turn of a member that is in nobody's way: it has not been ready yet, is away, or has sampled all it will


class GroupRow:
    """What a group as a whole is at.

    Attributes:
        n: members. joined, requests, permits: how many there have been.
        waiting, syncs: phases, and syncs, that wait for a permit. occupied: those of the phases that are held.
        busy: nodes that run a full phase or a sync. tails: those of which a migrated tail holds a share.
        now_s: the driver's clock.
    """

    n: int
    joined: int
    requests: int
    permits: int
    waiting: int
    syncs: int
    occupied: int
    busy: int
    tails: int
    now_s: float

    __slots__ = tuple(__annotations__)

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class MemberRow:
    """A job in a group. Rows are in order of admission.

    Attributes:
        nodes: of its rollouts; `TRAINING_POOL` where these take the training nodes.
        order: its place in the order of admission; not consecutive.
        turn_rollout, turn_training: meta-iteration of its next phase of the kind that has neither finished nor given up its nodes.
        begun: the rollout that its next training needs has had its permit. leaving: it goes when the iteration in hand is over.
        waits_rollout, waits_training: 0, `WAITS` or `HELD`. waits_sync: a flag. *_number: in the order in which they became ready.
        *_overtaken: permits given on any of the nodes to phases that became ready later.
        rolls: `NOTHING`, `ROLLOUT` or `TAIL`. trains, syncs: whether it does. passed: its rollout has reached the threshold.
        handing: scratch of a choice: its tail may leave its nodes.
        served_*: which permit of the group was its last one for the phase; 0 of none.
        rollouts, trainings: finished here. sum_*_s: what they took, seconds.
        *_since_s: when the last one began that it has run. joined_s: when it joined.
        planned_*_s: worst cases, seconds. rollout_s, training_s: expected, the mean so far, seconds. sync_s: seconds.
        staleness: in versions. slo: multiple of its T_solo.
    """

    nodes: int
    order: int
    turn_rollout: int
    turn_training: int
    staleness: int
    begun: int
    leaving: int
    waits_rollout: int
    waits_training: int
    waits_sync: int
    rollout_number: int
    training_number: int
    sync_number: int
    rollout_overtaken: int
    training_overtaken: int
    rolls: int
    trains: int
    syncs: int
    passed: int
    handing: int
    served_rollout: int
    served_training: int
    rollouts: int
    trainings: int
    rollout_since_s: float
    training_since_s: float
    sync_since_s: float
    joined_s: float
    planned_rollout_s: float
    planned_training_s: float
    rollout_s: float
    training_s: float
    sum_rollout_s: float
    sum_training_s: float
    sync_s: float
    slo: float

    __slots__ = tuple(__annotations__)

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


def record_of(row: type) -> np.dtype[Any]:
    """The record with the attributes of a row."""
    return np.dtype([(name, {"int": np.int64, "float": np.float64}[kind]) for name, kind in row.__annotations__.items()])


GROUP, MEMBER = record_of(GroupRow), record_of(MemberRow)


def record(row: GroupRow | MemberRow, **other: int) -> tuple[Any, ...]:
    """A row as a record, but for some attributes."""
    return tuple(other.get(name, getattr(row, name)) for name in row.__slots__)
