"""Shares of a round. A round is the prompts of one rollout, each with a number of responses.

A share is the part of a round that one engine samples. It can move to another engine, with its finished and unfinished responses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import groupby
from time import time
from typing import Any, NamedTuple

from policies.rollout.rounds import Race, Rounds, Standing, least_more, winners
from rollmux_env.errors import InputError
from rollmux_env.rollout.policy import Round
from runtime.engines.interface import Response
from runtime.grpo.messages import ResponseLine, ResponseStatus, ShareSamples
from runtime.grpo.rewards import Rewards
from runtime.jobs.jsonl import JsonlTask, read_examples
from runtime.jobs.models import prompt_tokens
from runtime.jobs.spec import TaskJob
from runtime.jobs.tasks import BUILT_IN, GrpoTask, TaskExample

_LOOKS = 64  # largest number of times that the job judges a rollout which races
Key = tuple[int, int]  # a response: number of its prompt, and which of the responses to it


class Prompt(NamedTuple):
    """An example and the token ids of its prompt."""

    example: TaskExample
    tokens: tuple[int, ...]


class Prompts:
    """Prompts of a job. Lines of a file that are too long are left out, and the job's log says so.

    Args:
        spec: Specification of the job.
        tokenizer: Tokenizer of transformers.
        rewards: Rewards of the job, whose processes also make the examples of a user's own task.

    Attributes:
        held_out: Prompts of the evaluation, the same ones each time.

    Raises:
        InputError: A file cannot be used, or all of its prompts are too long. The message is one line.
    """

    def __init__(self, spec: TaskJob, tokenizer: Any, rewards: Rewards) -> None:
        self._tokenizer, self._most, self._name = tokenizer, spec.algorithm.max_prompt_tokens, spec.task.name
        self._source: GrpoTask | Rewards = rewards
        if spec.task.name in BUILT_IN:
            self._source = BUILT_IN[spec.task.name](spec.seed)
        elif spec.task.name == "jsonl":
            lines = self._short_enough(read_examples(spec.task, spec.folder), spec.task.file)
            self._source = JsonlTask([prompt.example for prompt in lines], spec.seed)
        self.held_out: tuple[Prompt, ...] = ()
        if spec.evaluation is not None:
            task = spec.task.model_copy(update={"file": spec.evaluation.file})
            lines = self._short_enough(read_examples(task, spec.folder), task.file)
            self.held_out = tuple(lines[: spec.evaluation.prompts])

    def numbered(self, numbers: Collection[int]) -> dict[int, Prompt]:
        """Return prompts by their numbers.

        Args:
            numbers: Numbers of the prompts in the order of the job's data, from 0.

        Raises:
            RuntimeError: The task returned fewer examples than needed, or a prompt is too long.
        """
        prompts: dict[int, Prompt] = {}
        for _, together in groupby(enumerate(sorted(numbers)), key=lambda one: one[1] - one[0]):
            run = [number for _, number in together]  # consecutive numbers
            first, count = run[0], len(run)
            examples = self._source.prompts(count, first)
            if len(examples) != count:
                raise RuntimeError(f"{self._name}: prompts({count}, {first}) gives {len(examples)} of {count} examples")
            prompts |= {first + k: self._prompt(example) for k, example in enumerate(examples)}
        for prompt in prompts.values():
            if len(prompt.tokens) > self._most:
                raise RuntimeError(f"a prompt has {len(prompt.tokens)} tokens; max_prompt_tokens is {self._most}")
        return prompts

    def _prompt(self, example: TaskExample) -> Prompt:
        return Prompt(example, prompt_tokens(self._tokenizer, example))

    def _short_enough(self, examples: Sequence[TaskExample], file: str | None) -> list[Prompt]:
        """Return the prompts of a file's examples, without those that are too long."""
        prompts = [self._prompt(example) for example in examples]
        fitting = [prompt for prompt in prompts if len(prompt.tokens) <= self._most]
        if not fitting:
            raise InputError(f"{file}: all of the {len(prompts)} prompts have more tokens than max_prompt_tokens, {self._most}")
        if left_out := len(prompts) - len(fitting):
            print(f"{file}: {left_out} of {len(prompts)} prompts have more tokens than max_prompt_tokens, {self._most}: left out")
        return fitting


def rounds_of(spec: TaskJob) -> Rounds:
    """Return the rounds of a job. Without tail batching they wait for all responses."""
    eta = spec.rollout.eta if spec.rollout.policy == "tail-batching" else 1.0
    return Rounds(spec.algorithm.prompts_per_iteration, spec.algorithm.group_size, eta)


def is_controlled(spec: TaskJob) -> bool:
    """Return whether the job's rollout policy decides inside rollouts, response by response."""
    return spec.rollout.policy not in ("plain", "tail-batching")


class CountedResponse(NamedTuple):
    """A response that counts.

    Attributes:
        key: Number of its prompt, and which of the responses to it.
        response: The response.
        reward: Reward of the response, None while it is not known.
        seconds: Time from the beginning of its share to its end, in seconds.
        switches: Number of times that it was interrupted and continued.
    """

    key: Key
    response: Response
    reward: float | None
    seconds: float
    switches: int


