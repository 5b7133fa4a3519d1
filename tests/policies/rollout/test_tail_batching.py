"""Tail batching as bookkeeping: what is launched, what counts, what waits."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout.rounds import Race
from policies.rollout.tail_batching import TailBatching


def play(policy: TailBatching, rounds: int, data: st.DataObject) -> tuple[list[int], int, list[str]]:
    """Run rounds whose responses end in a drawn order: the prompts trained on, the keys taken, and the kinds of the rounds."""
    taken = 0

    def keys() -> object:
        nonlocal taken
        for key in count():
            taken = key + 1
            yield key

    fresh, trained, kinds = keys(), [], []
    for _ in range(rounds):
        race = Race(policy.next_round(fresh))
        running = {(prompt, number) for prompt in race.round.prompts for number in range(race.round.responses)}
        assert len(running) == len(race.round.prompts) * race.round.responses
        order = data.draw(st.randoms(use_true_random=False))
        while not race.over:
            response = order.choice(sorted(running))
            running.remove(response)
            aborted = race.finished(*response)
            assert set(aborted) <= running
            running -= set(aborted)
        assert not running, "whatever runs is aborted when the round is over"
        assert len(race.complete) == policy.prompts
        assert all(len(set(numbers)) == policy.responses for numbers in race.complete.values())
        policy.ended(race)
        trained += race.complete
        kinds.append(race.round.kind)
    return trained, taken, kinds


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.floats(1.01, 2.0), st.integers(1, 12), st.data())
def test_every_prompt_is_trained_on_once_or_waits_however_the_rounds_fall(
    prompts: int, responses: int, eta: float, rounds: int, data: st.DataObject
) -> None:
    policy = TailBatching(prompts, responses, eta)
    trained, taken, _ = play(policy, rounds, data)
    assert sorted(trained + policy.queue) == list(range(taken))
    assert len(policy.queue) < 2 * prompts + 1


def test_at_the_papers_eta_one_round_in_five_is_long() -> None:
    policy = TailBatching(128, 8)
    fresh = iter(range(10_000))
    kinds = []
    for _ in range(15):
        race = Race(policy.next_round(fresh))
        if race.round.kind == "short":
            assert (len(race.round.prompts), race.round.responses) == (160, 10)
        for prompt in race.round.prompts:
            for number in range(8):
                if not race.over:
                    race.finished(prompt, number)
        policy.ended(race)
        kinds.append(race.round.kind)
    assert kinds == ["short", "short", "short", "short", "long"] * 3


def test_a_queue_survives_its_policy() -> None:
    first = TailBatching(2, 1, 2.0)
    race = Race(first.next_round(iter(range(4))))
    race.finished(1, 0)
    race.finished(3, 1)
    first.ended(race)
    second = TailBatching(2, 1, 2.0, queue=first.queue)
    assert second.next_round(iter(())).prompts == (0, 2)


def test_a_round_that_is_broken_off_loses_no_prompt() -> None:
    policy = TailBatching(2, 1, 1.5)
    race = Race(policy.next_round(iter(range(3))))
    race.finished(0, 0)
    policy.ended(race)
    assert policy.queue == [1, 2]


def test_a_response_ends_once_and_not_after_its_abortion() -> None:
    race = Race(TailBatching(2, 1, 1.5).next_round(iter(range(3))))
    assert race.finished(0, 1) == [(0, 0)]
    for prompt, number in ((0, 1), (0, 0), (1, 7), (9, 0)):
        with pytest.raises(ValueError, match="response"):
            race.finished(prompt, number)


@pytest.mark.parametrize("wrong", [(0, 8, 1.25), (8, 0, 1.25), (8, 8, 1.0), (8, 8, 2.5), (8, 8, float("nan")), (8, 8, "1.25")])
def test_bad_configurations_are_refused_in_one_line(wrong: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match=r"^tail batching: .* must be [^\n]*$"):
        TailBatching(*wrong)
