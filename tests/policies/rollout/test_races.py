"""A round that several engines run ends over all of them, with the same prompts however quick each of them is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.rounds import Race, Standing, least_more, winners
from rollmux_env.rollout.policy import Round

ROUND = Round(False, tuple(range(5)), 3, 3, 2)


def standing(lengths: list[int], tokens: int, needed: int) -> Standing:
    """Of the responses to a prompt of these lengths, when all of them that run have so many tokens."""
    finished = sorted(length for length in lengths if length <= tokens)[:needed]
    running = [tokens for length in lengths if length > tokens] if len(finished) < needed else []
    return Standing(tuple(finished), tuple(running))


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=3, max_size=3), min_size=5, max_size=5),
    st.lists(st.integers(1, 4), min_size=24, max_size=24),
)
def test_it_is_over_with_the_prompts_that_need_fewest_tokens(lengths: list[list[int]], speeds: list[int]) -> None:
    """Two engines, of which now the one and now the other is quicker."""
    due = sorted((sorted(own)[1], prompt) for prompt, own in enumerate(lengths))[:3]
    tokens, looks = [0, 0], 0
    while True:
        standings = {prompt: standing(own, tokens[prompt % 2], 2) for prompt, own in enumerate(lengths)}
        kept = winners(ROUND, standings)
        if kept is not None:
            break
        tokens[looks % 2] += speeds[looks]
        looks += 1
        assert looks < 24, "all have finished"
    assert kept == tuple(prompt for _, prompt in due)
    assert max(tokens) <= due[-1][0] + 12  # nobody has gone on much further


def test_who_has_not_got_as_far_may_still_win() -> None:
    ahead = {0: Standing((4, 6), ()), 1: Standing((5, 7), ()), 2: Standing((3, 9), ())}
    assert winners(ROUND, ahead | {3: Standing((2,), (7, 7)), 4: Standing((), (9, 9, 9))}) is None  # 3 may end with 8
    assert winners(ROUND, ahead | {3: Standing((2,), (9, 9)), 4: Standing((), (9, 9, 9))}) == (0, 1, 2)
    assert winners(ROUND, ahead | {3: Standing((2, 8), ()), 4: Standing((), (9, 9, 9))}) == (0, 1, 3)


def test_a_round_is_looked_at_when_it_may_be_over() -> None:
    standings = {0: Standing((4, 6), ()), **{k: Standing((3,), (8, 8)) for k in (1, 2)}, 3: Standing((), (8,) * 3)}
    assert least_more(ROUND, standings | {4: Standing((), (8,) * 3)}) == 2


def test_a_share_that_has_ended_keeps_what_counts() -> None:
    race = Race(Round(False, (0, 1, 2), 2, 3, 1))
    race.finished(2, 0)
    race.finished(0, 1)
    assert not race.is_over
    race.end((0, 7))
    assert race.is_over and race.complete == [0]
    empty = Race(Round(False, (3,), 2, 1, 1))
    empty.end((0, 7))
    assert empty.is_over and empty.complete == []
