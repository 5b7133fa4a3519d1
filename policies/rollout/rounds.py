"""Tail batching (RollPacker, arXiv 2509.21009): which prompts a rollout launches, and which of its responses count.

State machines without clock, lengths, input or output. Simulator and runtime report events and carry out the answers.

A short round launches more prompts than an iteration trains on, and more responses to each than it needs. A prompt is
complete when enough of its responses are finished, and the round ends when enough prompts are complete. Other responses
are dropped, and incomplete prompts wait in a queue. When the queue holds the prompts of an iteration, a long round runs
them to the end, with nothing extra. Dropped responses are sampled again, so every sample comes from the weights that it
trains.

With `eta` 1 every round launches exactly what it needs and waits for all of it: a plain rollout.

`RewardTimeout` is the timeout of RollPacker's reward scheduler: how long the test of a response may run before it fails. Rewards
are computed as responses finish. A test may run 1.5 times as long as the longest run so far of a correct response to the same
prompt, and between 2 and 30 seconds. Programs that loop forever do not delay the round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rollmux_env.rollout.policy import Round, with_spare


class Race:
    """A running round.

    Attributes:
        complete: prompts that are complete, in the order in which they became so.
    """

    def __init__(self, round: Round) -> None:
        self.round = round
        self.complete: list[int] = []
        self._finished: dict[int, list[int]] = {prompt: [] for prompt in round.prompts}

    @property
    def over(self) -> bool:
        """Whether enough prompts are complete."""
        return len(self.complete) == self.round.wanted

    def finished(self, prompt: int, response: int) -> list[tuple[int, int]]:
        """Record the end of a response.

        Args:
            prompt: number. response: which of those to it, from 0.

        Returns:
            (prompt, response) of those that are to be dropped now: what still runs for a prompt that is complete, or, when the
            round is over, for any.
        """
        counted = self._finished[prompt]
        if self.over or len(counted) == self.round.needed:
            return []  # it was to be dropped, and has ended in the same instant
        counted.append(response)
        if len(counted) < self.round.needed:
            return []
        self.complete.append(prompt)
        if not self.over:
            return [(prompt, other) for other in range(self.round.responses) if other not in counted]
        return [
            (number, other)
            for number, responses in self._finished.items()
            if number == prompt or len(responses) < self.round.needed
            for other in range(self.round.responses)
            if other not in responses
        ]

    def end(self, complete: Collection[int]) -> None:
        """It is over with these of its complete prompts, since others have been quicker elsewhere."""
        self.complete = [prompt for prompt in self.complete if prompt in complete]
        self.round = replace(self.round, wanted=len(self.complete))

    def counted(self, prompt: int) -> list[int]:
        """Which responses to a complete prompt are trained on: those that finished first, in the order of their launch."""
        return sorted(self._finished[prompt])


class Standing(NamedTuple):
    """How far the responses to a prompt are, in tokens: the clock of a race between engines of different speed.

    Attributes:
        finished: tokens of those that have finished. running: tokens so far of the others, of which some may still count.
    """

    finished: tuple[int, ...]
    running: tuple[int, ...]


def winners(round: Round, standings: Mapping[int, Standing]) -> tuple[int, ...] | None:
    """The prompts with which a round that runs on several engines is over, or None: it is not over yet.

    They are those whose responses need fewest tokens, whichever engine was quicker: all others have got as far, or are to.

    Args:
        standings: of all of its prompts, by number.
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
    """So many more responses have to finish, at least, before a round can be over."""
    lacks = sorted(max(0, round.needed - len(one.finished)) for one in standings.values())
    return sum(lacks[: round.wanted])


class Rounds:
    """The rounds of a job: every prompt of its data is trained on once, however they fall.

    Args:
        prompts, responses: an iteration trains on so many prompts, with so many responses to each.
        eta: how many times as many of both a short round launches, rounded up; at least 1.
        position: the first prompt that no round has taken yet. queue: prompts that were taken and not completed.
    """

    def __init__(self, prompts: int, responses: int, eta: float, position: int = 0, queue: Collection[int] = ()) -> None:
        if eta < 1:
            raise ValueError(f"eta: must be 1 or more, not {eta}")
        self._prompts, self._responses = prompts, responses
        self._launched = with_spare(prompts, responses, eta)
        self.position = position
        self.queue = list(queue)

    def next(self) -> Round:
        """Return the next round; the same until it is `done`."""
        if len(self.queue) >= self._prompts:
            return Round(True, tuple(self.queue[: self._prompts]), self._responses, self._prompts, self._responses)
        prompts, responses = self._launched
        fresh = tuple(range(self.position, self.position + prompts))
        return Round(False, fresh, responses, self._prompts, self._responses)

    def done(self, complete: Sequence[int]) -> None:
        """Record that the current round is over and trained on.

        Args:
            complete: the prompts that were completed.

        Raises:
            ValueError: they are none, too many, or not those of the round.
        """
        due = self.next()
        if len(complete) != due.wanted or not set(complete) <= set(due.prompts) or len(set(complete)) != len(complete):
            raise ValueError(f"{len(complete)} prompts are said to be complete; the round is over with {due.wanted} of its own")
        if due.long:
            del self.queue[: due.wanted]
            return
        self.position += len(due.prompts)
        self.queue += [prompt for prompt in due.prompts if prompt not in set(complete)]


class RewardTimeout:
    """T = min(max(least, factor * anchor), most), anchor the longest run of a correct response of that test so far.

    Args:
        anchors: {test: its anchor, seconds}, as an earlier object left them in `anchors`.
        least_s, factor, most_s: the paper's 2 s, 1.5 and 30 s.

    Raises:
        ValueError: not 0 < least_s <= most_s, or a factor below 1.
    """

    def __init__(
        self, anchors: Mapping[str, float] | None = None, least_s: float = 2.0, factor: float = 1.5, most_s: float = 30.0
    ) -> None:
        if not (0 < least_s <= most_s < float("inf") and 1 <= factor < float("inf")):
            raise ValueError("reward timeout: must have 0 < least_s <= most_s and a factor of at least 1")
        self.anchors = dict(anchors or {})
        self._least_s, self._factor, self._most_s = least_s, factor, most_s

    def seconds(self, test: str) -> float:
        """Return the time limit of the next run of a test: `most_s` until it has a correct response."""
        if test not in self.anchors:
            return self._most_s
        return min(max(self._least_s, self._factor * self.anchors[test]), self._most_s)

    def correct(self, test: str, seconds: float) -> None:
        """Record the run time of a correct response."""
        self.anchors[test] = max(seconds, self.anchors.get(test, 0.0))

    def learn(self, anchors: Mapping[str, float]) -> None:
        """Merge the anchors of other engines, {test: its anchor, seconds}."""
        for test, seconds in anchors.items():
            self.correct(test, seconds)
