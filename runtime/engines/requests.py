"""What every engine checks and derives before it samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError
from runtime.engines.interface import COLDEST, HOTTEST, Response, Sampling


def initial_responses(
    prompts: Sequence[Sequence[int]], sampling: Sampling, resume: Sequence[Response], vocabulary: int, max_length: int
) -> list[Response | None]:
    """For each prompt the unfinished response that it goes on with, or None.

    Raises:
        InputError: see `Engine.generate`; or a token is outside of the vocabulary, or `resume` does not fit the prompts.
    """
    if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
        raise InputError(f"temperature: {sampling.temperature} is neither 0 nor from {COLDEST} to {HOTTEST:g}")
    if not 0 < sampling.top_p <= 1:
        raise InputError(f"top_p: {sampling.top_p} is not above 0 and at most 1")
    if sampling.max_tokens < 1:
        raise InputError(f"max_tokens: {sampling.max_tokens} is less than 1")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise InputError(f"prompt {index}: is empty")
        if len(prompt) + sampling.max_tokens > max_length:
            total = f"{len(prompt)} tokens and {sampling.max_tokens} of the response"
            raise InputError(f"prompt {index}: {total} exceed the longest context, {max_length}")
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise InputError(f"prompt {index}: a token is outside of the vocabulary of {vocabulary}")
    first: list[Response | None] = [None] * len(prompts)
    for response in resume:
        if not 0 <= response.prompt < len(prompts) or first[response.prompt] is not None:
            raise InputError(f"resume: prompt {response.prompt} is not there, or twice")
        if response.finished or len(response.token_ids) >= sampling.max_tokens:
            raise InputError(f"resume: the response to prompt {response.prompt} is finished")
        first[response.prompt] = response
    return first


def numbers(seed: int, stream: int, count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one for each token of a response; those of one response do not depend on the others."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, stream)))).random(count)


def request_seed(seed: int, stream: int, tokens: int) -> int:
    """A seed of 63 bits for a response that goes on behind `tokens` tokens."""
    return int(np.random.SeedSequence((seed, stream, tokens)).generate_state(1, np.uint64)[0] >> 1)
