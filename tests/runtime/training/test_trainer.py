"""One rank: an update is the definition's, a state goes on to the bit, and bad numbers stop a job before they reach its weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save

from rollmux_env.errors import InputError
from runtime.jobs.grpo_spec import Algorithm
from runtime.training import group, loss
from runtime.training.batch import TrainingBatch, TrainingError
from runtime.training.loss import LogProbs, grpo_sums, token_logprobs
from runtime.training.trainer import Trainer
from tests.runtime.training import plain
from tests.runtime.training.world import SETTINGS, WORDS, apart, make_batch_of, make_model, state_of, weights_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    """Closed after the test."""
    made: list[Trainer] = []
    yield made
    for trainer in made:
        trainer.close()


def _trainer(trainers: list[Trainer], model: Path, settings: Algorithm = SETTINGS) -> Trainer:
    trainers.append(Trainer(model, settings))
    return trainers[-1]


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _logprobs(model: torch.nn.Module, batch: TrainingBatch, temperature: float) -> list[list[torch.Tensor]]:
    """Of response tokens, one response at a time, without padding."""
    found = []
    for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
        end = int(mask.nonzero()[-1]) + 1
        scores = (model(tokens[None, :end]).logits[0, :-1] / temperature).log_softmax(-1)
        found.append([scores[t - 1, tokens[t]] for t in range(1, end) if mask[t]])
    return found


def _plain_update(directory: Path, settings: Algorithm, batch: TrainingBatch) -> tuple[list[float], dict[str, torch.Tensor]]:
    """An update by the definition: loops, transformers' own model, torch's AdamW. Losses of the minibatches, and the weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate or 0.0, weight_decay=settings.weight_decay)
    with torch.no_grad():
        old = [[float(x) for x in row] for row in _logprobs(model, batch, settings.temperature)]
    sampler = [row[chosen].tolist() for row, chosen in zip(batch.logprobs, batch.mask, strict=True)]
    losses, size = [], len(old) // settings.minibatches
    for first in range(0, len(old), size):
        rows = slice(first, first + size)
        new = _logprobs(model, batch.rows(torch.arange(first, first + size)), settings.temperature)
        tokens = sum(map(len, new))
        terms = []
        for i, row in enumerate(new, start=first):
            advantage = batch.advantages[i]
            for t, p in enumerate(row):
                ratio, weight = (p - old[i][t]).exp(), min((torch.tensor(old[i][t] - sampler[i][t])).exp().item(), 2.0)
                cut = ratio.clamp(1 - settings.clip, 1 + settings.clip)
                apart = (old[i][t] - p).exp()  # the reference is the model before its first update
                terms.append(-weight * torch.minimum(ratio * advantage, cut * advantage) + settings.kl * (apart - apart.log() - 1))
        loss = torch.stack(terms).sum() / tokens
        numbers = [[float(p.detach()) for p in row] for row in new]
        known = plain.loss(
            numbers,
            old[rows],
            sampler[rows],
            old[rows],
            batch.advantages[rows].tolist(),
            clip=settings.clip,
            cap=2.0,
            beta=settings.kl,
        )
        assert float(loss.detach()) == pytest.approx(known, rel=1e-4, abs=1e-6)
        losses.append(known * tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("change", [{}, {"kl": 0.3}, {"temperature": 0.6, "clip": 0.01}, {"minibatches": 1}, {"minibatches": 4}])
def test_an_update_is_that_of_the_definition(model: Path, trainers: list[Trainer], change: dict[str, float]) -> None:
    settings = SETTINGS.model_copy(update=change)
    batch = make_batch_of(1)
    losses, expected = _plain_update(model, settings, batch)
    trainer = _trainer(trainers, model, settings)
    metrics = trainer.update(batch)
    assert metrics["tokens"] == int(batch.mask.sum())
    assert metrics["loss"] == pytest.approx(sum(losses) / metrics["tokens"], rel=1e-4, abs=1e-6)
    assert apart(weights_of(trainer), expected, load_file(model / "model.safetensors")) < 1e-3
    assert (metrics["clip_fraction"] > 0) == (settings.minibatches > 1)
    assert (metrics.get("kl", 0) > 0) == ("kl" in change)


def _trained_plainly(directory: Path, settings: Algorithm, batches: list[TrainingBatch]) -> dict[str, torch.Tensor]:
    """Weights after updates with tables of all logits, activations that are kept, and one pass a step."""
    from transformers import AutoModelForCausalLM

    load = partial(AutoModelForCausalLM.from_pretrained, directory, dtype=torch.float32)
    policy, reference = load(), load()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate or 0.0, weight_decay=settings.weight_decay)

    def scores(model: torch.nn.Module, batch: TrainingBatch) -> torch.Tensor:
        return token_logprobs(model(batch.tokens).logits[:, :-1], batch.tokens[:, 1:], settings.temperature)

    for batch in batches:
        with torch.no_grad():
            old, known = scores(policy, batch), scores(reference, batch)
        for rows in torch.arange(len(batch.tokens)).tensor_split(settings.minibatches):
            logprobs = LogProbs(scores(policy, batch)[rows], old[rows], batch.logprobs[rows, 1:], known[rows])
            limits = {"clip": settings.clip, "cap": settings.importance_cap, "beta": settings.kl}
            total, *_ = grpo_sums(logprobs, batch.advantages[rows], batch.mask[rows, 1:], **limits)
            (total / batch.mask[rows].sum()).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
    return {name: p.detach() for name, p in policy.named_parameters()}


