"""What samples responses from a language model, as the runtime sees it.

An engine lives in the process of one rollout worker for as long as its job does. Between phases it is offloaded: its state waits in
host memory and the device is free for the next job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rollmux_segment import Footprint

from rollmux_env.errors import InputError
from runtime.engines.model_files import read_model_files
from runtime.residency.layout import StagedWeights

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["auto", "vllm", "torch"]
COLDEST, HOTTEST = 0.01, 2.0
"""Temperatures between which every engine samples as it is told: vLLM refuses higher ones, and takes the lowest for lower ones."""


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    Attributes:
        temperature: 0 is greedy, else from `COLDEST` to `HOTTEST`.
        top_p: the smallest set of tokens of this probability or more is sampled from; 1 is all of them.
        max_tokens: tokens of a response, those of `resume` included.
        seed: the same seed, streams, prompts and weights give the same responses from the same engine.
        ignore_end: the end token does not end a response, so that every response runs to max_tokens: the worst case.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16
    seed: int = 0
    ignore_end: bool = False


@dataclass(frozen=True)
class Response:
    """What an engine sampled for a prompt.

    Attributes:
        prompt: index into the prompts that were given.
        token_ids: the end token included, where the response ended with one.
        logprobs: of each token, natural, under the distribution that it was sampled from (temperature and top_p applied); of greedy
            tokens under the model's own distribution (temperature 1).
        finished: False where generation was stopped before the response ended.
        version: of the weights that sampled it; where it was resumed, of those that sampled its last part.
        before: versions that sampled its first tokens, one a token, where it was resumed with newer weights.
    """

    prompt: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
    version: int
    before: tuple[int, ...] = ()

    @property
    def versions(self) -> tuple[int, ...]:
        """Of the weights that sampled each token."""
        return self.before + (self.version,) * (len(self.token_ids) - len(self.before))


class Progress(NamedTuple):
    """How far a call of `generate` is.

    Attributes:
        finished: responses that are done, or dropped. responses: all of them.
        tokens: sampled so far in this call, those of unfinished responses included.
    """

    finished: int
    responses: int
    tokens: int


class Batch(ABC):
    """Responses that an engine samples together, a row each.

    Args:
        earlier: what each row goes on behind. version: of the weights.
    """

    def __init__(self, earlier: Sequence[Response | None], version: int) -> None:
        self._earlier, self._version = earlier, version

    @property
    @abstractmethod
    def running(self) -> int:
        """Rows that are neither over nor dropped."""

    @abstractmethod
    def step(self) -> tuple[list[Response], int]:
        """Go on a little: the responses that ended with it, and how many tokens were sampled."""

    @abstractmethod
    def drop(self, rows: Collection[int]) -> None:
        """These go on no more; those that are over already stay so."""

    @abstractmethod
    def sampled(self, row: int) -> tuple[Sequence[int], Sequence[float], bool]:
        """Tokens and log-probs of a row, without what it goes on behind, and whether it has come to its end."""

    def response(self, row: int) -> Response:
        """A row as far as it is, with what it went on behind."""
        (tokens, logprobs, finished), old = self.sampled(row), self._earlier[row]
        if old is None:
            return Response(row, tuple(tokens), tuple(logprobs), finished, self._version)
        before = old.before if old.version == self._version else old.versions
        return Response(row, (*old.token_ids, *tokens), (*old.logprobs, *logprobs), finished, self._version, before)


class Engine(ABC):
    """A loaded model that samples.

    Args:
        model_dir: a Hugging Face directory.
        max_length: tokens of a prompt and its response together, at most.

    Attributes:
        version: of the weights it holds; 0 for those it was made with.
        preemptions: how often a full KV cache has put a response back, to be read again later.

    Raises:
        InputError: the directory cannot be used.
    """

    def __init__(self, model_dir: Path, max_length: int) -> None:
        self.version = 0
        self.preemptions = 0
        self._files = read_model_files(model_dir)
        self._max_length = max_length

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        resume: Sequence[Response] = (),
        streams: Sequence[int] | None = None,
        ended: Callable[[Sequence[Response]], Collection[int]] | None = None,
    ) -> list[Response]:
        """Sample one response a prompt, in the order of the prompts; repeat a prompt for a group of responses.

        Args:
            prompts: token ids, one or more each.
            progress: called after each step.
            stop: asked after each step; once True, generation ends and what is unfinished is returned so.
            resume: unfinished responses of an earlier call, at most one a prompt (by `prompt`); each goes on behind its tokens,
                and the response returned holds all of them.
            streams: number of each prompt's random stream; by default its index.
            ended: called with the responses that ended in a step, if any did; those to the prompts that it answers with (indices)
                are dropped: they come back unfinished.

        Raises:
            InputError: a setting of the sampling is out of its range, a prompt is empty or exceeds the engine's max_length with its
                longest response, a token is unknown, or `resume` does not fit; one line.
            RuntimeError: the engine is offloaded.
        """
        self._must_be_awake()
        check_sampling(sampling)
        check_prompts(prompts, sampling, self._files.vocabulary, self._max_length)
        earlier = resumed(prompts, sampling, resume)
        if not prompts:
            return []
        sampled = 0
        with self._batch(prompts, sampling, earlier, streams or range(len(prompts))) as batch:
            while batch.running:
                now, tokens = batch.step()
                sampled += tokens
                if ended is not None and now:
                    batch.drop(ended(now))
                if progress is not None:
                    progress(Progress(len(prompts) - batch.running, len(prompts), sampled))
                if batch.running and stop is not None and stop():
                    break
            return [batch.response(row) for row in range(len(prompts))]

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights, under their Hugging Face names; a tied output matrix may be left out.

        Raises:
            InputError: a name is missing or unknown, or a shape differs; the old weights stay.
            RuntimeError: the engine is offloaded; hand them to `restore` instead.
        """
        self._must_be_awake()
        self._load(self._checked(weights))
        self.version = version

    @abstractmethod
    def offload(self, drop: bool = False) -> Footprint:
        """Move state to host memory and give device memory back; again: no effect.

        Args:
            drop: do not keep the weights, since `restore` will be given all of them.
        """

    @abstractmethod
    def stay(self) -> Footprint:
        """Stay on the device until the next phase; what is not needed for that is given back, where the engine can."""

    def restore(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> Footprint:
        """Come back to the device: weights, then `weights` staged meanwhile (as `update_weights`), then room for the KV cache.

        Raises:
            InputError: as `update_weights`; the engine stays offloaded.
            RuntimeError: its own weights were dropped, and none are given; or the device has no room for it.
        """
        new = self._checked(weights) if weights is not None else None
        if new is None and self._dropped:
            raise RuntimeError("the engine kept no weights when it was offloaded, and no others are given")
        footprint = self._come_back(new)
        if new is not None and version is not None:
            self.version = version
        return footprint

    @abstractmethod
    def close(self) -> None:
        """Give everything back; the engine is of no use afterwards."""

    @property
    @abstractmethod
    def _is_awake(self) -> bool: ...

    @property
    @abstractmethod
    def _dropped(self) -> bool:
        """It is offloaded, and has kept no weights."""

    @abstractmethod
    def _batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, earlier: Sequence[Response | None], streams: Sequence[int]
    ) -> AbstractContextManager[Batch]:
        """Begin with responses to prompts, each behind an earlier one or from its beginning; when it is left, nothing runs."""

    @abstractmethod
    def _load(self, weights: dict[str, Tensor]) -> None:
        """Take weights that have been checked."""

    @abstractmethod
    def _come_back(self, weights: dict[str, Tensor] | None) -> Footprint:
        """As `restore`, with weights that have been checked."""

    def _checked(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the model, as `ModelFiles.checked` has them; staged ones still say where they are."""
        own = self._files.checked(weights)
        return StagedWeights(own, weights.path) if isinstance(weights, StagedWeights) else own

    def _must_be_awake(self) -> None:
        if not self._is_awake:
            raise RuntimeError("the engine is offloaded or closed")


def check_sampling(sampling: Sampling) -> None:
    """Refuse settings that are out of their ranges; raises InputError, one line."""
    if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
        raise InputError(f"temperature: {sampling.temperature} is neither 0 nor from {COLDEST} to {HOTTEST:g}")
    if not 0 < sampling.top_p <= 1:
        raise InputError(f"top_p: {sampling.top_p} is not above 0 and at most 1")
    if sampling.max_tokens < 1:
        raise InputError(f"max_tokens: {sampling.max_tokens} is less than 1")


def check_prompts(prompts: Sequence[Sequence[int]], sampling: Sampling, vocabulary: int, max_length: int) -> None:
    """Refuse prompts that are empty or too long, and unknown tokens; raises InputError, one line."""
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise InputError(f"prompt {index}: is empty")
        if len(prompt) + sampling.max_tokens > max_length:
            total = f"{len(prompt)} tokens and {sampling.max_tokens} of the response"
            raise InputError(f"prompt {index}: {total} exceed the longest context, {max_length}")
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise InputError(f"prompt {index}: a token is outside of the vocabulary of {vocabulary}")


def resumed(prompts: Sequence[Sequence[int]], sampling: Sampling, resume: Sequence[Response]) -> list[Response | None]:
    """For each prompt the unfinished response that it goes on with, or None.

    Raises:
        InputError: one is finished, or of no prompt, or of the same as another; one line.
    """
    first: list[Response | None] = [None] * len(prompts)
    for response in resume:
        if not 0 <= response.prompt < len(prompts) or first[response.prompt] is not None:
            raise InputError(f"resume: prompt {response.prompt} is not there, or twice")
        if response.finished or len(response.token_ids) >= sampling.max_tokens:
            raise InputError(f"resume: the response to prompt {response.prompt} is finished")
        first[response.prompt] = response
    return first
