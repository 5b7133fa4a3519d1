"""A language model of 0.3 million random parameters, spread so that greedy choices are no near ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.runtime.qwen import small_qwen

END = 1
VOCABULARY = 96


def tiny(seed: int, tied: bool = False) -> Any:
    """The model of this seed."""
    return small_qwen(seed, VOCABULARY, 128, 4, tied, positions=128, eos_token_id=END)


def saved(folder: Path, seed: int, tied: bool = False) -> Path:
    """Its Hugging Face directory."""
    tiny(seed, tied).save_pretrained(folder)
    return folder


@torch.no_grad()
def greedy(model: Any, prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """The plain definition: no cache, no batch. Stops behind the end token; (token ids, log-probs)."""
    ids, logprobs = list(prompt), []
    for _ in range(tokens):
        scores = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(scores.argmax()))
        logprobs.append(float(scores.max()))
        if ids[-1] == END:
            break
    return ids[len(prompt) :], logprobs


@torch.no_grad()
def scores(model: Any, prompt: list[int], response: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Log-probs of all tokens at each place of a response: (tokens, vocabulary)."""
    logits: torch.Tensor = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)
