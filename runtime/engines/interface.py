"""The interface of engines, which sample responses from a language model.

An engine lives in the process of one rollout worker as long as its job does. Between phases it is offloaded: its state waits in
host memory, and the device is free for the next job.
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
"""Range of temperatures in which all engines sample alike. vLLM refuses higher ones and raises lower ones to the lowest."""


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling.

    Attributes:
        temperature: 0 for greedy sampling, otherwise from `COLDEST` to `HOTTEST`.
        top_p: Probability of the smallest set of tokens to sample from, 1 for all tokens.
        max_tokens: Largest number of tokens of a response, including those of `resume`.
        seed: Seed of the responses. The same seed, streams, prompts and weights give the same responses from the same engine.
        ignore_end: Whether to continue after an end token, so that every response has max_tokens tokens: the worst case.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 16
    seed: int = 0
    ignore_end: bool = False


@dataclass(frozen=True)
class Response:
    """A response that an engine sampled.

    Attributes:
        prompt: Index of its prompt.
        token_ids: Tokens of the response, including the end token if there is one.
        logprobs: Natural log-prob of each token under the distribution that it was sampled from, with temperature and top_p. For
            greedy tokens, under the model's distribution at temperature 1.
        finished: Whether it has ended. False if generation was stopped before.
        version: Version of the weights that sampled it, or that sampled its last part if it was resumed.
        before: If it was resumed with newer weights, the version that sampled each token of its earlier part.
    """

    prompt: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
    version: int
    before: tuple[int, ...] = ()

    @property
    def versions(self) -> tuple[int, ...]:
        """Version of the weights that sampled each token."""
        return self.before + (self.version,) * (len(self.token_ids) - len(self.before))


class SamplingProgress(NamedTuple):
    """Progress of a call of `generate`.

    Attributes:
        finished: Number of responses that are finished or dropped.
        responses: Number of all responses.
        tokens: Number of tokens sampled so far in this call, including those of unfinished responses.
    """

    finished: int
    responses: int
    tokens: int


class SamplingBatch(ABC):
    """Responses that an engine samples together, one in each row.

    Args:
        earlier: Unfinished response that each row continues, or None.
        version: Version of the weights.
    """

    def __init__(self, earlier: Sequence[Response | None], version: int) -> None:
        self._earlier, self._version = earlier, version

    @property
    @abstractmethod
    def running(self) -> int:
        """Number of rows that have neither ended nor been dropped."""

    @abstractmethod
    def step(self) -> tuple[list[Response], int]:
        """Sample a little. Return the responses that ended, and the number of sampled tokens."""

    @abstractmethod
    def drop(self, rows: Collection[int]) -> None:
        """Stop sampling rows. Rows that have already ended are not affected."""

    @abstractmethod
    def sampled(self, row: int) -> tuple[Sequence[int], Sequence[float], bool]:
        """Return tokens and log-probs of a row without the part that it continues, and whether it has ended."""

    def response(self, row: int) -> Response:
        """Return the response of a row so far, including the part that it continues."""
        (tokens, logprobs, finished), old = self.sampled(row), self._earlier[row]
        if old is None:
            return Response(row, tuple(tokens), tuple(logprobs), finished, self._version)
        before = old.before if old.version == self._version else old.versions
        return Response(row, (*old.token_ids, *tokens), (*old.logprobs, *logprobs), finished, self._version, before)


class Engine(ABC):
    """A loaded model that samples.

    Args:
        model_dir: Hugging Face directory of the model.
        max_length: Largest number of tokens of a prompt and its response together.

    Attributes:
        version: Version of the weights that it holds, 0 for the initial ones.
        preemptions: Number of times that a full KV cache has interrupted a response, to be prefilled again later.

    Raises:
        InputError: The directory cannot be used.
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
        progress: Callable[[SamplingProgress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        resume: Sequence[Response] = (),
        streams: Sequence[int] | None = None,
        ended: Callable[[Sequence[Response]], Collection[int]] | None = None,
    ) -> list[Response]:
        """Sample one response to each prompt, in the order of the prompts. Repeat a prompt for a group of responses.

        Args:
            prompts: Token ids of each prompt, at least one.
            sampling: Settings of sampling.
            progress: Function that is called after each step, or None.
            stop: Function that is called after each step, or None. Once it returns True, generation ends, and the other responses
                are returned unfinished.
            resume: Unfinished responses of an earlier call, at most one for each prompt (by `prompt`). Each is continued after its
                tokens, and the returned response contains all of them.
            streams: Number of each prompt's random stream, or None for its index.
            ended: Function that is called with the responses that ended in a step, or None. It returns indices of prompts whose
                responses are dropped; these are returned unfinished.

        Raises:
            InputError: A setting of the sampling is out of its range, a prompt is empty or exceeds the engine's max_length with its
                longest response, a token is unknown, or `resume` does not match.
            RuntimeError: The engine is offloaded.
        """
        self._require_awake()
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
                    progress(SamplingProgress(len(prompts) - batch.running, len(prompts), sampled))
                if batch.running and stop is not None and stop():
                    break
            return [batch.response(row) for row in range(len(prompts))]

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load new weights.

        Args:
            weights: The weights under their Hugging Face names. A tied output matrix may be left out.
            version: Version of the weights.

        Raises:
            InputError: A name is missing or unknown, or a shape differs. The old weights stay.
            RuntimeError: The engine is offloaded. The weights then have to be passed to `restore`.
        """
        self._require_awake()
        self._load(self._checked(weights))
        self.version = version

    @property
    @abstractmethod
    def kv_tokens(self) -> int:
        """Number of tokens for which the KV cache has room while the engine is awake, at least one longest response."""

    @abstractmethod
    def offload(self, drop: bool = False) -> Footprint:
        """Move the state to host memory, and release device memory. Has no effect if the engine is offloaded.

        Args:
            drop: Whether to discard the weights, because `restore` will get new ones.
        """

    @abstractmethod
    def stay(self) -> Footprint:
        """Keep the state on the device until the next phase, and release what that does not need, if the engine can."""

    def restore(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> Footprint:
        """Move the state back to the device: first the weights, then newer weights, then the KV cache.

        Args:
            weights: New weights as for `update_weights`, or None.
            version: Version of the new weights.

        Raises:
            InputError: The weights do not match, as for `update_weights`. The engine stays offloaded.
            RuntimeError: The engine's weights were discarded and none are given, or the device has too little free memory.
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
        """Release everything. The engine cannot be used afterwards."""

    @property
    @abstractmethod
    def _is_awake(self) -> bool: ...

    @property
    @abstractmethod
    def _dropped(self) -> bool:
        """Whether it is offloaded and has discarded its weights."""

    @abstractmethod
    def _batch(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, earlier: Sequence[Response | None], streams: Sequence[int]
    ) -> AbstractContextManager[SamplingBatch]:
        """Start responses to prompts, each from its beginning or after an earlier part. At the end of the context none runs."""

    @abstractmethod
    def _load(self, weights: dict[str, Tensor]) -> None:
        """Load weights that have been checked."""

    @abstractmethod
    def _come_back(self, weights: dict[str, Tensor] | None) -> Footprint:
        """Return to the device as `restore` does, with weights that have been checked."""

    def _checked(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Check weights as `ModelFiles.checked` does. Staged weights keep their path."""
        own = self._files.checked(weights)
        return StagedWeights(own, weights.path) if isinstance(weights, StagedWeights) else own

    def _require_awake(self) -> None:
        if not self._is_awake:
            raise RuntimeError("the engine is offloaded or closed")


def check_sampling(sampling: Sampling) -> None:
    """Check that the settings are in their ranges. Raises InputError otherwise."""
    if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
        raise InputError(f"temperature: {sampling.temperature} is neither 0 nor from {COLDEST} to {HOTTEST:g}")
    if not 0 < sampling.top_p <= 1:
        raise InputError(f"top_p: {sampling.top_p} is not above 0 and at most 1")
    if sampling.max_tokens < 1:
        raise InputError(f"max_tokens: {sampling.max_tokens} is less than 1")


def check_prompts(prompts: Sequence[Sequence[int]], sampling: Sampling, vocabulary: int, max_length: int) -> None:
    """Check that prompts are neither empty nor too long, and that all tokens are known. Raises InputError otherwise."""
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise InputError(f"prompt {index}: is empty")
        if len(prompt) + sampling.max_tokens > max_length:
            total = f"{len(prompt)} tokens and {sampling.max_tokens} of the response"
            raise InputError(f"prompt {index}: {total} exceed the longest context, {max_length}")
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise InputError(f"prompt {index}: a token is outside of the vocabulary of {vocabulary}")


def resumed(prompts: Sequence[Sequence[int]], sampling: Sampling, resume: Sequence[Response]) -> list[Response | None]:
    """Return for each prompt the unfinished response that it continues, or None.

    Raises:
        InputError: A response is finished, its prompt does not exist, or there are two for one prompt.
    """
    first: list[Response | None] = [None] * len(prompts)
    for response in resume:
        if not 0 <= response.prompt < len(prompts) or first[response.prompt] is not None:
            raise InputError(f"resume: prompt {response.prompt} is not there, or twice")
        if response.finished or len(response.token_ids) >= sampling.max_tokens:
            raise InputError(f"resume: the response to prompt {response.prompt} is finished")
        first[response.prompt] = response
    return first