@dataclass(frozen=True)
class EngineShare:
    """A share of a round, as it is sent to an engine.

    Attributes:
        place: Number of the share among the job's shares.
        round: Prompts and responses that the share launches, and how many of them it needs.
        finished: Finished responses, in the order in which they ended.
        begun: Unfinished responses, which continue.
        began_s: Time of its beginning, on the machine's clock since 1970, in seconds. None means now.
        switches: Number of times that it was interrupted.
        stream: Number of the random stream of its first response. None means that it follows from the number of the prompt.
    """

    place: int
    round: Round
    finished: tuple[CountedResponse, ...] = ()
    begun: tuple[tuple[Key, Response], ...] = ()
    began_s: float | None = None
    switches: int = 0
    stream: int | None = None


class RolloutCourse:
    """Course of a rollout in which nothing is decided: every engine has a share and keeps it.

    Args:
        round: Round of the rollout.
        size: Size of the engines in use, in GPUs.

    Attributes:
        size: Size of the engines in use, in GPUs.
        wake: Number of finished responses at which the course is asked for changes, None means never.
        resizes: Number of changes of the size.
        decides: Whether a rollout policy decides inside the rollout.
        races: Whether the rollout ends over all engines together, when the job says so.
    """

    wake: int | None = None
    decides = False
    races = False
    resizes = 0

    def __init__(self, round: Round, size: int) -> None:
        self._round, self.size = round, size

    def shares_by_engine(self, engines: int) -> list[tuple[EngineShare, ...]]:
        """Return the shares with which each of `engines` engines begins."""
        return [(EngineShare(k, share),) for k, share in enumerate(self._round.shares(engines))]

    def act(self, statuses: Iterable[ResponseStatus], now_s: float) -> dict[int, int]:
        """Return the new engines of shares that must move, as {place: engine}."""
        return {}

    def end(self, statuses: Iterable[ResponseStatus], now_s: float, preemptions: int = 0) -> None:
        """Observe the end of the rollout."""


