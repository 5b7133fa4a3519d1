"""Log-probs in chunks are those of a table of all logits, with the same gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from runtime.training import loss
from runtime.training.loss import chunked_logprobs, prepare_scoring, score_tokens, token_logprobs
from tests.runtime.qwen import small_qwen


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", 3 * 50)  # three positions of 50 words


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("positions", [0, 1, 3, 7, 12])
def test_chunks_are_the_whole(positions: int, bias: bool) -> None:
    torch.manual_seed(positions)
    layer = nn.Linear(16, 50, bias=bias).double()
    hidden = torch.randn(positions, 16, dtype=torch.float64, requires_grad=True)
    tokens, worth = torch.randint(50, (positions,)), torch.randn(positions)
    plain = token_logprobs(layer(hidden), tokens, 0.7)
    expected = torch.autograd.grad((plain * worth).sum(), (hidden, *layer.parameters()))
    chunked = chunked_logprobs(hidden, layer, tokens, 0.7)
    found = torch.autograd.grad((chunked * worth).sum(), (hidden, *layer.parameters()))
    torch.testing.assert_close(chunked, plain, rtol=0, atol=1e-6)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_in_bf16_many_chunks_lose_no_more_than_one() -> None:
    torch.manual_seed(0)
    layer, hidden, tokens = nn.Linear(16, 50, bias=False), torch.randn(600, 16), torch.randint(50, (600,))
    (exact,) = torch.autograd.grad(token_logprobs(layer(hidden), tokens, 1.0).sum(), [*layer.parameters()])
    half = copy.deepcopy(layer).bfloat16()
    chunked = chunked_logprobs(hidden.bfloat16(), half, tokens, 1.0)
    assert chunked.dtype == torch.float32
    (rounded,) = torch.autograd.grad(chunked.sum(), [*half.parameters()])
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.float() - exact).norm() / exact.norm()) < 2**-7  # a number of bf16 has eight bits


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_scores_as_its_logits_say(tied: bool) -> None:
    model = small_qwen(0, 50, 32, 2, tied)
    plain, tokens = copy.deepcopy(model), torch.randint(50, (3, 9))
    prepare_scoring(model)
    torch.testing.assert_close(model(input_ids=tokens).logits, plain(input_ids=tokens).logits)  # asked for logits, it gives them
    found, expected = score_tokens(model, tokens, 4, 0.5), score_tokens(plain, tokens, 4, 0.5)
    assert found.shape == (3, 5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    found.sum().backward()  # type: ignore[no-untyped-call]
    expected.sum().backward()  # type: ignore[no-untyped-call]
    one, other = (torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]) for m in (model, plain))
    assert float((one - other).norm() / other.norm()) < 1e-5


def test_a_model_that_does_something_to_its_logits_keeps_them() -> None:
    model = small_qwen(0, 50, 32, 2, False)
    model.config.final_logit_softcapping = 30.0
    prepare_scoring(model)
    assert "forward" not in vars(model.get_output_embeddings())


def test_a_model_that_scales_its_logits_scores_as_they_say() -> None:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "mamba_d_ssm": 32, "mamba_n_heads": 2, "mamba_d_head": 16}
    torch.manual_seed(0)
    model = FalconH1ForCausalLM(FalconH1Config(lm_head_multiplier=0.25, **sizes))  # type: ignore[no-untyped-call]
    plain, tokens = copy.deepcopy(model), torch.randint(50, (2, 9))
    prepare_scoring(model)
    torch.testing.assert_close(score_tokens(model, tokens, 4, 1.0), score_tokens(plain, tokens, 4, 1.0), rtol=0, atol=1e-5)


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused() -> None:
    model = small_qwen(0, 50, 32, 2, False)
    prepare_scoring(model)

    def halve(module: nn.Module, arguments: object, output: Any) -> Any:
        output.logits = output.logits / 2
        return output

    model.register_forward_hook(halve)
    with pytest.raises(RuntimeError, match=r"^qwen2: changes its logits after the output layer in a way that is not supported$"):
        score_tokens(model, torch.randint(50, (3, 9)), 4, 0.5)
