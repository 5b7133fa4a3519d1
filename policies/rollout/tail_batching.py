"""Tail batching (RollPacker, arXiv 2509.21009): long responses are kept out of most rounds and run together in a few.

A short round launches `eta` times the prompts and `eta` times the responses of each that it needs. A prompt is complete when
enough of its responses have ended; the round is over when enough prompts are complete. Whatever has not ended by then is aborted
and thrown away; prompts that are not complete join a queue. When the queue holds a round's worth of prompts, a long round samples
them afresh, to full length. So every sample is of the present weights, and only the order of the prompts changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from policies.rollout.rounds import Race, Round


class TailBatching:
    """Which prompts the next round launches, and the queue of long prompts between rounds.

    Prompts are integer keys, one for each time that a prompt is to be trained on: of a data set of n prompts, key k may stand for
    prompt k % n in pass k // n. A key that comes in is in exactly one complete prompt or in `queue`, whatever the rounds.

    Args:
        prompts: complete prompts of a round, P0. responses: of each that count, R0.
        eta: how much more than these a short round launches, 1 to 2; the paper's 1.25, within 1.1 to 1.4.
        queue: keys that wait for a long round, as an earlier object left them in `queue`.

    Raises:
        ValueError: no prompts or responses, or an `eta` outside 1 to 2.
    """

    def __init__(self, prompts: int, responses: int, eta: float = 1.25, queue: Iterable[int] = ()) -> None:
        if prompts < 1 or responses < 1:
            raise ValueError(f"tail batching: prompts and responses must be at least 1, not {prompts} and {responses}")
        if not (isinstance(eta, int | float) and 1 < eta <= 2):
            raise ValueError(f"tail batching: eta must be above 1 and at most 2, not {eta}")
        self.prompts = prompts
        self.responses = responses
        self.eta = eta
        self.queue = list(queue)

    def next_round(self, fresh: Iterator[int]) -> Round:
        """The next round; it takes its keys from the queue when that is long enough, else from `fresh`, which never ends."""
        if len(self.queue) >= self.prompts:
            chosen, self.queue = self.queue[: self.prompts], self.queue[self.prompts :]
            return Round("long", tuple(chosen), self.responses, self.prompts, self.responses)
        launched = tuple(next(fresh) for _ in range(_more(self.eta, self.prompts)))
        return Round("short", launched, _more(self.eta, self.responses), self.prompts, self.responses)

    def ended(self, race: Race) -> None:
        """A round is over, or was broken off; its prompts that are not complete wait for a long one."""
        self.queue.extend(race.unfinished)


def _more(eta: float, count: int) -> int:
    return ceil(eta * count - 1e-9)
