from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from policies.dispatch import DISPATCH, make_dispatch
from policies.dispatch.rules import RoundRobin
from rollmux_env.errors import PlanError
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase
from tests.oracle import period
from tests.oracle.draw import Member, examples, group_members
from tests.rollmux_env.scheduler.driving import Player, Ran, Watched, drive, lively_groups


def constant(rollout: float, training: float) -> Callable[[str, int], float]:
    return lambda phase, _: rollout if phase == "rollout" else training


def on_node(ran: list[Ran], node: object) -> list[Ran]:
    return sorted((phase for phase in ran if node in phase.nodes), key=lambda phase: phase.start)


@pytest.mark.parametrize("name", DISPATCH)
@given(players=lively_groups())
@examples(60)
def test_no_node_runs_two_phases_and_every_iteration_is_a_rollout_then_a_training(name: str, players: list[Player]) -> None:
    ran = drive(make_dispatch(name), players, 300)
    for node in {node for phase in ran for node in phase.nodes}:
        for before, after in itertools.pairwise(on_node(ran, node)):
            assert before.end <= after.start
    for player in players:
        own = [phase for phase in ran if phase.job == player.name]
        assert [(phase.iteration, phase.phase) for phase in own] == [
            (k, phase) for k in range(len(own)) for phase in ("rollout", "training")
        ][: len(own)]
        assert all(before.end <= after.start for before, after in itertools.pairwise(own))
        if player.leaves is not None and not player.abruptly and own:
            assert own[-1].phase == "training"
            assert sum(phase.start >= player.leaves and phase.phase == "rollout" for phase in own) == 0


@pytest.mark.parametrize("name", DISPATCH)
@given(players=lively_groups())
@examples(60)
def test_nobody_starves_whoever_joins_and_leaves(name: str, players: list[Player]) -> None:
    watched = Watched(make_dispatch(name))
    ran = drive(watched, players, 400)
    assert max(watched.overtaken, default=0) <= 2 * len(players)
    for player in players:
        if player.leaves is None:
            own = [phase.end for phase in ran if phase.job == player.name]
            assert own, "it never ran"
            # A round of all the others, nine seconds a phase, so often as it may be overtaken.
            assert all(b - a <= 9 * 2 * 2 * 5 for a, b in itertools.pairwise([*own, 400.0]))


@given(players=lively_groups())
@examples(150)
def test_round_robin_is_strict_on_every_node_whoever_joins_and_leaves(players: list[Player]) -> None:
    """Of two members that share a node, from the later one's first phase on, they take turns until one of them leaves."""
    ran = drive(RoundRobin(), players, 300)
    in_order = sorted(players, key=lambda player: player.joins)
    for first, second in itertools.combinations(in_order, 2):
        for node in {node for phase in ran for node in phase.nodes}:
            both = [phase for phase in on_node(ran, node) if phase.job in (first.name, second.name)]
            begins = next((k for k, phase in enumerate(both) if phase.job == second.name), None)
            if begins is None or all(phase.job == second.name for phase in both):
                continue
            ends = min(player.leaves if player.leaves is not None else 1e9 for player in (first, second))
            together = [phase.job for phase in both[begins:] if phase.start < ends]
            for before, after in itertools.pairwise(together):
                assert before != after, (node, together)


@given(members=group_members(stale=False))
@examples(150)
def test_round_robin_runs_at_the_exact_period(members: list[Member]) -> None:
    """Of durations that never change, starts repeat after some meta-iterations, each a period long."""
    players = [Player(f"j{k}", tuple(m[3]), constant(m[0], m[1]), sync=m[2]) for k, m in enumerate(members)]
    exact = float(period.period(members))
    rounds = 160
    ran = drive(RoundRobin(), players, 60 * len(members) * rounds)
    last = [phase.end for phase in ran if phase.job == players[-1].name and phase.phase == "training"]
    assert len(last) >= rounds
    # A cyclic pattern has at most as many meta-iterations as there are phases that may hold one another up: 120 has all of 1 to 6.
    assert (last[rounds - 1] - last[rounds - 121]) / 120 == pytest.approx(exact, rel=1e-9)


