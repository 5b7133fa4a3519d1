"""Qwen2 of a few thousand random parameters, spread so that greedy choices are no near ties."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def small_qwen(seed: int, vocabulary: int, hidden: int, heads: int, tied: bool = False, positions: int = 64, **more: Any) -> Any:
    """The model of a seed: two layers, one key-value head for two heads; `more` goes into its config."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden // 2,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        pad_token_id=0,
        **{"initializer_range": 0.2, "eos_token_id": 0} | more,
    )
    return Qwen2ForCausalLM(config).eval()  # type: ignore[no-untyped-call]