def test_what_saves_memory_changes_nothing_in_twenty_updates(
    model: Path, trainers: list[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", 3 * WORDS)  # three positions
    monkeypatch.setattr(group, "LARGE", 0)  # activations are recomputed
    settings = SETTINGS.model_copy(update={"learning_rate": 1e-3, "kl": 0.1})
    batches = [make_batch_of(seed) for seed in range(20)]
    trainer = _trainer(trainers, model, settings)
    for batch in batches:
        trainer.update(batch)
    assert apart(weights_of(trainer), _trained_plainly(model, settings, batches), load_file(model / "model.safetensors")) < 1e-3


def test_the_gap_to_the_sampler_is_measured(model: Path, trainers: list[Trainer]) -> None:
    from transformers import AutoModelForCausalLM

    batch = make_batch_of(2)
    with torch.no_grad():
        exact = _logprobs(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), batch, 1.0)  # type: ignore[no-untyped-call]
    batch.logprobs[batch.mask] = torch.tensor([float(x) for row in exact for x in row])
    trainer = _trainer(trainers, model)
    same = trainer.update(batch)
    assert same["logprob_gap_max"] < 1e-4 and same["capped_fraction"] == 0
    assert same["entropy"] == pytest.approx(-float(batch.logprobs[batch.mask].mean()), rel=1e-4)
    other = _trainer(trainers, model)
    batch.logprobs[batch.mask] -= 1.0
    apart = other.update(batch)
    assert apart["logprob_gap"] == pytest.approx(1.0, abs=1e-3) and apart["capped_fraction"] == 1  # e is above the cap of 2


def test_accumulated_passes_are_one_pass(model: Path, trainers: list[Trainer]) -> None:
    found = []
    for most_tokens in (1, 4096):
        trainer = _trainer(trainers, model, SETTINGS.model_copy(update={"micro_batch_tokens": most_tokens, "minibatches": 1}))
        found.append((trainer.update(make_batch_of(3)), state_of(trainer)[0]))
    (one, first), (all_, second) = found
    assert one == pytest.approx(all_, rel=1e-4)
    for name, gradient in first.items():
        if name.startswith("exp_avg."):  # a tenth of the gradient after one step
            assert torch.allclose(gradient, second[name], atol=1e-6), name


def test_a_state_goes_on_to_the_bit(model: Path, trainers: list[Trainer]) -> None:
    first = _trainer(trainers, model)
    for seed in (1, 2):
        first.update(make_batch_of(seed))
    tensors, info = state_of(first)
    file, text = save(tensors), json.dumps(info)
    expected = first.update(make_batch_of(3))
    second = _trainer(trainers, model)
    second.update(make_batch_of(9))  # what it did before is forgotten
    second.load_state(load(file), json.loads(text))
    assert second.updates == 2 and _same(state_of(second)[0], tensors)
    assert second.update(make_batch_of(3)) == expected
    assert _same(state_of(second)[0], state_of(first)[0]) and state_of(second)[1] == state_of(first)[1]


def test_a_state_before_the_first_step_goes_on_too(model: Path, trainers: list[Trainer]) -> None:
    first, second = _trainer(trainers, model), _trainer(trainers, model)
    tensors, info = state_of(first)
    second.update(make_batch_of(9))
    second.load_state(tensors, info)
    assert second.update(make_batch_of(1)) == first.update(make_batch_of(1))
    assert _same(state_of(second)[0], state_of(first)[0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tensors, info: tensors.pop("weights.model.norm.weight"), "weights.model.norm.weight is missing"),
        (lambda tensors, info: tensors.update(other=torch.zeros(1)), "other is unknown"),
        (
            lambda tensors, info: tensors.update({"weights.lm_head.weight": torch.zeros(2, 3)}),
            r"is of shape \[2, 3\], not \[24, 32\]",
        ),
        (lambda tensors, info: info.update(steps="many"), r"updates and steps must be counts, not \[1, 'many'\]"),
    ],
)
def test_a_state_of_another_model_changes_nothing(model: Path, trainers: list[Trainer], spoil: object, message: str) -> None:
    trainer = _trainer(trainers, model)
    trainer.update(make_batch_of(1))
    tensors, info = state_of(trainer)
    before = dict(tensors)
    spoil(tensors, info)  # type: ignore[operator]
    with pytest.raises(InputError, match=f"^training state: .*{message}$"):
        trainer.load_state(tensors, info)
    assert _same(state_of(trainer)[0], before)


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_what_transformers_calls_them(tmp_path: Path, trainers: list[Trainer], tied: bool) -> None:
    directory = make_model(tmp_path, tied)
    trainer = _trainer(trainers, directory)
    assert _same(weights_of(trainer), load_file(directory / "model.safetensors"))
    trainer.update(make_batch_of(1))
    assert ("lm_head.weight" in weights_of(trainer)) is not tied


