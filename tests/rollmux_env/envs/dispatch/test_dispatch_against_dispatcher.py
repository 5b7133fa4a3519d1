"""The dispatcher's rules stand twice, in the scheduler and in the compiled environment: random groups hold one to the other.

Groups are small and most of their seconds whole, so that phases end together. Choices are random among those that may be made.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from numpy.lib.recfunctions import structured_to_unstructured

from policies.dispatch.learned import records_of
from rollmux_env.envs.dispatch.actions import choice_of, write_mask
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.generator import Fixed
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.types import MIGRATION, Group
from rollmux_env.job_keys import Job
from rollmux_env.kernel.dispatch.rows import MEMBER, ROLLOUT, TAIL, TRAINING
from rollmux_env.kernel.tables import Records
from rollmux_env.phase_keys import Actual, Phase, Switch, Training
from rollmux_env.scheduler.view import GroupView
from rollmux_env.workloads.catalogue import paper_cluster
from tests.rollmux_env.envs.dispatch.playing import replayed, spans_of, with_room
from tests.rollmux_env.envs.playing import total

BATCH = 50  # groups side by side
SPANS = 2_000
HORIZON_S = 90.0
NAMES = MEMBER.names or ()


class Decision(NamedTuple):
    """What there was to choose from, and the row that was chosen."""

    now_s: float
    mask: list[int]
    members: Records
    row: int


class Scripted:
    """Makes the choices of an episode again, and compares what it finds before each with what was there in the environment."""

    migration = MIGRATION

    def __init__(self, decisions: list[Decision]) -> None:
        self._left = [*decisions]

    def choose(self, group: GroupView):
        record, members = records_of(group)
        mask = np.zeros(2 * len(members) + 1, dtype=np.int8)
        count = write_mask(record, members, mask)
        if count == 0:
            return None
        row = int(mask.argmax())
        if mask.sum() > 1 and not self._left:  # after the environment's horizon; members leave some time later
            row = 1 + int(mask[1:].argmax())
        elif mask.sum() > 1:
            decision = self._left.pop(0)
            assert mask.tolist() == decision.mask and group.now_s == pytest.approx(decision.now_s, rel=1e-9)
            compare(members, decision.members)
            row = decision.row
        if row == 0:
            return None
        k, phase = choice_of(members, row)
        member = group.views[k]
        return {ROLLOUT: member.rollout, TRAINING: member.training}.get(phase, member)

    def check_all_made(self) -> None:
        assert not self._left


def compare(members: Records, expected: Records) -> None:
    """Every column that says something is the same, to 1e-9."""
    values, wanted = (structured_to_unstructured(table, dtype=np.float64) for table in (members, expected))
    says = np.ones(values.shape, dtype=np.bool_)
    for flag, names in (
        ("waits_rollout", ("rollout_number", "rollout_overtaken")),
        ("waits_training", ("training_number", "training_overtaken")),
        ("rolls", ("rollout_since_s",)),
        ("trains", ("training_since_s",)),
    ):
        says[np.ix_(members[flag] == 0, [NAMES.index(n) for n in names])] = False
    says[:, [NAMES.index("handing")]] = False
    same = (values == wanted) | (np.abs(values - wanted) <= 1e-9 * (1 + np.abs(wanted))) | ~says
    assert same.all(), [(int(k), NAMES[c], values[k, c], wanted[k, c]) for k, c in np.argwhere(~same)]


def random_group(rng: np.random.Generator, seed: int) -> Group:
    """Up to four members; in three groups of four any of them may be stale."""
    members, fine, stale = int(rng.integers(1, 5)), rng.random() < 0.3, rng.random() < 0.75
    pins: list[tuple[int, ...]] = []
    for _ in range(members):
        known = 1 + max((node for own in pins for node in own), default=-1)
        old = rng.choice(known, rng.integers(0, min(known, 2) + 1), replace=False).tolist() if known else []
        new = int(rng.integers(0 if old else 1, 3)) if known < 3 else 0
        pins.append(tuple(sorted([*old, *range(known, known + new)])) or (0,))

    def switch() -> Switch:
        return Switch(warm_s=float(rng.integers(0, 2)), cold_s=float(rng.integers(0, 3)))

    def actual() -> Actual | None:
        return Actual(mean_fraction=float(rng.uniform(0.4, 0.9)), cv=0.5) if fine else None

    jobs = tuple(
        Job(
            id=f"j{k}",
            arrival_s=0.0,
            duration_s=2 * HORIZON_S,
            slo=float(rng.choice([1, 1.5, 2, 4])),
            rollout=Phase(nodes=len(own), worst_case_s=float(rng.integers(1, 9)), actual=actual(), switch=switch()),
            training=Training(worst_case_s=float(rng.integers(1, 6)), actual=actual(), switch=switch()),
            sync_s=float(rng.choice([0, 0, 1, 2, 9])),
            staleness=int(rng.choice([0, 1, 2, 5])) if stale else 0,
        )
        for k, own in enumerate(pins)
    )
    return Group(paper_cluster(), jobs, tuple(pins), 1, HORIZON_S, seed)


def play(env: DispatchVectorEnv, rng: np.random.Generator) -> list[list[Decision]]:
    """One episode a group with random choices; waiting, which passes over many phases, is half as likely as another row."""
    observation, _ = env.reset(seed=0, options={"stream_seed": [*range(env.num_envs)]})
    decisions: list[list[Decision]] = [[] for _ in range(env.num_envs)]
    over = env.groups.clocks["over"] == 1
    while not over.all():
        mask = observation["mask"]
        weights = rng.random(mask.shape)
        weights[:, 0] *= 0.5
        actions, room = (weights * mask).argmax(1), env.groups.members.shape[1]
        for e in np.flatnonzero(~over).tolist():
            n, row = int(env.groups.groups["n"][e]), int(actions[e])
            now_s = float(env.groups.groups["now_s"][e])
            seen = [*mask[e, : n + 1].tolist(), *mask[e, room + 1 : room + n + 1].tolist()]  # without members that are not there
            decisions[e].append(Decision(now_s, seen, env.groups.members[e, :n].copy(), row - (room - n) * (row > room)))
        observation, _, over, _, _ = env.step(actions)
    return decisions


def hold_to_the_dispatcher(seed: int) -> Counter[str]:
    """Play a batch of groups, and each of them again through the event replay; returns what happened in them."""
    rng = np.random.default_rng(seed)
    groups = [random_group(rng, seed * BATCH + k) for k in range(BATCH)]
    env = with_room(DispatchVectorEnv(BATCH, Fixed(*groups), autoreset=False), SPANS)
    assert env.generator.stale
    happened: Counter[str] = Counter()
    all_decisions = play(env, rng)
    ours = env._figures()  # noqa: SLF001 (a group without a decision ends before its first step)
    for e, (group, decisions) in enumerate(zip(groups, all_decisions, strict=True)):
        policy = Scripted(decisions)
        spans = spans_of(group, env.groups, e)
        assert spans == replayed(group, policy)
        policy.check_all_made()
        theirs = figures(group, replay_group(group, Scripted(decisions)))
        assert {name: ours[name][e] for name in theirs} == pytest.approx(theirs, rel=1e-9)
        ends = [span[5] for span in spans if span[1] != "tail"]
        happened += Counter(
            {
                "decisions": len(decisions),
                "tails": sum(span[1] == "tail" for span in spans),
                "phases that end together": len(ends) - len(set(ends)),
                "waits": sum(decision.row == 0 for decision in decisions),
                "overdue phases": sum(bool((d.members["rollout_overtaken"] >= len(d.members)).any()) for d in decisions),
                "rollouts beside trainings": sum(bool((d.members["rolls"] * d.members["trains"]).any()) for d in decisions),
                "tails beside trainings": sum(
                    bool(((d.members["rolls"] == TAIL) & (d.members["trains"] == 1)).any()) for d in decisions
                ),
                "rollouts ahead": sum(bool((d.members["turn_rollout"] - d.members["turn_training"] > 2).any()) for d in decisions),
            }
        )
    return happened


def test_groups_go_as_in_the_dispatcher() -> None:
    happened = total(hold_to_the_dispatcher(seed) for seed in range(2))
    assert len(happened) == 8, happened


@pytest.mark.long
def test_ten_thousand_groups_go_as_in_the_dispatcher() -> None:
    happened = total(hold_to_the_dispatcher(seed) for seed in range(1000, 1000 + 10_000 // BATCH))
    assert len(happened) == 8 and min(happened.values()) >= 1000, happened
