"""Peak memory of an update beyond weights, gradients and Adam's moments: predicted, measured, and measured for a plain trainer.

    python benchmarks/training_memory.py

The models are random Qwen2 on a CPU in float32. The large one has 0.1 billion parameters and the real vocabulary of 151,936 words.
A batch is one pass with the given number of tokens. Each row is measured in a new process: a small update creates Adam's moments,
then the peak of the resident memory of an update with the batch is read (`VmHWM`, reset before). `plain` is a plain trainer: it has
a table of the logits of all positions and keeps its activations. It is left out if it needs more memory than is free.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.files import read_json
from rollmux_env.report.tables import make_table, show
from runtime.engines.memory import ModelSize
from runtime.engines.model_files import read_model_files
from runtime.jobs.grpo_spec import Algorithm
from runtime.memory import memory
from runtime.training.memory import size_of, training_peak

PROMPT, LENGTH = 64, 512  # tokens of a prompt, and of a prompt with its response
WAYS = ("chunks", "plain")


class TestedModel(NamedTuple):
    """Shape of a model, and the size of a pass.

    Attributes:
        vocabulary: Size of the vocabulary, in tokens.
        hidden: Width of the model.
        layers: Number of layers.
        pass_tokens: Largest number of tokens in a pass.
    """

    vocabulary: int
    hidden: int
    layers: int
    pass_tokens: int = 1 << 20


SHAPES = {
    "0.1B": TestedModel(151_936, 512, 8),
    "narrow": TestedModel(151_936, 64, 2),
    "small": TestedModel(32_000, 256, 4),
    "small, several passes": TestedModel(32_000, 256, 4, 1024),
}


def make_model(folder: Path, shape: TestedModel) -> None:
    """Write a random model to a folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]


def settings(tokens: int, shape: TestedModel) -> Algorithm:
    """Return the settings for a batch of `tokens` tokens: responses of `LENGTH` tokens with their prompts, two for each prompt."""
    return Algorithm(
        prompts_per_iteration=max(1, tokens // LENGTH // 2),
        group_size=2,
        max_prompt_tokens=PROMPT,
        max_tokens=min(LENGTH, tokens // 2) - PROMPT,
        minibatches=1,
        learning_rate=1e-5,
        micro_batch_tokens=shape.pass_tokens,
    )


def measure(folder: Path, way: str, tokens: int, shape: TestedModel) -> dict[str, float]:
    """Run an update in this process, which must be new.

    Args:
        folder: Folder of the model.
        way: One of `WAYS`.
        tokens: Size of the batch, in tokens.
        shape: Shape of the model.

    Returns:
        Peak memory in bytes, time in seconds, loss, and norm of the gradient, by name.
    """
    from rollmux_offload import release_free_memory

    from runtime.training.trainer import Trainer

    algorithm = settings(tokens, shape)
    trainer = Trainer(folder, algorithm, threads=2)
    model: Any = trainer._model  # noqa: SLF001 (a plain trainer is no option of ours)
    if way == "plain":
        del model.get_output_embeddings().forward
        model.gradient_checkpointing_disable()
    trainer.update(make_responses(2, 8, 8, shape.vocabulary))
    responses = algorithm.prompts_per_iteration * algorithm.group_size
    batch = make_responses(responses, PROMPT, algorithm.max_tokens, shape.vocabulary)
    release_free_memory()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    began = perf_counter()
    metrics = trainer.update(batch)
    seconds = perf_counter() - began
    gradients = 4 * sum(parameter.numel() for parameter in model.parameters())
    peak = resident("VmHWM") - before - gradients
    return {"peak_bytes": peak, "seconds": seconds, "loss": metrics["loss"], "norm": metrics["grad_norm"]}


def make_responses(count: int, prompt: int, length: int, vocabulary: int) -> Any:
    """Return a batch of random responses."""
    from runtime.engines.interface import Response
    from runtime.training.batch import make_batch

    random = np.random.default_rng(0)
    prompts = random.integers(0, vocabulary, (count, prompt)).tolist()
    tokens = random.integers(0, vocabulary, (count, length)).tolist()
    responses = [Response(k, tuple(row), (-np.log(vocabulary),) * length, True, 0) for k, row in enumerate(tokens)]
    return make_batch(prompts, responses, random.random(count).tolist(), 2)


def resident(name: str) -> int:
    """Return a line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024


def predicted(way: str, tokens: int, shape: TestedModel, size: ModelSize) -> int:
    """Return the predicted bytes beyond weights, gradients and Adam's moments. For the plain way they are approximate."""
    size = size._replace(whole_logits=way == "plain")
    return training_peak(size, settings(tokens, shape), 1, on_gpu=False).device - 16 * size.parameters


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 4096], help="of a batch")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=[*SHAPES])
    parser.add_argument("--way", choices=WAYS, help="measure one, and print JSON")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(measure(asked.model, asked.way, asked.tokens[0], SHAPES[asked.shape[0]])))
        return
    table = make_table("model", "parameters", "tokens", "predicted GB", "GB", "plain GB", "times", "s", "plain s", "norms apart")
    for name in asked.shape:
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder), SHAPES[name])
            size = size_of(read_model_files(Path(folder)), read_json(Path(folder) / "config.json"))
            for tokens in asked.tokens:
                cells = compare(Path(folder), name, tokens, size)
                table.add_row(name, f"{size.parameters / 1e6:.0f} M", f"{tokens:,}", *cells)
    show(table)


def compare(folder: Path, name: str, tokens: int, size: ModelSize) -> list[str]:
    """Measure both ways, and return the cells of a row."""
    figures: dict[str, dict[str, float]] = {}
    expected = {way: predicted(way, tokens, SHAPES[name], size) for way in WAYS}
    for way in WAYS:
        if way == "plain" and 16 * size.parameters + 1.3 * expected[way] > memory().free_gb * 1e9:
            continue
        words = [sys.executable, __file__, "--way", way, "--model", str(folder), "--tokens", str(tokens), "--shape", name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}, {way}: {done.stderr[-2000:]}")
        figures[way] = json.loads(done.stdout.splitlines()[-1])
        print(name, tokens, way, figures[way], file=sys.stderr, flush=True)
    ours, plain = figures["chunks"], figures.get("plain")
    cells = [f"{expected['chunks'] / 1e9:.2f}", f"{ours['peak_bytes'] / 1e9:.2f}"]
    if plain is None:
        return [*cells, "too large for here", "", f"{ours['seconds']:.1f}", "", ""]
    times = f"{plain['peak_bytes'] / ours['peak_bytes']:.1f}"
    seconds = [f"{one['seconds']:.1f}" for one in (ours, plain)]
    return [*cells, f"{plain['peak_bytes'] / 1e9:.2f}", times, *seconds, f"{abs(ours['norm'] / plain['norm'] - 1):.0e}"]


if __name__ == "__main__":
    main()
