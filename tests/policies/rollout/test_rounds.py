"""Every prompt is trained on once, however the rounds fall."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.rounds import Race, Rounds
from rollmux_env.rollout.policy import Round

SIZES = {"prompts": st.integers(1, 12), "responses": st.integers(1, 6), "eta": st.sampled_from([1.0, 1.1, 1.25, 1.4, 2.0])}


def play(round: Round, order: random.Random) -> tuple[Race, int]:
    """Let the responses of a round finish in some order, but for those that are dropped: (the race, how many were dropped)."""
    race = Race(round)
    running = [(prompt, response) for prompt in round.prompts for response in range(round.responses)]
    order.shuffle(running)
    alive, dropped = set(running), 0
    for one in running:
        if one in alive:
            alive.remove(one)
            gone = race.finished(*one)
            assert set(gone) <= alive and len(set(gone)) == len(gone)
            alive -= set(gone)
            dropped += len(gone)
    assert race.is_over
    return race, dropped


@given(**SIZES, engines=st.integers(1, 5), seed=st.integers(0, 2**32), resumed=st.integers(0, 20))
def test_every_prompt_is_trained_on_once(prompts: int, responses: int, eta: float, engines: int, seed: int, resumed: int) -> None:
    order, rounds, trained = random.Random(seed), Rounds(prompts, responses, eta), list[int]()
    for number in range(20):
        if number == resumed:  # from a checkpoint
            rounds = Rounds(prompts, responses, eta, rounds.position, rounds.queue)
        due = rounds.next()
        assert due.long == (len(rounds.queue) >= prompts)
        complete = []
        for share in due.shares(engines):
            race, dropped = play(share, order) if share.wanted else (Race(share), 0)
            assert all(len(race.select_responses(prompt)) == responses for prompt in race.complete)
            launched = len(share.prompts) * share.responses if share.wanted else 0
            assert launched - dropped >= share.wanted * responses
            complete += race.complete
        assert len(complete) == prompts
        rounds.done(complete)
        trained += complete
        assert len(rounds.queue) < 2 * prompts + 1
    assert sorted(trained + rounds.queue) == [*range(rounds.position)]


@given(**SIZES, engines=st.integers(1, 5))
def test_shares_are_the_round(prompts: int, responses: int, eta: float, engines: int) -> None:
    due = Rounds(prompts, responses, eta).next()
    shares = due.shares(engines)
    assert sum((share.prompts for share in shares), ()) == due.prompts
    assert sum(share.wanted for share in shares) == prompts
    assert all(len(share.prompts) >= share.wanted for share in shares)


def test_with_eta_1_a_round_waits_for_everything() -> None:
    rounds = Rounds(4, 3, 1.0)
    for number in range(3):
        due = rounds.next()
        assert due == Round(False, tuple(range(4 * number, 4 * number + 4)), 3, 4, 3)
        race, dropped = play(due, random.Random(number))
        assert not dropped
        rounds.done(race.complete)
    assert not rounds.queue


def test_in_the_steady_state_four_short_rounds_come_to_one_long() -> None:
    rounds, kinds = Rounds(128, 8, 1.25), []
    for _ in range(20):
        due = rounds.next()
        kinds.append(due.long)
        assert (len(due.prompts), due.responses) == ((128, 8) if due.long else (160, 10))
        rounds.done(due.prompts[: due.wanted])
    assert kinds == ([False] * 4 + [True]) * 4


def test_a_prompt_is_complete_with_its_first_responses_and_the_round_with_its_first_prompts() -> None:
    race = Race(Round(False, (7, 8, 9), responses=3, wanted=2, needed=2))
    assert race.finished(8, 2) == []
    assert race.finished(8, 0) == [(8, 1)]
    assert race.finished(7, 0) == race.finished(9, 1) == []
    assert race.finished(8, 1) == []  # it ended in the instant in which it was dropped
    assert not race.is_over
    assert race.finished(9, 2) == [(7, 1), (7, 2), (9, 0)]
    assert race.is_over and race.complete == [8, 9] and race.select_responses(8) == [0, 2] and race.select_responses(9) == [1, 2]
    assert race.finished(7, 1) == []


def test_what_was_not_launched_cannot_be_complete() -> None:
    rounds = Rounds(2, 2, 1.25)
    for complete in ([0], [0, 1, 2], [0, 0], [0, 3]):
        with pytest.raises(ValueError, match="ends with 2 of its prompts"):
            rounds.done(complete)
    with pytest.raises(ValueError, match="eta: must be 1 or more"):
        Rounds(2, 2, 0.9)
