"""A round as the job's engines work on it: a share for each of them, which may go from one engine to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from policies.rollout.rounds import Race, Round, Rounds
from runtime.engines.interface import Response
from runtime.grpo.messages import Sampled
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import Example

Key = tuple[int, int]  # number of a prompt, and which of the responses to it


def rounds_of(spec: JobSpec) -> Rounds:
    """The rounds of a job; without tail batching they wait for everything."""
    eta = spec.rollout.eta if spec.rollout.policy == "tail-batching" else 1.0
    return Rounds(spec.algorithm.prompts_per_iteration, spec.algorithm.group_size, eta)


class Finished(NamedTuple):
    """A response that counts, and its reward."""

    key: Key
    response: Response
    reward: float


@dataclass(frozen=True)
class Share:
    """A share of a round on its way to an engine.

    Attributes:
        place: which of the job's shares it is. round: what it launches, and when it is over.
        finished: in the order in which they came to their end. begun: responses that are to go on.
    """

    place: int
    round: Round
    finished: tuple[Finished, ...] = ()
    begun: tuple[tuple[Key, Response], ...] = ()


class RunningShare:
    """A share on an engine.

    Args:
        examples: by number of the prompt. tokens: of the prompts, likewise.
    """

    def __init__(self, share: Share, examples: Mapping[int, Example], tokens: Mapping[int, tuple[int, ...]]) -> None:
        self.place = share.place
        self.examples, self.tokens = examples, tokens
        self.begun = dict(share.begun)
        self._race = Race(share.round)
        self._finished: list[tuple[Key, Response, Future[float]]] = []
        self._running = dict.fromkeys((prompt, k) for prompt in share.round.prompts for k in range(share.round.responses))
        if self._race.over:  # it was given no prompts
            self._running.clear()
        for one in share.finished:
            reward = Future[float]()
            reward.set_result(one.reward)
            self.finished(one.key, one.response, reward)

    @property
    def running(self) -> Sequence[Key]:
        """Responses that are to be sampled on."""
        return list(self._running)

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        return self._race.over

    @property
    def complete(self) -> list[int]:
        """Prompts that are complete, in order of their numbers."""
        return sorted(self._race.complete)

    def stream(self, key: Key) -> int:
        """Number of a response's random stream: the same on every engine."""
        return key[0] * self._race.round.responses + key[1]

    def finished(self, key: Key, response: Response, reward: Future[float]) -> list[Key]:
        """A response has come to its end; those that are to be dropped for it."""
        if key not in self._running:
            return []  # dropped in the same instant
        del self._running[key]
        self._finished.append((key, response, reward))
        dropped = self._race.finished(*key)
        for other in dropped:
            del self._running[other]
        return dropped

    def packed(self) -> Share:
        """To go on elsewhere."""
        finished = tuple(Finished(key, response, reward.result()) for key, response, reward in self._finished)
        begun = tuple((key, response) for key, response in self.begun.items() if key in self._running)
        return Share(self.place, self._race.round, finished, begun)

    def sampled(self) -> Sampled:
        """What is trained on, prompt by prompt.

        Raises:
            RuntimeError: a reward is none.
        """
        by_key = {key: (response, reward) for key, response, reward in self._finished}
        keys = [(prompt, k) for prompt in self.complete for k in self._race.counted(prompt)]
        responses = tuple(by_key[key][0] for key in keys)
        rewards = tuple(by_key[key][1].result() for key in keys)
        return Sampled(self.place, tuple(self.tokens[prompt] for prompt, _ in keys), responses, rewards)
