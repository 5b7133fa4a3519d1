"""A co-execution group and its members as rows: records where rules are compiled, objects with the same attributes elsewhere.

Flags are 0 or 1. Sets of nodes are integers, a bit each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NOTHING, ROLLOUT, TRAINING, TAIL, SYNC = 0, 1, 2, 3, 4
WAITS, HELD = 1, 2  # waits for its turn; is held behind a sync that became ready earlier
TRAINING_POOL = 1  # bit 0 is all training nodes, bit n + 1 is rollout node n
ABSENT = 1 << 62  # turn of a member that blocks no other: it was not ready yet, is away, or has sampled everything


class GroupRow:
    """State of a group as a whole.

    Attributes:
        n: Number of members.
        joined: Number of members that have ever joined.
        requests: Number of requests so far.
        permits: Number of permits so far.
        waiting: Number of phases that wait for a permit.
        syncs: Number of syncs that wait for a permit.
        occupied: Number of waiting phases in state `HELD`.
        busy: Set of nodes that run a full phase or a sync.
        tails: Set of nodes of which a migrated tail holds a share.
        now_s: Time of the driver's clock, seconds.
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
        nodes: Set of the nodes of its rollouts; `TRAINING_POOL` if these run on the training nodes.
        order: Number that increases with the order of admission; not consecutive.
        turn_rollout: Meta-iteration of its next rollout that has neither finished nor released its nodes.
        turn_training: Meta-iteration of its next training that has not finished.
        staleness: Staleness, versions.
        begun: Flag: the rollout that its next training needs has had its permit.
        leaving: Flag: it leaves at the end of the iteration in progress.
        waits_rollout: 0, `WAITS` or `HELD`.
        waits_training: 0, `WAITS` or `HELD`.
        waits_sync: Flag: a sync waits for a permit.
        rollout_number: Position in the order in which requests became ready.
        training_number: Position of the waiting training in the same order.
        sync_number: Position of the waiting sync in the same order.
        rollout_overtaken: Number of permits on its nodes for phases that became ready later.
        training_overtaken: Number of permits on the training nodes for phases that became ready later.
        rolls: `NOTHING`, `ROLLOUT` or `TAIL`.
        trains: Flag: a training runs.
        syncs: Flag: a sync runs.
        passed: Flag: its rollout has reached the threshold.
        handing: Scratch of a choice: flag that its tail may leave its nodes.
        served_rollout: Number of the group's permit for its last rollout; 0 for none.
        served_training: Number of the group's permit for its last training; 0 for none.
        rollouts: Number of rollouts finished in the group.
        trainings: Number of trainings finished in the group.
        rollout_start_s: Start of its last rollout, seconds.
        training_start_s: Start of its last training, seconds.
        sync_start_s: Start of its last sync, seconds.
        joined_s: Time at which it joined, seconds.
        planned_rollout_s: Worst case of a rollout, seconds.
        planned_training_s: Worst case of a training, seconds.
        rollout_s: Expected seconds of a rollout, the mean so far.
        training_s: Expected seconds of a training, the mean so far.
        sum_rollout_s: Seconds of all finished rollouts.
        sum_training_s: Seconds of all finished trainings.
        sync_s: Seconds of a sync.
        slo: SLO, a multiple of its T_solo.
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
    rollout_start_s: float
    training_start_s: float
    sync_start_s: float
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
    """Return the record type with the attributes of a row."""
    return np.dtype([(name, {"int": np.int64, "float": np.float64}[kind]) for name, kind in row.__annotations__.items()])


GROUP, MEMBER = record_of(GroupRow), record_of(MemberRow)


def record(row: GroupRow | MemberRow, **other: int) -> tuple[Any, ...]:
    """Return a row as a record, with some attributes replaced."""
    return tuple(other.get(name, getattr(row, name)) for name in row.__slots__)
