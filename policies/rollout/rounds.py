"""A round of a rollout, as plain bookkeeping: what is launched, which responses count, when it is over.

No clock, no lengths, no input or output: the simulator and the real rollout worker report what finished, and do what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Round:
    """What one rollout launches and when it is over.

    Attributes:
        kind: `plain`: all that is launched is wanted; `short`: more is launched than wanted; `long`: prompts that short rounds
            left, all of them wanted.
        prompts: keys of the prompts that are launched. responses: how many of each are.
        need_prompts: so many complete prompts end the round. need_responses: so many finished responses complete a prompt.
    """

    kind: Literal["plain", "short", "long"]
    prompts: tuple[int, ...]
    responses: int
    need_prompts: int
    need_responses: int


class Race:
    """A round in progress. A response is named by (prompt, number below `Round.responses`).

    Attributes:
        round: what was launched.
        complete: {prompt: numbers of the responses that count, in order of their end}, in the order in which prompts completed.
    """

    def __init__(self, round: Round) -> None:
        self.round = round
        self.complete: dict[int, tuple[int, ...]] = {}
        self._ended: dict[int, list[int]] = {prompt: [] for prompt in round.prompts}

    @property
    def over(self) -> bool:
        """Whether enough prompts are complete."""
        return len(self.complete) >= self.round.need_prompts

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Prompts that are not complete, in the order of launch."""
        return tuple(prompt for prompt in self.round.prompts if prompt not in self.complete)

    def finished(self, prompt: int, response: int) -> list[tuple[int, int]]:
        """A response ended by itself.

        Returns:
            The responses to abort now: the rest of its prompt when that is complete; all that run when the round is over.

        Raises:
            ValueError: it was not launched, has ended before, or its prompt is complete: it should have been aborted.
        """
        ended = self._ended.get(prompt)
        if ended is None or not 0 <= response < self.round.responses or response in ended:
            raise ValueError(f"response {response} of prompt {prompt} does not run in this round")
        if prompt in self.complete or self.over:
            raise ValueError(f"response {response} of prompt {prompt} was to be aborted")
        ended.append(response)
        if len(ended) < self.round.need_responses:
            return []
        self.complete[prompt] = tuple(ended)
        losers = self._ended if self.over else (prompt,)
        return [
            (loser, number)
            for loser in losers
            if loser == prompt or loser not in self.complete
            for number in range(self.round.responses)
            if number not in self._ended[loser]
        ]


def plain_round(prompts: Sequence[int], responses: int) -> Round:
    """A round that waits for everything."""
    return Round("plain", tuple(prompts), responses, len(prompts), responses)