class RacedRollout(RolloutCourse):
    """Course of a rollout on several engines that launches more than it needs. It ends on all of them together (see `winners`).

    The engines stop when enough responses have finished to possibly end it. If it is not over, they continue with the same shares.
    """

    races = True

    def __init__(self, round: Round, size: int) -> None:
        super().__init__(round, size)
        self.wake = round.wanted * round.needed

    def shares_by_engine(self, engines: int) -> list[tuple[EngineShare, ...]]:
        """Return the shares as in any course, except that no share ends before all of its prompts are complete."""
        return [
            tuple(replace(one, round=replace(one.round, wanted=len(one.round.prompts))) for one in own)
            for own in super().shares_by_engine(engines)
        ]

    def ends(self, done: int, standings: Mapping[int, Standing]) -> tuple[int, ...] | None:
        """Return the prompts with which the rollout ends.

        Args:
            done: Number of responses that have finished or were dropped.
            standings: Standing of each prompt, by number.

        Returns:
            Numbers of the prompts that count. None means that the rollout is not over; `wake` is then when to ask again.
        """
        first = winners(self._round, standings)
        step = max(1, len(self._round.prompts) * self._round.responses // _LOOKS)
        self.wake = None if first is not None else done + max(step, least_more(self._round, standings))
        return first


class RunningShare:
    """A share that runs on an engine.

    Args:
        share: The share.
        prompts: Prompts of the share, by number.
        rewarded: Function that begins to compute the reward of a response to an example.

    Attributes:
        place: Number of the share among the job's shares.
        prompts: Prompts of the share, by number.
        begun: Unfinished responses with tokens so far, by key.
    """

    def __init__(
        self, share: EngineShare, prompts: Mapping[int, Prompt], rewarded: Callable[[TaskExample, Response], Future[float]]
    ) -> None:
        self.place = share.place
        self.prompts, self._rewarded = prompts, rewarded
        self.begun = dict(share.begun)
        self._began_s = time() if share.began_s is None else share.began_s
        self._switches = share.switches
        self._race, self._stream = Race(share.round), share.stream
        self._finished: dict[Key, CountedResponse] = {}  # in the order in which they ended
        self._rewards: dict[Key, Future[float]] = {}
        self._running = dict.fromkeys((prompt, k) for prompt in share.round.prompts for k in range(share.round.responses))
        if self._race.is_over:  # the share has no prompts
            self._running.clear()
        for one in share.finished:
            self._count(one)

    @property
    def running(self) -> Sequence[Key]:
        """Responses that must still be sampled."""
        return list(self._running)

    @property
    def over(self) -> bool:
        """Whether nothing is left to sample."""
        return self._race.is_over

    def stream(self, key: Key) -> int:
        """Return the number of a response's random stream, which is the same on every engine."""
        return key[0] * self._race.round.responses + key[1] if self._stream is None else self._stream + key[1]

    def tokens_so_far(self) -> int:
        """Return the number of tokens of all its responses, finished or not."""
        ended = sum(len(one.response.token_ids) for one in self._finished.values())
        return ended + sum(len(response.token_ids) for key, response in self.begun.items() if key in self._running)

    def standings(self) -> dict[int, Standing]:
        """Return the standing of each of its prompts, by number."""
        finished: dict[int, list[int]] = {prompt: [] for prompt in self._race.round.prompts}
        running: dict[int, list[int]] = {prompt: [] for prompt in finished}
        for (prompt, _), one in self._finished.items():
            finished[prompt].append(len(one.response.token_ids))
        for key in self._running:
            running[key[0]].append(len(self.begun[key].token_ids) if key in self.begun else 0)
        return {prompt: Standing(tuple(finished[prompt]), tuple(running[prompt])) for prompt in finished}

    def end(self, complete: Collection[int]) -> None:
        """End the share. Only these prompts count."""
        self._race.end(complete)
        self._running.clear()
        self.begun.clear()

    @property
    def end_s(self) -> float | None:
        """Time from its beginning to its end, in seconds, None while it is not over."""
        return max((one.seconds for one in self._finished.values()), default=0.0) if self.over else None

    def finished(self, key: Key, response: Response) -> list[Key]:
        """Record that a response has finished, and return the responses to drop now."""
        if key not in self._running:  # the response was dropped in the same instant
            return []
        return self._count(CountedResponse(key, response, None, max(0.0, time() - self._began_s), self._switches))

    def _count(self, one: CountedResponse) -> list[Key]:
        """Record a finished response, with a reward that is known or still to compute. Returns the responses to drop now."""
        key, reward = one.key, Future[float]()
        if one.reward is None:
            reward = self._rewarded(self.prompts[key[0]].example, one.response)
        else:
            reward.set_result(one.reward)
        del self._running[key]
        self._finished[key], self._rewards[key] = one, reward
        dropped = self._race.finished(*key)
        for other in dropped:
            del self._running[other]
        return dropped

    def packed(self) -> EngineShare:
        """Return the share so that it can continue at another engine. Rewards that are not known yet are computed there.

        Raises:
            RuntimeError: A reward could not be computed.
        """
        known = {key: None if one.cancel() or not one.done() else one.result() for key, one in self._rewards.items()}
        finished = tuple(one._replace(reward=known[key]) for key, one in self._finished.items())
        begun = tuple((key, response) for key, response in self.begun.items() if key in self._running)
        return EngineShare(self.place, self._race.round, finished, begun, self._began_s, self._switches + 1, self._stream)

    def sampled(self) -> ShareSamples:
        """Wait for the rewards, and return the responses to train on, prompt by prompt.

        Raises:
            RuntimeError: A reward could not be computed.
        """
        keys = self._counted()
        for key in self._rewards.keys() - keys:
            self._rewards[key].cancel()  # it is not needed
        responses = tuple(self._finished[key].response for key in keys)
        rewards = tuple(self._rewards[key].result() for key in keys)
        return ShareSamples(self.place, tuple(self.prompts[prompt].tokens for prompt, _ in keys), responses, rewards)

    def lines(self, sampled: ShareSamples) -> list[ResponseLine]:
        """Return a line about each of the responses in `sampled`."""
        counted = [self._finished[key] for key in self._counted()]
        prompts = [(one.key[0], len(self.prompts[one.key[0]].tokens)) for one in counted]
        return [
            ResponseLine(self.place, *prompt, len(one.response.token_ids), one.seconds, one.switches, reward)
            for prompt, one, reward in zip(prompts, counted, sampled.rewards, strict=True)
        ]

    def _counted(self) -> list[Key]:
        """Return the keys of the responses to train on, prompt by prompt."""
        return [(prompt, k) for prompt in sorted(self._race.complete) for k in self._race.select_responses(prompt)]


def figures(engines: Sequence[Sequence[ResponseLine]], longest: int) -> dict[str, float]:
    """Return the figures of a rollout: means over its responses, and the fraction of prompts whose responses have equal rewards.

    Args:
        engines: Lines of the responses of each engine.
        longest: Length at which a response is cut off, in tokens.
    """
    lines = [line for own in engines for line in own]
    groups: dict[int, list[float]] = {}
    for line in lines:
        groups.setdefault(line.prompt, []).append(line.reward)

    def mean(of: Callable[[ResponseLine], float]) -> float:
        """Return a mean computed from the mean of each engine."""
        return sum(sum(map(of, own)) / len(own) * len(own) for own in engines if own) / len(lines)

    cut_off = [line.reward for line in lines if line.tokens == longest]
    means = {
        "reward": mean(lambda line: line.reward),
        "response_tokens": mean(lambda line: line.tokens),
        "cut_off": mean(lambda line: line.tokens == longest),
        "frac_reward_zero_std": sum(min(own) == max(own) for own in groups.values()) / len(groups),
    }
    return means | ({"cut_off_reward": sum(cut_off) / len(cut_off)} if cut_off else {})
