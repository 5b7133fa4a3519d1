"""A round as the job's engines work on it: prompts with their tokens, and a share for each engine, which may go to another one."""

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
from runtime.grpo.messages import Line, Sampled, Status
from runtime.grpo.rewards import Rewards
from runtime.jobs.jsonl import Lines, read_examples
from runtime.jobs.models import prompt_tokens
from runtime.jobs.spec import JobSpec
from runtime.jobs.tasks import BUILT_IN, Example, Task

_LOOKS = 64  # that a rollout which races is looked at, at most
Key = tuple[int, int]  # number of a prompt, and which of the responses to it


class Prompt(NamedTuple):
    """An example, and the tokens of its prompt."""

    example: Example
    tokens: tuple[int, ...]


class Prompts:
    """The prompts of a job. Lines of a file that are too long are left out, which the job's log says.

    Args:
        tokenizer: of transformers. rewards: where the examples of a class of the user's own are made.

    Attributes:
        held_out: those of the evaluation, the same whenever they are read.

    Raises:
        InputError: a file cannot be used, or all of its prompts are too long; one line.
    """

    def __init__(self, spec: JobSpec, tokenizer: Any, rewards: Rewards) -> None:
        assert spec.task is not None
        self._tokenizer, self._most, self._name = tokenizer, spec.algorithm.max_prompt_tokens, spec.task.name
        self._source: Task | Rewards = rewards
        if spec.task.name in BUILT_IN:
            self._source = BUILT_IN[spec.task.name](spec.seed)
        elif spec.task.name == "jsonl":
            lines = self._short_enough(read_examples(spec.task, spec.folder), spec.task.file)
            self._source = Lines([prompt.example for prompt in lines], spec.seed)
        self.held_out: tuple[Prompt, ...] = ()
        if spec.evaluation is not None:
            task = spec.task.model_copy(update={"file": spec.evaluation.file})
            lines = self._short_enough(read_examples(task, spec.folder), task.file)
            self.held_out = tuple(lines[: spec.evaluation.prompts])

    def numbered(self, numbers: Collection[int]) -> dict[int, Prompt]:
        """Prompts by their numbers.

        Raises:
            RuntimeError: the task gives not as many examples as asked for, or a prompt is too long.
        """
        prompts: dict[int, Prompt] = {}
        for _, together in groupby(enumerate(sorted(numbers)), key=lambda one: one[1] - one[0]):
            run = [number for _, number in together]  # one after the other
            first, count = run[0], len(run)
            examples = self._source.prompts(count, first)
            if len(examples) != count:
                raise RuntimeError(f"{self._name}: prompts({count}, {first}) gives {len(examples)} of {count} examples")
            prompts |= {first + k: self._prompt(example) for k, example in enumerate(examples)}
        for prompt in prompts.values():
            if len(prompt.tokens) > self._most:
                raise RuntimeError(f"a prompt has {len(prompt.tokens)} tokens; max_prompt_tokens is {self._most}")
        return prompts

    def _prompt(self, example: Example) -> Prompt:
        return Prompt(example, prompt_tokens(self._tokenizer, example))

    def _short_enough(self, examples: Sequence[Example], file: str | None) -> list[Prompt]:
        prompts = [self._prompt(example) for example in examples]
        fitting = [prompt for prompt in prompts if len(prompt.tokens) <= self._most]
        if not fitting:
            raise InputError(f"{file}: all of the {len(prompts)} prompts have more tokens than max_prompt_tokens, {self._most}")
        if left_out := len(prompts) - len(fitting):
            print(f"{file}: {left_out} of {len(prompts)} prompts have more tokens than max_prompt_tokens, {self._most}: left out")
        return fitting


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


class Course:
    """How a rollout goes in which nothing is decided: every engine has a share, and keeps it.

    Attributes:
        size: of the engines in use. wake: the number of finished responses at which it is asked what is to change; None: never.
        resizes: how often it has changed. decides: a rollout policy does. races: it is over when the job says so.
    """

    wake: int | None = None
    decides = False
    races = False
    resizes = 0

    def __init__(self, round: Round, size: int) -> None:
        self._round, self.size = round, size

    def dealt(self, engines: int) -> list[tuple[Share, ...]]:
        """What each of the engines begins with."""
        return [(Share(k, share),) for k, share in enumerate(self._round.shares(engines))]

    def act(self, statuses: Iterable[Status], now_s: float) -> dict[int, int]:
        """Where shares are to go on that are to go elsewhere: {place: engine}."""
        return {}

    def end(self, statuses: Iterable[Status], now_s: float, preemptions: int = 0) -> None:
        """The rollout is over."""


