"""`learned:default`, `learned:PATH`: a network that scores what each member of a group may do.

It uses the observation of training (`rollmux_env.envs.dispatch.features`) and chooses among the rows that the mask allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from importlib.resources import files
from operator import or_
from pathlib import Path

import numpy as np

from policies.placement.policy_file import read_policy
from policies.placement.scorer import score
from rollmux_env.envs.dispatch.features import write_observation
from rollmux_env.envs.dispatch.observation import ON_POLICY, STALE, observation_table
from rollmux_env.envs.dispatch.types import GROUP, MEMBER, MIGRATION, MOST_NODES, NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL
from rollmux_env.errors import InputError
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.tables import Records
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.members import Member, PhaseName, Request
from rollmux_env.timing.alone import alone_s

_RUNS = {None: NOTHING, "rollout": ROLLOUT, "tail": TAIL}


class Learned:
    """The row with the highest score: a waiting phase, a tail to migrate, or nothing now.

    Args:
        path: of a policy file for dispatch, or `default`: the one that comes with RollMux.

    Raises:
        InputError: the file cannot be read, is damaged, or reads numbers that this version does not give.
    """

    migration = MIGRATION

    def __init__(self, path: str = "default") -> None:
        file = Path(str(files("policies.dispatch") / "weights" / "default.safetensors")) if path == "default" else Path(path)
        config, self._weights = read_policy(file, "dispatch")
        features = config.job_features, config.candidate_features, config.cluster_features
        if features not in (ON_POLICY, STALE):
            raise InputError(f"{file}: rollmux: reads other features than this version of RollMux gives")
        self._file, self._stale = file, features == STALE

    def choose(self, group: Dispatcher) -> Request | Member | None:
        """The best of what may be chosen now."""
        if not self._stale and (stale := next((member for member in group.members if member.staleness), None)):
            raise InputError(f"job {stale.job_id}: staleness: {self._file} was trained without stale jobs")
        record, out, members = observe(group, self._stale)
        count = write_observation(record[0], members, out.job[0], out.candidates[0], out.cluster[0], out.mask[0])
        if count == 0:
            return None
        rows = np.flatnonzero(out.mask[0])
        row = int(rows[0])
        if len(rows) > 1:
            row = int(rows[score(self._weights, out.job[0], out.candidates[0, rows], out.cluster[0]).argmax()])
        if row == 0:
            return None
        return choice_of(group, row)


def choice_of(group: Dispatcher, row: int) -> Request | Member:
    """What a row other than 0 stands for: a waiting phase, or the member whose tail migrates."""
    everyone = list(group.members)
    member = everyone[(row - 1) % len(everyone)]
    phases: tuple[PhaseName, ...] = ("rollout", "training")
    if member.staleness:
        phases = ("training",) if row > len(everyone) else ("rollout",)
    return next((request for request in group.waiting if request.member is member and request.phase in phases), member)


def observe(group: Dispatcher, stale: bool) -> tuple[Records, Observations, Records]:
    """A group as records: (1,) the group, empty arrays for its observation, and (n,) its members.

    Args:
        stale: the observation is the one with columns and rows of stale members.
    """
    everyone = list(group.members)
    members = np.zeros(len(everyone), dtype=MEMBER)
    row = {member.job_id: k for k, member in enumerate(everyone)}
    record = np.zeros(1, dtype=GROUP)
    for entry, member, nodes in zip(members, everyone, _rollout_nodes(everyone), strict=True):
        entry["nodes"] = nodes
        if member.rolls == "tail":
            record["tails"] |= nodes
        elif member.rolls:
            record["busy"] |= nodes or TRAINING_POOL
        if member.trains or member.syncs:
            record["busy"] |= (nodes if member.syncs else 0) | TRAINING_POOL
        entry["turn_rollout"], entry["turn_training"] = member.turn["rollout"], member.turn["training"]
        entry["passed"], entry["staleness"] = member.passed, member.staleness
        trains = member.trains or member.syncs
        if member.staleness:
            entry["runs"], entry["since_s"] = _RUNS[member.rolls], member.since_s["rollout"]
            entry["beside_runs"] = trains
            entry["beside_since_s"] = max(member.since_s["training"], member.since_s.get("sync", 0.0))
        else:
            entry["runs"], entry["since_s"] = TRAINING if trains else _RUNS[member.rolls], max(member.since_s.values())
        entry["rollout_s"], entry["training_s"] = member.expected_s("rollout"), member.expected_s("training")
        entry["planned_rollout_s"], entry["planned_training_s"] = member.worst_case_s["rollout"], member.worst_case_s["training"]
        entry["sync_s"], entry["slo"], entry["joined_s"] = member.sync_s, member.slo, member.joined_s
        entry["own_s"] = _own_s(member)
    for request in group.waiting:
        entry = members[row[request.member.job_id]]
        if request.member.staleness and request.phase == "training":
            entry["beside_waits"], entry["beside_number"], entry["beside_overtaken"] = 1, request.number, request.overtaken
        else:
            entry["waits"] = ROLLOUT if request.phase == "rollout" else TRAINING
            entry["number"], entry["overtaken"] = request.number, request.overtaken
    record["n"], record["now_s"] = len(everyone), group.now_s
    return record, observation_table(1, len(everyone), stale), members


def _own_s(member: Member) -> float:
    """Seconds that a member's finished phases take alone: those of a stale one partly beside each other."""
    own_s = member.observed_s["rollout"] + member.observed_s["training"]
    if member.staleness:
        seconds = member.expected_s("rollout"), member.expected_s("training"), member.sync_s
        own_s *= alone_s(*seconds, member.staleness) / sum(seconds)
    return own_s


def _rollout_nodes(everyone: Sequence[Member]) -> list[int]:
    """The rollout nodes of each, a bit each; of more nodes than an integer has bits, those with the same members share one."""
    own = [member.nodes["rollout"] & ~TRAINING_POOL for member in everyone]
    every = reduce(or_, own, 0)
    if every.bit_length() <= MOST_NODES + 1:
        return own
    kinds: dict[tuple[bool, ...], int] = {}
    for bit in range(1, every.bit_length()):
        if every >> bit & 1:
            kinds.setdefault(tuple(bool(nodes >> bit & 1) for nodes in own), min(len(kinds) + 1, MOST_NODES))
    return [reduce(or_, (1 << bit for has, bit in kinds.items() if has[k]), 0) for k in range(len(own))]