def test_a_job_joins_at_the_next_meta_iteration() -> None:
    """On one node pair: a is in its rollout when b comes, so b is part of a's second iteration."""
    a = Player("a", (0,), constant(10, 5))
    b = Player("b", (0,), constant(3, 4), joins=1)
    ran = [(phase.job, phase.phase, phase.start) for phase in sorted(drive(RoundRobin(), [a, b], 60), key=lambda p: p.start)]
    assert ran[:8] == [
        ("a", "rollout", 0),
        ("a", "training", 10),
        ("a", "rollout", 15),
        ("b", "rollout", 25),
        ("a", "training", 25),
        ("b", "training", 30),
        ("a", "rollout", 30),
        ("b", "rollout", 40),
    ]


def test_jobs_that_join_together_begin_together() -> None:
    """Nothing of the first meta-iteration has begun when the second joins, so it takes part in it."""
    ran = drive(RoundRobin(), [Player("a", (0,), constant(10, 5)), Player("b", (1,), constant(3, 4))], 40)
    assert [(phase.job, phase.start) for phase in ran if phase.phase == "training"][:2] == [("a", 10), ("b", 15)]


def test_a_paused_member_keeps_its_place_and_holds_nobody_up() -> None:
    """It joins between two others, is ready only later, and then comes between them in every meta-iteration."""
    dispatcher = Dispatcher(RoundRobin())
    for job in ("a", "late", "z"):
        dispatcher.joined(job, (0,), 1, 1)
    dispatcher.ready("a", "rollout")
    dispatcher.ready("z", "rollout")
    rollouts = ""
    while len(rollouts) < 12:
        if len(rollouts) == 4:
            dispatcher.ready("late", "rollout")
        for job, phase in dispatcher.permits():
            rollouts += job[0] if phase == "rollout" else ""
            dispatcher.finished(job, phase, 1)
            dispatcher.ready(job, "training" if phase == "rollout" else "rollout")
    assert rollouts == "azazalzalzal"


def test_one_that_leaves_does_so_at_the_end_of_its_iteration() -> None:
    dispatcher = Dispatcher(RoundRobin())
    dispatcher.joined("a", (0,), 1, 1)
    dispatcher.ready("a", "rollout")
    assert dispatcher.permits() == [("a", "rollout")]
    assert not dispatcher.leaving("a")
    dispatcher.finished("a", "rollout", 1)
    assert dispatcher.ready("a", "training")
    assert dispatcher.permits() == [("a", "training")]
    dispatcher.finished("a", "training", 1)
    assert not dispatcher.ready("a", "rollout")
    assert not dispatcher.view.members
    assert dispatcher.permits() == []


def test_one_that_waits_for_its_rollout_leaves_at_once() -> None:
    dispatcher = Dispatcher(RoundRobin())
    dispatcher.joined("a", (0,), 1, 1)
    dispatcher.ready("a", "rollout")
    assert dispatcher.leaving("a")
    assert dispatcher.permits() == []


def test_one_that_is_gone_frees_its_nodes() -> None:
    dispatcher = Dispatcher(RoundRobin())
    dispatcher.joined("a", (0, 3), 1, 1)
    dispatcher.joined("b", (3,), 1, 1)
    dispatcher.ready("a", "rollout")
    dispatcher.ready("b", "rollout")
    assert dispatcher.permits() == [("a", "rollout")]
    dispatcher.gone("a")
    assert dispatcher.permits() == [("b", "rollout")]


def test_reports_that_cannot_be_are_refused() -> None:
    dispatcher = Dispatcher(RoundRobin())
    dispatcher.joined("a", (0,), 1, 1)
    with pytest.raises(ValueError, match="is a member already"):
        dispatcher.joined("a", (0,), 1, 1)
    with pytest.raises(ValueError, match="does not run"):
        dispatcher.finished("a", "rollout", 1)