def test_between_phases_state_is_away_and_training_does_not_notice(model: Path, trainers: list[Trainer]) -> None:
    settings = SETTINGS.model_copy(update={"kl": 0.1})
    there, away = _trainer(trainers, model, settings), _trainer(trainers, model, settings)
    for seed in (1, 2, 3):
        expected = there.update(make_batch_of(seed))
        here = away.restore()
        assert away.update(make_batch_of(seed)) == expected
        weights = weights_of(away)
        gone = away.offload()
        assert gone.device == 0 and gone.host > 0 and away.offload() == gone
        with pytest.raises(RuntimeError, match="the trainer is offloaded"):
            away.update(make_batch_of(seed))
        assert _same(weights, weights_of(there))  # copies outlive what they were made of
    assert here.device > sum(tensor.nbytes for tensor in weights.values()) * 3.9  # weights, reference, two moments
    away.restore()
    assert _same(state_of(away)[0], state_of(there)[0])


def test_going_back_to_copied_shards_forgets_what_came_after(model: Path, trainers: list[Trainer]) -> None:
    trainer, other = _trainer(trainers, model), _trainer(trainers, model)
    for seed in (1, 2):  # before the first step there are no moments to go back to
        with trainer.shards() as (shards, info):
            before = {name: shard.clone() for name, shard in shards.items()}, info
        trainer.update(make_batch_of(9))
        trainer.load_shards(*before)
        assert trainer.update(make_batch_of(seed)) == other.update(make_batch_of(seed))
    assert _same(state_of(trainer)[0], state_of(other)[0])


def _shard(trainer: Trainer) -> torch.Tensor:
    """The bytes of a rank that is alone: all of them."""
    data = torch.empty(trainer.layout.nbytes, dtype=torch.uint8)
    trainer.write_shard(data)
    return data


def test_a_state_in_host_memory_makes_no_other_numbers_on_a_cpu(model: Path, trainers: list[Trainer]) -> None:
    settings = SETTINGS.model_copy(update={"kl": 0.1})
    there = _trainer(trainers, model, settings)
    trainers.append(Trainer(model, settings, cpu_offload=True))
    host = trainers[-1]
    for seed in (1, 2):
        assert host.update(make_batch_of(seed)) == there.update(make_batch_of(seed))
        assert torch.equal(_shard(host), _shard(there))
        assert host.offload() == there.offload() and host.restore() == there.restore()
    assert _same(weights_of(host), weights_of(there)) and _same(state_of(host)[0], state_of(there)[0])


@pytest.mark.parametrize("field", ["logprobs", "advantages"])
def test_numbers_that_are_none_change_nothing(model: Path, trainers: list[Trainer], field: str) -> None:
    trainer = _trainer(trainers, model)
    trainer.update(make_batch_of(1))
    before, info = state_of(trainer)
    batch = make_batch_of(2)
    bad = dataclasses.replace(batch, **{field: torch.full_like(getattr(batch, field), float("nan"))})
    with pytest.raises(TrainingError, match=r"^update 1: .* are not all finite; no step was made$"):
        trainer.update(bad)
    assert _same(state_of(trainer)[0], before) and state_of(trainer)[1] == info


def test_a_gradient_that_is_no_number_stops_the_step(model: Path, trainers: list[Trainer]) -> None:
    trainer, good = _trainer(trainers, model), _trainer(trainers, model)
    tensors, info = state_of(trainer)
    spoiled = tensors | {"weights.model.norm.weight": tensors["weights.model.norm.weight"] * float("nan")}
    trainer.load_state(spoiled, info)
    with pytest.raises(TrainingError, match=r"^update 0, minibatch 1 of 2: the gradient's norm is nan; its step was not made"):
        trainer.update(make_batch_of(1))
    trainer.load_state(tensors, info)  # and it is of use again
    assert trainer.update(make_batch_of(1)) == good.update(make_batch_of(1))


def test_ranks_need_a_place_to_meet(model: Path) -> None:
    for rank, world in ((0, 2), (2, 2), (-1, 1)):
        with pytest.raises(ValueError, match="need a place to meet"):
            Trainer(model, SETTINGS, rank=rank, world=world)
