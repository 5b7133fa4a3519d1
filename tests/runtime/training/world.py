"""A job small enough to train in a blink, and processes that train it together."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as processes

from runtime.engines.interface import Response
from runtime.jobs.grpo_spec import Algorithm
from runtime.training.batch import TrainingBatch, make_batch
from runtime.training.group import whole
from runtime.training.trainer import Trainer
from tests.runtime.qwen import small_qwen

WORDS = 24
SETTINGS = Algorithm(
    prompts_per_iteration=4,
    group_size=3,
    minibatches=2,
    learning_rate=1e-2,
    weight_decay=0.01,
    max_grad_norm=0.5,
    micro_batch_tokens=40,
)


def make_model(folder: Path, tied: bool = False) -> Path:
    """A Qwen2 of 24 words with dropout in its config, as a Hugging Face directory."""
    small_qwen(0, WORDS, 32, 2, tied, attention_dropout=0.5, eos_token_id=0).save_pretrained(folder)
    return folder


def make_batch_of(seed: int, responses: int = 12) -> TrainingBatch:
    """Random responses of 1 to 9 tokens, from a sampler that disagrees with the trainer."""
    random = np.random.default_rng(seed)
    prompts, sampled = [], []
    for k in range(responses):
        length = int(random.integers(1, 10))
        prompts.append(random.integers(0, WORDS, int(random.integers(1, 5))).tolist())
        tokens, logprobs = random.integers(0, WORDS, length), -random.exponential(3.0, length)
        sampled.append(Response(k, tuple(tokens.tolist()), tuple(logprobs.tolist()), True, 0))
    return make_batch(prompts, sampled, random.random(responses).tolist(), 3)


def apart(a: Mapping[str, Any], b: Mapping[str, Any], start: Mapping[str, Any] | None = None) -> float:
    """Length of a - b beside that of b - start (0 without), all tensors together.

    One by one, numbers differ by more: Adam makes as much of a gradient that is rounding as of any other. So biases of keys, which
    no softmax feels, are left out.
    """
    assert a.keys() == b.keys()
    names = [name for name in a if not name.endswith("k_proj.bias")]
    one, other = (np.concatenate([np.asarray(values[name]).ravel() for name in names]) for values in (a, b))
    zero = np.concatenate([np.asarray(start[name]).ravel() for name in names]) if start else np.zeros_like(other)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other - zero))


def meeting_place(folder: Path) -> str:
    """Where the ranks of one group may meet; a group that comes after it needs another."""
    return f"file://{folder / uuid.uuid4().hex}"


def train_together(folder: Path, world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(rank, world, rendezvous, *arguments)` returns in each of so many processes, which meet in a folder."""
    context = processes.get_context("spawn")
    answers = context.SimpleQueue()
    started = processes.start_processes(  # type: ignore[attr-defined,no-untyped-call] # documented, and not in its `__all__`
        _one, (work, world, meeting_place(folder), answers, arguments), world, join=False, start_method="spawn"
    )
    found: dict[int, Any] = {}
    while len(found) < world:
        if answers.empty():
            started.join(0.05)  # raises what a process has raised
        else:
            rank, answer = answers.get()
            found[rank] = answer
    while not started.join():
        pass
    return [found[rank] for rank in range(world)]


def _one(rank: int, work: Callable[..., Any], world: int, rendezvous: str, answers: Any, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    answers.put((rank, work(rank, world, rendezvous, *arguments)))


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Copies of the whole weights on the CPU: all on rank 0, none on others; every rank calls it."""
    first = trainer._rank == 0  # noqa: SLF001
    data = torch.empty(trainer.layout.nbytes if first else 0, dtype=torch.uint8)
    trainer.write_weights(data)
    return trainer.layout.views(data) if first else {}


def state_of(trainer: Trainer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `load_state` takes: whole tensors on the CPU, on rank 0 alone, and the counts; every rank calls it."""
    copies = {name: whole(tensor.detach()).to("cpu", copy=True) for name, tensor in trainer._state().items()}  # noqa: SLF001
    with trainer.shards() as (_, info):
        return copies if trainer._rank == 0 else {}, {name: info[name] for name in ("updates", "steps")}  # noqa: SLF001


def updates(
    rank: int,
    world: int,
    rendezvous: str | None,
    model: Path,
    seeds: list[int],
    settings: Algorithm,
    state: Any = None,
    responses: int = 12,
) -> tuple[list[dict[str, float]], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """Train on random batches: metrics of each update, then weights and state as arrays, and the state's JSON."""
    trainer = Trainer(model, settings, rank=rank, world=world, rendezvous=rendezvous)
    if state is not None:
        trainer.load_state({name: torch.from_numpy(array) for name, array in state[0].items()}, state[1])
    metrics = [trainer.update(make_batch_of(seed, responses)) for seed in seeds]
    weights, (tensors, info) = weights_of(trainer), state_of(trainer)
    trainer.close()
    return metrics, _arrays(weights), _arrays(tensors), info


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