def test_a_policy_cannot_give_a_node_twice() -> None:
    class Careless:
        def choose(self, group: GroupView) -> WaitingPhase:
            return group.waiting[0]

    dispatcher = Dispatcher(Careless())
    for job in "ab":
        dispatcher.joined(job, (0,), 1, 1)
        dispatcher.ready(job, "rollout")
    with pytest.raises(PlanError, match="a node that runs another phase"):
        dispatcher.permits()


def reach_threshold(dispatcher: Dispatcher, jobs: str = "ab") -> None:
    """Job a runs its rollout on node 0 past the threshold; the others wait for the node."""
    for name in jobs:
        dispatcher.joined(name, (0,), 10, 5)
        dispatcher.ready(name, "rollout")
    assert dispatcher.permits() == [("a", "rollout")]
    dispatcher.threshold("a")


def test_a_tail_keeps_a_share_and_the_next_rollout_has_the_node() -> None:
    dispatcher = Dispatcher(RoundRobin(migrate=0.8))
    reach_threshold(dispatcher)
    assert [member.job_id for member in dispatcher.view.movable] == ["a"]
    assert dispatcher.permits() == [("b", "rollout")] and dispatcher.migrations == ["a"]
    assert dispatcher.view.busy == dispatcher.view.tails == 2
    assert dispatcher.permits() == [] and dispatcher.migrations == []
    dispatcher.finished("a", "rollout", 12)
    dispatcher.ready("a", "training")
    assert (dispatcher.view.busy, dispatcher.view.tails) == (2, 0)
    assert dispatcher.permits() == [("a", "training")]


def test_a_node_holds_one_tail_at_a_time() -> None:
    dispatcher = Dispatcher(RoundRobin(migrate=0.8))
    reach_threshold(dispatcher, "abc")
    assert dispatcher.permits() == [("b", "rollout")]
    dispatcher.threshold("b")
    assert not dispatcher.view.movable and dispatcher.permits() == []
    dispatcher.finished("a", "rollout", 12)
    assert [member.job_id for member in dispatcher.view.movable] == ["b"]
    assert dispatcher.permits() == [("c", "rollout")] and dispatcher.migrations == ["b"]


def test_nobody_migrates_for_nobody() -> None:
    dispatcher = Dispatcher(RoundRobin(migrate=0.8))
    dispatcher.joined("a", (0,), 10, 5)
    dispatcher.joined("b", (1,), 10, 5)
    dispatcher.ready("a", "rollout")
    dispatcher.permits()
    dispatcher.threshold("a")
    dispatcher.ready("b", "rollout")
    assert not dispatcher.view.movable
    assert dispatcher.permits() == [("b", "rollout")] and dispatcher.migrations == []


def test_one_that_goes_takes_its_tail_along() -> None:
    dispatcher = Dispatcher(RoundRobin(migrate=0.8))
    reach_threshold(dispatcher)
    dispatcher.permits()
    dispatcher.gone("a")
    assert (dispatcher.view.busy, dispatcher.view.tails) == (2, 0)


def test_a_policy_cannot_migrate_what_is_not_movable() -> None:
    class Careless:
        def choose(self, group: GroupView) -> WaitingPhase | MemberView:
            return next(iter(group.members)) if group.busy else group.waiting[0]

    dispatcher = Dispatcher(Careless())
    for job in "ab":
        dispatcher.joined(job, (0,), 1, 1)
        dispatcher.ready(job, "rollout")
    with pytest.raises(PlanError, match="which is not movable"):
        dispatcher.permits()
    with pytest.raises(ValueError, match="does not run on all of its nodes"):
        dispatcher.threshold("b")


