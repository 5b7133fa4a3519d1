"""What samples responses from a language model, as the runtime sees it.

An engine lives in the process of one rollout worker for as long as its job does. Between phases it is offloaded: its state waits in
host memory and the device is free for the next job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from runtime.residency.footprint import Footprint

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

    def versions_behind(self, version: int) -> tuple[int, ...]:
        """`before` of a response that goes on behind this one with weights of a version."""
        return self.before if self.version == version else self.versions


class Progress(NamedTuple):
    """How far a call of `generate` is.

    Attributes:
        finished: responses that are done, or dropped. responses: all of them.
        tokens: sampled so far in this call, those of unfinished responses included.
    """

    finished: int
    responses: int
    tokens: int


class Engine(Protocol):
    """A loaded model that samples.

    Attributes:
        version: of the weights it holds; 0 for those it was made with.
        preemptions: how often a full KV cache has put a response back, to be read again later.
    """

    version: int
    preemptions: int

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
        ...

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights, under their Hugging Face names; a tied output matrix may be left out.

        Raises:
            InputError: a name is missing or unknown, or a shape differs; the old weights stay.
            RuntimeError: the engine is offloaded; hand them to `restore` instead.
        """
        ...

    def offload(self, drop: bool = False) -> Footprint:
        """Move state to host memory and give device memory back; again: no effect.

        Args:
            drop: do not keep the weights, since `restore` will be given all of them.
        """
        ...

    def stay(self) -> Footprint:
        """Stay on the device until the next phase; what is not needed for that is given back, where the engine can."""
        ...

    def restore(self, weights: Mapping[str, Tensor] | None = None, version: int | None = None) -> Footprint:
        """Come back to the device: weights, then `weights` staged meanwhile (as `update_weights`), then room for the KV cache.

        Raises:
            InputError: as `update_weights`; the engine stays offloaded.
            RuntimeError: its own weights were dropped, and none are given; or the device has no room for it.
        """
        ...

    def close(self) -> None:
        """Give everything back; the engine is of no use afterwards."""
        ...
