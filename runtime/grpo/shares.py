"""A round as the job's engines work on it: a share for each of them, which may go from one engine to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import time
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


def is_controlled(spec: JobSpec) -> bool:
    """Whether the job's rollout policy decides inside its rollouts, response by response."""
    return spec.rollout.policy not in ("plain", "tail-batching")


class Finished(NamedTuple):
    """A response that counts, and its reward; None while that is not known.

    Attributes:
        seconds: from the beginning of its share to its end. switches: how often it was interrupted and went on.
    """

    key: Key
    response: Response
    reward: float | None
    seconds: float
    switches: int


@dataclass(frozen=True)
class Share:
    """A share of a round on its way to an engine.

    Attributes:
        place: which of the job's shares it is. round: what it launches, and when it is over.
        finished: in the order in which they came to their end. begun: responses that are to go on.
        began_s: by the machine's clock, since 1970; None: now. switches: how often it was interrupted.
        stream: number of the random stream of its first response, where the round's own numbers do not tell.
    """

    place: int
    round: Round
    finished: tuple[Finished, ...] = ()
    begun: tuple[tuple[Key, Response], ...] = ()
    began_s: float | None = None
    switches: int = 0
    stream: int | None = None


class RunningShare:
    """A share on an engine.

    Args:
        examples: by number of the prompt. tokens: of the prompts, likewise.
        rewarded: begins to compute the reward of a response to an example.

    Attributes:
        trajectories: of what `sampled` gives: number of the prompt, its tokens, tokens of the response, seconds, switches.
    """

    trajectories: tuple[tuple[int, int, int, float, int], ...] = ()

    def __init__(
        self,
        share: Share,
        examples: Mapping[int, Example],
        tokens: Mapping[int, tuple[int, ...]],
        rewarded: Callable[[Example, Response], Future[float]],
    ) -> None:
        self.place = share.place
        self.tokens = tokens
        self._examples, self._rewarded = examples, rewarded
        self.begun = dict(share.begun)
        self._began_s = time() if share.began_s is None else share.began_s
        self._switches = share.switches
        self._race, self._stream = Race(share.round), share.stream
        self._finished: list[tuple[Key, Response, Future[float]]] = []
        self._ends: dict[Key, tuple[float, int]] = {}  # seconds, and how often it was interrupted
        self._running = dict.fromkeys((prompt, k) for prompt in share.round.prompts for k in range(share.round.responses))
        if self._race.over:  # it was given no prompts
            self._running.clear()
        for one in share.finished:
            self._count(one.key, one.response, one.reward)
            self._ends[one.key] = one.seconds, one.switches

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
        return key[0] * self._race.round.responses + key[1] if self._stream is None else self._stream + key[1]

    def tokens_so_far(self) -> int:
        """Of all its responses, those that have ended included."""
        ended = sum(len(response.token_ids) for _, response, _ in self._finished)
        return ended + sum(len(response.token_ids) for key, response in self.begun.items() if key in self._running)

    @property
    def end_s(self) -> float | None:
        """Seconds from its beginning to its end; None: it is not over."""
        return max((seconds for seconds, _ in self._ends.values()), default=0.0) if self.over else None

    def finished(self, key: Key, response: Response) -> list[Key]:
        """A response has come to its end; those that are to be dropped for it."""
        if key not in self._running:  # it was dropped in the same instant
            return []
        self._ends[key] = max(0.0, time() - self._began_s), self._switches
        return self._count(key, response)

    def _count(self, key: Key, response: Response, known_reward: float | None = None) -> list[Key]:
        if known_reward is None:
            reward = self._rewarded(self._examples[key[0]], response)
        else:
            reward = Future[float]()
            reward.set_result(known_reward)
        del self._running[key]
        self._finished.append((key, response, reward))
        dropped = self._race.finished(*key)
        for other in dropped:
            del self._running[other]
        return dropped

    def packed(self) -> Share:
        """To go on elsewhere; a reward that is not there yet is computed there.

        Raises:
            RuntimeError: a reward is none.
        """
        finished = tuple(
            Finished(key, response, None if reward.cancel() or not reward.done() else reward.result(), *self._ends[key])
            for key, response, reward in self._finished
        )
        begun = tuple((key, response) for key, response in self.begun.items() if key in self._running)
        return Share(self.place, self._race.round, finished, begun, self._began_s, self._switches + 1, self._stream)

    def sampled(self) -> Sampled:
        """What is trained on, prompt by prompt, when all of it is rewarded.

        Raises:
            RuntimeError: a reward is none.
        """
        by_key = {key: (response, reward) for key, response, reward in self._finished}
        keys = [(prompt, k) for prompt in self.complete for k in self._race.counted(prompt)]
        for key in by_key.keys() - keys:
            by_key[key][1].cancel()  # nobody waits for it
        self.trajectories = tuple(
            (prompt, len(self.tokens[prompt]), len(by_key[prompt, k][0].token_ids), *self._ends[prompt, k]) for prompt, k in keys
        )
        responses = tuple(by_key[key][0] for key in keys)
        rewards = tuple(by_key[key][1].result() for key in keys)
        return Sampled(self.place, tuple(self.tokens[prompt] for prompt, _ in keys), responses, rewards)