def test_nobody_waits_for_the_turn_of_an_absent_member_and_it_comes_back_behind_the_others() -> None:
    dispatcher = Dispatcher(RoundRobin())
    for job in "ab":
        dispatcher.joined(job, (0,), 1, 1)

    dispatcher.ready("a", "rollout")
    dispatcher.ready("b", "rollout")
    for job in "ab":
        assert dispatcher.permits() == [(job, "rollout")]
        dispatcher.finished(job, "rollout", 1.0)
    for job in "ab":
        dispatcher.ready(job, "training")
        assert dispatcher.permits() == [(job, "training")]
        dispatcher.finished(job, "training", 1.0)
    dispatcher.ready("b", "rollout")
    assert not dispatcher.permits()  # it is the turn of a
    dispatcher.absent("a")
    assert dispatcher.permits() == [("b", "rollout")]
    with pytest.raises(ValueError, match="job b has an unfinished iteration"):
        dispatcher.absent("b")
    dispatcher.ready("a", "rollout")
    dispatcher.finished("b", "rollout", 1.0)
    assert dispatcher.permits() == [("a", "rollout")]
    dispatcher.ready("b", "training")
    dispatcher.finished("a", "rollout", 1.0)
    dispatcher.ready("a", "training")
    assert dispatcher.permits() == [("b", "training")]


class Chooses:
    """A dispatch policy that answers what a test says."""

    def __init__(self, choose: Callable[[GroupView], Any]) -> None:
        self.choose = choose


def _pair(choose: Callable[[GroupView], Any]) -> Dispatcher:
    dispatcher = Dispatcher(Chooses(choose), number=3)
    for job in "ab":
        dispatcher.joined(job, (0,), 1, 1)
    dispatcher.ready("a", "rollout")
    return dispatcher


def test_every_answer_of_a_policy_is_checked_by_a_numbered_invariant() -> None:
    other = _pair(lambda group: None).view
    cases: dict[str, Callable[[GroupView], Any]] = {
        "D1: the dispatch policy chose 7, which is no phase and no member of the group": lambda group: 7,
        "D1: the dispatch policy chose a phase of job a of another group": lambda group: other.waiting[0],
        "D2: the dispatch policy chose the training of job a, which does not wait": lambda group: group.members[0].training,
        "D4: the dispatch policy chose the tail of job b, which is not movable": lambda group: group.members[1],
    }
    for problem, choose in cases.items():
        with pytest.raises(PlanError, match=problem):
            _pair(choose).permits()


def test_a_policy_may_leave_a_phase_waiting_only_while_something_else_can_happen() -> None:
    dispatcher = _pair(lambda group: None)
    assert dispatcher.permits() == [], "the other member may be ready later"
    dispatcher.ready("b", "rollout")
    with pytest.raises(
        PlanError, match="D5: the dispatch policy chose nothing, though nothing runs and all 2 jobs of group 3 wait"
    ):
        dispatcher.permits()


def test_a_phase_behind_a_sync_cannot_be_chosen() -> None:
    dispatcher = Dispatcher(make_dispatch("fifo"))
    for job, node in (("a", 0), ("b", 1), ("c", 0)):
        dispatcher.joined(job, (node,), 1, 1)
    for job, phases in (("a", ("rollout", "training")), ("b", ("rollout",))):
        for phase in phases:
            dispatcher.ready(job, phase)  # type: ignore[arg-type]
            assert dispatcher.permits() == [(job, phase)]
            dispatcher.finished(job, phase, 1)  # type: ignore[arg-type]
    dispatcher.ready("b", "training")
    dispatcher.permits()
    dispatcher.ready("a", "sync")
    dispatcher.ready("c", "rollout")
    assert dispatcher.permits() == [], "the sync waits for the training nodes, and the rollout behind it"
    dispatcher.policy = Chooses(lambda group: group.members[2].rollout)
    dispatcher.joined("d", (2,), 1, 1)
    dispatcher.ready("d", "rollout")
    with pytest.raises(PlanError, match="D2: the dispatch policy chose the rollout of job c, which does not wait for a permit, or"):
        dispatcher.permits()
