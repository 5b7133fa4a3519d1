"""Tail batching (RollPacker, arXiv 2509.21009): the prompts that a round launches, and the responses that count.

The classes are state machines without clock, input or output. Simulator and runtime report events to them and carry out the
answers.

A short round launches more prompts than an iteration trains on, and more responses to each than it needs. A prompt is complete when
enough of its responses are finished, and the round ends when enough prompts are complete. Other responses are dropped, and
incomplete prompts wait in a queue. When the queue holds enough prompts for an iteration, a long round runs them to the end, without
extra responses. Dropped responses are sampled again, so every sample comes from the weights that it trains.

With `eta` 1 every round launches exactly what it needs and waits for all of it, as a plain rollout does.

`RewardTimeout` is the timeout of RollPacker's reward scheduler: the time that the test of a response may run before it fails.
Rewards are computed as responses finish. A test may run 1.5 times as long as the longest test so far of a correct response to the
same prompt, and between 2 and 30 seconds. So programs that loop forever do not delay the round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rollmux_env.rollout.policy import Round, with_spare


class Race:
    """A running round, which ends when enough prompts are complete.

    Attributes:
        round: The round.
        complete: Complete prompts in the order in which they completed.
    """

    def __init__(self, round: Round) -> None:
        self.round = round
        self.complete: list[int] = []
        self._finished: dict[int, list[int]] = {prompt: [] for prompt in round.prompts}

    @property
    def is_over(self) -> bool:
        """Whether enough prompts are complete."""
        return len(self.complete) == self.round.wanted

    def finished(self, prompt: int, response: int) -> list[tuple[int, int]]:
        """Record that a response has finished.

        Args:
            prompt: Number of the prompt.
            response: Number of the response to this prompt, from 0.

        Returns:
            Responses to drop now, as (prompt, response): the unfinished ones of a prompt that is now complete, or all unfinished
            ones if the round is now over.
        """
        finished = self._finished[prompt]
        if self.is_over or len(finished) == self.round.needed:
            return []  # the response was about to be dropped, and finished in the same instant
        finished.append(response)
        if len(finished) < self.round.needed:
            return []
        self.complete.append(prompt)
        if not self.is_over:
            return [(prompt, other) for other in range(self.round.responses) if other not in finished]
        return [
            (number, other)
            for number, responses in self._finished.items()
            if number == prompt or len(responses) < self.round.needed
            for other in range(self.round.responses)
            if other not in responses
        ]

    def end(self, complete: Collection[int]) -> None:
        """End the round with some of its complete prompts only, because prompts on other engines completed earlier."""
        self.complete = [prompt for prompt in self.complete if prompt in complete]
        self.round = replace(self.round, wanted=len(self.complete))

    def select_responses(self, prompt: int) -> list[int]:
        """Return the responses to a complete prompt that are trained on: the first to finish, in the order of their launch."""
        return sorted(self._finished[prompt])


class Standing(NamedTuple):
    """Progress of the responses to a prompt, in tokens. Tokens serve as the clock of a race between engines of different speed.

    Attributes:
        finished: Lengths of the finished responses, tokens.
        running: Tokens so far of the running responses that may still count.
    """

    finished: tuple[int, ...]
    running: tuple[int, ...]


def winners(round: Round, standings: Mapping[int, Standing]) -> tuple[int, ...] | None:
    """Return the prompts that complete a round on several engines, or None if the round is not over yet.

    The winners are the prompts whose responses need the fewest tokens, independent of the speed of their engine. The round is over
    once no other prompt can still need fewer.

    Args:
        round: The round.
        standings: Progress of each of its prompts, by number.
    """
    complete = sorted((max(one.finished), prompt) for prompt, one in standings.items() if len(one.finished) >= round.needed)
    if len(complete) < round.wanted:
        return None
    ends = complete[: round.wanted]
    for prompt, one in standings.items():
        lacks = round.needed - len(one.finished)
        if lacks > 0:
            earliest = max((*one.finished, sorted(one.running)[lacks - 1] + 1))
            if (earliest, prompt) < ends[-1]:
                return None
    return tuple(prompt for _, prompt in ends)


def least_more(round: Round, standings: Mapping[int, Standing]) -> int:
    """Return a lower bound on the number of responses that must still finish before a round can be over."""
    lacks = sorted(max(0, round.needed - len(one.finished)) for one in standings.values())
    return sum(lacks[: round.wanted])


class Rounds:
    """The consecutive rounds of a job. Every prompt of the data is trained on exactly once, in whichever round it completes.

    Args:
        prompts: Number of prompts that an iteration trains on.
        responses: Number of responses to each prompt that an iteration trains on.
        eta: Factor on both numbers for what a short round launches, at least 1. The results are rounded up.
        position: First prompt that no round has taken yet.
        queue: Prompts that were launched and not completed.
        eta_responses: Factor on the number of responses, at least 1, or None for `eta`.
    """

    def __init__(
        self,
        prompts: int,
        responses: int,
        eta: float,
        position: int = 0,
        queue: Collection[int] = (),
        eta_responses: float | None = None,
    ) -> None:
        eta_responses = eta if eta_responses is None else eta_responses
        if min(eta, eta_responses) < 1:
            raise ValueError(f"eta: must be 1 or more, not {min(eta, eta_responses)}")
        self._prompts, self._responses = prompts, responses
        self._launched = with_spare(prompts, responses, eta)[0], with_spare(prompts, responses, eta_responses)[1]
        self.position = position
        self.queue = list(queue)

    def next(self) -> Round:
        """Return the next round. It stays the same until `done` is called."""
        if len(self.queue) >= self._prompts:
            return Round(True, tuple(self.queue[: self._prompts]), self._responses, self._prompts, self._responses)
        prompts, responses = self._launched
        fresh = tuple(range(self.position, self.position + prompts))
        return Round(False, fresh, responses, self._prompts, self._responses)

    def done(self, complete: Sequence[int]) -> None:
        """Record that the current round is over and trained on.

        Args:
            complete: The completed prompts.

        Raises:
            ValueError: Their number is wrong, or one does not belong to the round.
        """
        due = self.next()
        if len(complete) != due.wanted or not set(complete) <= set(due.prompts) or len(set(complete)) != len(complete):
            raise ValueError(f"{len(complete)} prompts are said to be complete; the round ends with {due.wanted} of its prompts")
        if due.long:
            del self.queue[: due.wanted]
            return
        self.position += len(due.prompts)
        self.queue += [prompt for prompt in due.prompts if prompt not in set(complete)]


class RewardTimeout:
    """Time limits of tests: min(max(least, factor * anchor), most), with anchor the longest run of a correct response so far.

    Args:
        anchors: Anchor of each test in seconds, as kept in `anchors` of an earlier object, or None.
        least_s: Lower limit, seconds. The paper uses 2.
        factor: Factor on the anchor. The paper uses 1.5.
        most_s: Upper limit, seconds. The paper uses 30.

    Raises:
        ValueError: 0 < least_s <= most_s does not hold, or the factor is below 1.
    """

    def __init__(
        self, anchors: Mapping[str, float] | None = None, least_s: float = 2.0, factor: float = 1.5, most_s: float = 30.0
    ) -> None:
        if not (0 < least_s <= most_s < float("inf") and 1 <= factor < float("inf")):
            raise ValueError("reward timeout: must have 0 < least_s <= most_s and a factor of at least 1")
        self.anchors = dict(anchors or {})
        self._least_s, self._factor, self._most_s = least_s, factor, most_s

    def seconds(self, test: str) -> float:
        """Return the time limit of the next run of a test in seconds, `most_s` until a response to it was correct."""
        if test not in self.anchors:
            return self._most_s
        return min(max(self._least_s, self._factor * self.anchors[test]), self._most_s)

    def correct(self, test: str, seconds: float) -> None:
        """Record the seconds that the test of a correct response took."""
        self.anchors[test] = max(seconds, self.anchors.get(test, 0.0))

    def learn(self, anchors: Mapping[str, float]) -> None:
        """Merge the anchors of other engines, in seconds by test."""
        for test, seconds in anchors.items():
            self.correct(test, seconds)
