from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from policies.dispatch import DISPATCH, make_dispatch
from policies.placement.policy_file import PolicyConfig, write_policy
from policies.placement.scorer import random_weights
from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.dispatch.observation import ON_POLICY
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.errors import InputError
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.view import PhaseName
from tests.oracle.draw import examples
from tests.rollmux_env.scheduler.driving import Player, Ran, Watched, drive, lively_groups

FREE = ("fifo", "shortest-first", "longest-first", "least-recently-served")


def constant(rollout: float, training: float) -> Callable[[str, int], float]:
    return lambda phase, _: rollout if phase == "rollout" else training


def rollouts(ran: list[Ran], n: int) -> str:
    return "".join(phase.job for phase in sorted(ran, key=lambda phase: phase.start) if phase.phase == "rollout")[:n]


def test_the_names() -> None:
    assert list(DISPATCH) == ["round-robin", "fifo", "shortest-first", "longest-first", "least-recently-served"]
    with pytest.raises(InputError, match=r"dispatch policy: must be one of round-robin, fifo, .*, not 'lifo'; did you mean fifo"):
        make_dispatch("lifo")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("round-robin,migrate=1.5", "migrate must be a number between 0 and 1, not 1.5"),
        ("fifo,migrate=soon", "migrate must be a number between 0 and 1, not soon"),
        ("fifo,migrates=0.8", "fifo has no option 'migrates'; it has careful, migrate, share"),
        ("fifo,careful=true", "careful must be true or false, and goes with migrate"),
        ("fifo,share=0.5", "share goes with migrate"),
        ("round-robin,migrate=0.8,share=1", "share: must be below 1, not 1"),
        ("fifo,migrate=0.8,migrate=0.8", "migrate: is given twice"),
        ("learned:no/such.safetensors", "no/such.safetensors: No such file"),
    ],
)
def test_what_cannot_be_made_is_said_in_a_line(spec: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        make_dispatch(spec)
    assert "\n" not in str(error.value)


def test_a_damaged_policy_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(b"\x10\0\0\0\0\0\0\0 not a policy at all")
    with pytest.raises(InputError, match="is not a policy file, or damaged"):
        make_dispatch(f"learned:{file}")


def test_a_policy_file_that_knows_nothing_of_staleness_refuses_stale_jobs(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    config = PolicyConfig(
        decides="dispatch",
        job_features=ON_POLICY.job,
        candidate_features=ON_POLICY.candidates,
        cluster_features=ON_POLICY.cluster,
        widths=(8,),
    )
    write_policy(file, config, random_weights(len(ON_POLICY.job), len(ON_POLICY.candidates), len(ON_POLICY.cluster), (8,), 0))
    dispatcher = Dispatcher(make_dispatch(f"learned:{file}"))
    dispatcher.joined("a", (0,), 2, 1)
    dispatcher.ready("a", "rollout")
    assert dispatcher.permits() == [("a", "rollout")]
    dispatcher.joined("b", (1,), 2, 1, staleness=1)
    dispatcher.ready("b", "rollout")
    with pytest.raises(InputError, match=r"^job b: staleness: .*policy\.safetensors was trained without stale jobs$"):
        dispatcher.permits()


@pytest.mark.parametrize(
    ("name", "first"),
    [("round-robin", "a"), ("fifo", "b"), ("shortest-first", "c"), ("longest-first", "d"), ("least-recently-served", "b")],
)
def test_whom_a_free_node_goes_to(name: str, first: str) -> None:
    """Admitted as a, b, c, d with rollouts of 5, 5, 1 and 9 s; b asks first."""
    dispatcher = Dispatcher(make_dispatch(name))
    for job, seconds in (("a", 5), ("b", 5), ("c", 1), ("d", 9)):
        dispatcher.joined(job, (0,), seconds, 1)
    for job in "bcda":
        dispatcher.ready(job, "rollout")
    assert dispatcher.permits() == [(first, "rollout")]


def test_size_is_what_was_observed_once_something_was() -> None:
    """Planned at 5 s, a takes 1 s and b 9 s. Both have run once; now the shorter of the two is a, whoever asks first."""
    dispatcher = Dispatcher(make_dispatch("shortest-first"))
    for job in "ba":
        dispatcher.joined(job, (0,), 5, 1)
    for job, seconds in (("b", 9), ("a", 1)):
        dispatcher.ready(job, "rollout")
        dispatcher.permits()
        dispatcher.finished(job, "rollout", seconds)
        dispatcher.ready(job, "training")
        dispatcher.permits()
        dispatcher.finished(job, "training", 1)
    dispatcher.ready("b", "rollout")
    dispatcher.ready("a", "rollout")
    assert dispatcher.permits() == [("a", "rollout")]


def test_least_recently_served_means_by_these_nodes() -> None:
    """Rollouts of a, b and c came in this order, trainings in the other one: who trains next is c, whoever asks first."""
    dispatcher = Dispatcher(make_dispatch("least-recently-served"))
    for job in "abc":
        dispatcher.joined(job, (ord(job),), 1, 1)

    def serve(phase: PhaseName, *jobs: str) -> list[str]:
        for job in jobs:
            dispatcher.ready(job, phase)
        order: list[str] = []
        while permits := dispatcher.permits():
            for job_id, _ in permits:
                order.append(job_id)
                dispatcher.finished(job_id, phase, 1.0)
        return order

    assert serve("rollout", *"abc") == [*"abc"]  # nobody was served: as they asked, each on a node of its own
    assert serve("training", *"cba") == [*"cba"]
    assert serve("rollout", *"bac") == [*"abc"]
    assert serve("training", *"abc") == [*"cba"]


def test_a_job_whose_phases_are_short_is_not_served_before_one_that_was_served_longer_ago() -> None:
    """First come, first served would go by when a and b asked; b had the node last."""
    for name, first in (("fifo", "b"), ("least-recently-served", "a")):
        dispatcher = Dispatcher(make_dispatch(name))
        for job in "abc":
            dispatcher.joined(job, (0,), 1, 1)
            dispatcher.ready(job, "rollout")
            assert dispatcher.permits() == [(job, "rollout")]
            dispatcher.finished(job, "rollout", 1.0)
            dispatcher.ready(job, "training")
            dispatcher.permits()
            dispatcher.finished(job, "training", 1.0)
        for job in "bac":
            dispatcher.ready(job, "rollout")
        assert dispatcher.permits() == [(first, "rollout")], name


def test_rollouts_and_trainings_on_the_same_nodes_are_one_service() -> None:
    """Of jobs whose rollouts take the training nodes, the one that trained last was served last."""
    dispatcher = Dispatcher(make_dispatch("least-recently-served"))
    for job in "ab":
        dispatcher.joined(job, (), 1, 1)
        dispatcher.ready(job, "rollout")
    turns: tuple[tuple[str, PhaseName], ...] = (("a", "rollout"), ("b", "rollout"), ("b", "training"))
    for job, phase in turns:
        assert dispatcher.permits() == [(job, phase)]
        dispatcher.finished(job, phase, 1.0)
        if (job, phase) == ("b", "rollout"):
            dispatcher.ready("b", "training")
    dispatcher.ready("b", "rollout")
    dispatcher.ready("a", "training")
    assert dispatcher.permits() == [("a", "training")]


@pytest.mark.parametrize("name", FREE)
def test_a_short_job_runs_several_iterations_inside_a_long_one(name: str) -> None:
    """With rollout nodes of their own strict round robin holds the short job to the pace of the long one; the others do not."""
    players = [Player("a", (0,), constant(20, 2)), Player("b", (1,), constant(3, 2))]
    strict = [
        phase for phase in drive(make_dispatch("round-robin"), players, 225) if phase.job == "b" and phase.phase == "training"
    ]
    free = [phase for phase in drive(make_dispatch(name), players, 225) if phase.job == "b" and phase.phase == "training"]
    assert len(strict) == 10
    assert len(free) > 30


@pytest.mark.parametrize("name", DISPATCH)
def test_a_rollout_over_several_nodes_is_not_starved_by_others_that_keep_its_nodes_busy(name: str) -> None:
    """Jobs a to d keep the three nodes busy out of step, so that they are never all free by chance; w needs them all."""
    players = [
        Player("a", (0,), constant(7, 0.5)),
        Player("b", (1,), constant(5, 0.5)),
        Player("c", (2,), constant(6, 0.5)),
        Player("d", (0, 1), constant(1, 0.5)),
        Player("w", (0, 1, 2), constant(4, 0.5), joins=1),
    ]
    watched = Watched(make_dispatch(name))
    ran = drive(watched, players, 2000)
    for player in players:
        ends = [phase.end for phase in ran if phase.job == player.name and phase.phase == "rollout"]
        assert all(after - before < 150 for before, after in itertools.pairwise([0, *ends, 2000]))
    assert max(watched.overtaken) <= 2 * len(players)


def test_short_jobs_do_not_starve_a_long_one() -> None:
    """Two short jobs could pass the node to one another for ever. Overtaken as often as there are members, the long one is next."""
    players = [Player("a", (0,), constant(1, 0.1)), Player("b", (0,), constant(1, 0.1)), Player("c", (0,), constant(50, 0.1))]
    assert rollouts(drive(make_dispatch("shortest-first"), players, 400), 18) == "ababacbababcababac"


@pytest.mark.parametrize("name", FREE)
def test_a_tail_moves_only_where_a_waiting_rollout_can_begin_then(name: str) -> None:
    """Job w waits for both nodes. While b runs on the other one, a's tail would lose its node to nobody."""
    dispatcher = Dispatcher(make_dispatch(f"{name},migrate=0.8"))
    for job, nodes in (("a", (0,)), ("b", (1,)), ("w", (0, 1))):
        dispatcher.joined(job, nodes, 10, 1)
        dispatcher.ready(job, "rollout")
    assert sorted(dispatcher.permits()) == [("a", "rollout"), ("b", "rollout")]
    dispatcher.threshold("a")
    assert dispatcher.permits() == [] and dispatcher.migrations == []
    dispatcher.threshold("b")
    assert dispatcher.permits() == [("w", "rollout")] and sorted(dispatcher.migrations) == ["a", "b"]


@pytest.mark.parametrize("name", ["round-robin", "fifo"])
@pytest.mark.parametrize(("others", "moves"), [([(5, 1)], False), ([(12, 16)], True), ([(5, 1), (12, 1), (12, 1)], True)])
def test_careful_leaves_the_tail_of_a_job_that_nobody_holds_up(name: str, others: list[tuple[int, int]], moves: bool) -> None:
    """Job a takes 30 s alone. Beside a short one it is the bound of the group; beside its like, or on full nodes, it is not."""
    dispatcher = Dispatcher(make_dispatch(f"{name},migrate=0.8,careful=true"))
    for job, seconds in zip("abcd", [(10, 20), *others], strict=False):
        dispatcher.joined(job, (0,), *seconds)
    dispatcher.ready("a", "rollout")
    dispatcher.ready("b", "rollout")
    assert dispatcher.permits() == [("a", "rollout")]
    dispatcher.threshold("a")
    permits = dispatcher.permits()
    assert (dispatcher.migrations, permits) == ((["a"], [("b", "rollout")]) if moves else ([], []))


@pytest.mark.parametrize("name", FREE)
def test_a_tail_does_not_move_for_a_rollout_whose_nodes_are_kept_for_an_overdue_one(name: str) -> None:
    """Job w, on both nodes, was overtaken as often as there are members. So node 0 would wait for w, and not go to c."""
    dispatcher = Dispatcher(make_dispatch(f"{name},migrate=0.8"))
    for job, nodes in (("a", (0,)), ("b", (1,)), ("c", (0,)), ("w", (0, 1))):
        dispatcher.joined(job, nodes, 10, 1)
    for job in "abw":
        dispatcher.ready(job, "rollout")
    assert sorted(dispatcher.permits()) == [("a", "rollout"), ("b", "rollout")]
    dispatcher.view.members[-1].row.rollout_overtaken = 4
    dispatcher.ready("c", "rollout")
    dispatcher.threshold("a")
    assert dispatcher.permits() == [] and dispatcher.migrations == []


@given(players=lively_groups())
@examples(60)
def test_the_learned_policy_starves_nobody_whoever_joins_and_leaves(players: list[Player]) -> None:
    watched = Watched(make_dispatch("learned:default"))
    ran = drive(watched, players, 400)
    assert max(watched.overtaken, default=0) <= 2 * len(players)
    for player in players:
        if player.leaves is None:
            own = [phase.end for phase in ran if phase.job == player.name]
            assert all(b - a <= 9 * 2 * 2 * 5 for a, b in itertools.pairwise([*own, 400.0]))


def test_the_learned_policy_knows_groups_of_more_nodes_than_an_integer_has_bits() -> None:
    """Three jobs, each on 40 nodes of its own and on 40 that all share."""
    dispatcher = Dispatcher(make_dispatch("learned:default"))
    for k, job in enumerate("abc"):
        dispatcher.joined(job, (*range(40), *range(40 * (k + 1), 40 * (k + 2))), 10, 5)
        dispatcher.ready(job, "rollout")
    first = dispatcher.permits()
    assert len(first) == 1
    dispatcher.finished(first[0][0], "rollout", 9)
    dispatcher.ready(first[0][0], "training")
    assert len(dispatcher.permits()) == 2


@pytest.mark.parametrize(
    ("dispatch", "stale"), [("learned:default", 0.0), ("learned:default", 1.0), ("round-robin,migrate=0.8", 0.0)]
)
def test_groups_of_the_papers_kinds_are_not_slower_than_in_strict_round_robin(dispatch: str, stale: float) -> None:
    for shape in ("shared", "spatial"):
        usd = []
        for name in ("round-robin", dispatch):
            groups = [RandomGroups(shape, 0.5, rounds=10, stale=stale).group(seed) for seed in range(6)]
            usd.append(sum(figures(group, replay_group(group, make_dispatch(name)))["usd_per_work_hour"] for group in groups))
        assert usd[1] < usd[0]