class RacedRollout(Course):
    """How a rollout goes that launches more than it needs, on several engines: it ends over all of them (`winners`).

    Engines stop when as many responses have finished as could end it, and go on where they are.
    """

    races = True

    def __init__(self, round: Round, size: int) -> None:
        super().__init__(round, size)
        self.wake = round.wanted * round.needed

    def dealt(self, engines: int) -> list[tuple[Share, ...]]:
        """As of any course; but no share ends before all of its prompts are complete."""
        return [
            tuple(replace(one, round=replace(one.round, wanted=len(one.round.prompts))) for one in own)
            for own in super().dealt(engines)
        ]

    def ends(self, done: int, standings: Mapping[int, Standing]) -> tuple[int, ...] | None:
        """The prompts with which it is over; None: it is not, and `wake` says when to ask again.

        Args:
            done: responses that have finished or were dropped. standings: of its prompts.
        """
        first = winners(self._round, standings)
        step = max(1, len(self._round.prompts) * self._round.responses // _LOOKS)
        self.wake = None if first is not None else done + max(step, least_more(self._round, standings))
        return first


class RunningShare:
    """A share on an engine.

    Args:
        prompts: by their numbers. rewarded: begins to compute the reward of a response to an example.
    """

    def __init__(self, share: Share, prompts: Mapping[int, Prompt], rewarded: Callable[[Example, Response], Future[float]]) -> None:
        self.place = share.place
        self.prompts, self._rewarded = prompts, rewarded
        self.begun = dict(share.begun)
        self._began_s = time() if share.began_s is None else share.began_s
        self._switches = share.switches
        self._race, self._stream = Race(share.round), share.stream
        self._finished: dict[Key, Finished] = {}  # in the order in which they came to their end
        self._rewards: dict[Key, Future[float]] = {}
        self._running = dict.fromkeys((prompt, k) for prompt in share.round.prompts for k in range(share.round.responses))
        if self._race.over:  # it was given no prompts
            self._running.clear()
        for one in share.finished:
            self._count(one)

    @property
    def running(self) -> Sequence[Key]:
        """Responses that are to be sampled on."""
        return list(self._running)

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        return self._race.over

    def stream(self, key: Key) -> int:
        """Number of a response's random stream: the same on every engine."""
        return key[0] * self._race.round.responses + key[1] if self._stream is None else self._stream + key[1]

    def tokens_so_far(self) -> int:
        """Of all its responses, those that have ended included."""
        ended = sum(len(one.response.token_ids) for one in self._finished.values())
        return ended + sum(len(response.token_ids) for key, response in self.begun.items() if key in self._running)

    def standings(self) -> dict[int, Standing]:
        """Of its prompts, by number."""
        finished: dict[int, list[int]] = {prompt: [] for prompt in self._race.round.prompts}
        running: dict[int, list[int]] = {prompt: [] for prompt in finished}
        for (prompt, _), one in self._finished.items():
            finished[prompt].append(len(one.response.token_ids))
        for key in self._running:
            running[key[0]].append(len(self.begun[key].token_ids) if key in self.begun else 0)
        return {prompt: Standing(tuple(finished[prompt]), tuple(running[prompt])) for prompt in finished}

    def end(self, complete: Collection[int]) -> None:
        """It is over with these prompts; nothing else of it counts."""
        self._race.end(complete)
        self._running.clear()
        self.begun.clear()

    @property
    def end_s(self) -> float | None:
        """Seconds from its beginning to its end; None: it is not over."""
        return max((one.seconds for one in self._finished.values()), default=0.0) if self.over else None

    def finished(self, key: Key, response: Response) -> list[Key]:
        """A response has come to its end; those that are to be dropped for it."""
        if key not in self._running:  # it was dropped in the same instant
            return []
        return self._count(Finished(key, response, None, max(0.0, time() - self._began_s), self._switches))

    def _count(self, one: Finished) -> list[Key]:
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

    def packed(self) -> Share:
        """To go on elsewhere; a reward that is not there yet is computed there.

        Raises:
            RuntimeError: a reward is none.
        """
        known = {key: None if one.cancel() or not one.done() else one.result() for key, one in self._rewards.items()}
        finished = tuple(one._replace(reward=known[key]) for key, one in self._finished.items())
        begun = tuple((key, response) for key, response in self.begun.items() if key in self._running)
        return Share(self.place, self._race.round, finished, begun, self._began_s, self._switches + 1, self._stream)

    def sampled(self) -> Sampled:
        """What is trained on, prompt by prompt, when all of it is rewarded.

        Raises:
            RuntimeError: a reward is none.
        """
        keys = self._counted()
        for key in self._rewards.keys() - keys:
            self._rewards[key].cancel()  # nobody waits for it
        responses = tuple(self._finished[key].response for key in keys)
        rewards = tuple(self._rewards[key].result() for key in keys)
        return Sampled(self.place, tuple(self.prompts[prompt].tokens for prompt, _ in keys), responses, rewards)

    def lines(self, sampled: Sampled) -> list[Line]:
        """What is said of what `sampled` has given."""
        counted = [self._finished[key] for key in self._counted()]
        prompts = [(one.key[0], len(self.prompts[one.key[0]].tokens)) for one in counted]
        return [
            Line(self.place, *prompt, len(one.response.token_ids), one.seconds, one.switches, reward)
            for prompt, one, reward in zip(prompts, counted, sampled.rewards, strict=True)
        ]

    def _counted(self) -> list[Key]:
        """Responses that are trained on, prompt by prompt."""
        return [(prompt, k) for prompt in sorted(self._race.complete) for k in self._race.counted(prompt)]


def figures(engines: Sequence[Sequence[Line]], longest: int) -> dict[str, float]:
    """Means over the responses of some engines, and the share of prompts whose responses earn the same.

    Args:
        longest: tokens at which a response is cut off.
    """
    lines = [line for own in engines for line in own]
    groups: dict[int, list[float]] = {}
    for line in lines:
        groups.setdefault(line.prompt, []).append(line.reward)

    def mean(of: Callable[[Line], float]) -> float:
        """From the mean of each engine, and so rounded as these are."""
        return sum(sum(map(of, own)) / len(own) * len(own) for own in engines if own) / len(lines)

    cut_off = [line.reward for line in lines if line.tokens == longest]
    means = {
        "reward": mean(lambda line: line.reward),
        "response_tokens": mean(lambda line: line.tokens),
        "cut_off": mean(lambda line: line.tokens == longest),
        "frac_reward_zero_std": sum(min(own) == max(own) for own in groups.values()) / len(groups),
    }
    return means | ({"cut_off_reward": sum(cut_off) / len(cut_off)} if cut_off else {})
