"""TRL's GRPO trainer makes the loss and the gradient of ours of the same batch, where its settings are ours."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from runtime.engines.pretrained import load_tokenizer
from runtime.jobs.grpo_spec import Algorithm, ModelSpec
from runtime.jobs.models import model_directory
from runtime.training.batch import TrainingBatch
from runtime.training.loss import LogProbs, grpo_sums, prepare_scoring, score_tokens
from runtime.training.trainer import Trainer
from tests.runtime.training.world import make_batch_of, state_of, weights_of

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # TRL has some of its own

RESPONSES, GROUP = 12, 3
SETTINGS = Algorithm(
    prompts_per_iteration=RESPONSES // GROUP,
    group_size=GROUP,
    minibatches=1,
    temperature=0.8,
    learning_rate=1e-3,
    kl=0.1,
    max_grad_norm=1e9,
    micro_batch_tokens=40,
)


@pytest.fixture(scope="module")
def model() -> Path:
    return model_directory(ModelSpec(hidden_size=64, layers=2), seed=0)


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """TRL's trainer with the settings of docs/reference/grpo.md."""
    trl: Any = import_module("trl")
    trainer = trl.GRPOTrainer(
        model=str(model),
        processing_class=load_tokenizer(model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=import_module("datasets").Dataset.from_list([{"prompt": "1"}] * RESPONSES),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            per_device_train_batch_size=RESPONSES,
            num_generations=GROUP,
            loss_type="dapo",
            epsilon=SETTINGS.clip,
            beta=SETTINGS.kl,
            use_bias_correction_kl=False,
            importance_sampling_level="token",
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=SETTINGS.importance_cap,
            temperature=SETTINGS.temperature,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
        ),
    )
    trainer.use_vllm = True  # what the sampler says corrects the loss; there is no vLLM
    trainer.current_gradient_accumulation_steps = 1
    yield trainer


def _apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    one, two = (torch.cat([tensors[name].flatten() for name in sorted(expected)]) for tensors in (found, expected))
    return float((one - two).norm() / two.norm())


def _of_trl(other: Any, batch: TrainingBatch, drift: float) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """Its loss, gradients, and the old log-probs that it was given: `drift` beside those of now."""
    first, end = batch.mask.int().argmax(1).tolist(), batch.lengths().tolist()
    prompts = [row[:start] for row, start in zip(batch.tokens, first, strict=True)]
    places = [slice(*pair) for pair in zip(first, end, strict=True)]
    completions = [row[place] for row, place in zip(batch.tokens, places, strict=True)]
    sampler = pad_sequence([row[place] for row, place in zip(batch.logprobs, places, strict=True)], True)
    inputs = {
        "prompt_ids": pad_sequence(prompts, True, padding_side="left"),
        "prompt_mask": pad_sequence([torch.ones_like(part) for part in prompts], True, padding_side="left"),
        "completion_ids": pad_sequence(completions, True),
        "completion_mask": pad_sequence([torch.ones_like(part) for part in completions], True),
        "advantages": batch.advantages,
        "num_items_in_batch": batch.mask.sum(),
    }
    ids, mask = (torch.cat([inputs[f"prompt_{what}"], inputs[f"completion_{what}"]], 1) for what in ("ids", "mask"))
    now, then = (
        other._get_per_token_logps_and_entropies(one, ids, mask, sampler.shape[1])[0].detach()  # noqa: SLF001 (how it scores)
        for one in (other.model, other.ref_model)
    )
    old = now + drift * torch.sin(torch.arange(now.numel())).view(now.shape)
    weight = ((old - sampler) * inputs["completion_mask"]).exp().clamp(max=other.vllm_importance_sampling_clip_max)
    inputs |= {"old_per_token_logps": old, "ref_per_token_logps": then, "importance_sampling_ratio": weight}
    other.model.train()
    other.model.zero_grad()
    loss = other.compute_loss(other.model, inputs)
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in other.model.named_parameters()}
    return float(loss.detach()), gradients, {"old": old, "reference": then}


def test_an_update_has_its_loss_and_gradient(model: Path, other: Any) -> None:
    trainer = Trainer(model, SETTINGS)
    try:
        trainer.update(make_batch_of(0))  # a model that has not moved has no KL term
        other.model.load_state_dict(weights_of(trainer), strict=True)
        before, batch = state_of(trainer)[0], make_batch_of(1)
        metrics, after = trainer.update(batch), state_of(trainer)[0]
    finally:
        trainer.close()
    loss, gradients, _ = _of_trl(other, batch, drift=0.0)
    beta, moment = 0.9, "exp_avg."  # Adam's first moment, by which the gradient is told
    names = [name.removeprefix(moment) for name in after if name.startswith(moment)]
    found = {name: (after[moment + name] - beta * before[moment + name]) / (1 - beta) for name in names}
    assert metrics["loss"] == pytest.approx(loss, abs=1e-4)
    assert metrics["kl"] > 1e-3 and 0 < metrics["capped_fraction"] < 1
    assert _apart(found, gradients) < 1e-4


def test_ratios_are_clipped_alike(model: Path, other: Any) -> None:
    from transformers import AutoModelForCausalLM

    start = load_file(model / "model.safetensors")
    moved = {name: tensor + 0.01 * torch.cos(torch.arange(tensor.numel())).view(tensor.shape) for name, tensor in start.items()}
    other.model.load_state_dict(moved, strict=True)
    batch = make_batch_of(2)
    loss, gradients, given = _of_trl(other, batch, drift=0.5)
    ours: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ours.load_state_dict(moved)
    prepare_scoring(ours)
    known = {name: torch.zeros_like(batch.logprobs) for name in given}
    for name, values in given.items():
        for k, row in enumerate(batch.mask):
            known[name][k, row] = values[k, : int(row.sum())]
    new = score_tokens(ours, batch.tokens, 1, SETTINGS.temperature)
    logprobs = LogProbs(new, known["old"][:, 1:], batch.logprobs[:, 1:], known["reference"][:, 1:])
    total, sums, _ = grpo_sums(
        logprobs,
        batch.advantages,
        batch.mask[:, 1:],
        clip=SETTINGS.clip,
        cap=SETTINGS.importance_cap,
        beta=SETTINGS.kl,
    )
    mean = total / batch.mask.sum()
    mean.backward()  # type: ignore[no-untyped-call]
    assert float(sums[1]) > 0  # some are clipped
    assert float(mean.detach()) == pytest.approx(loss, abs=1e-4)
    assert _apart({name: parameter.grad for name, parameter in ours.named_parameters()}, gradients) < 1e-4
