"""Peak memory of an update beyond weights, gradients and Adam's moments, with log-probs in chunks and with a table of all logits.

    python benchmarks/training_memory.py

The model is a random Qwen2 of 0.1 billion parameters with the real vocabulary of 151,936 words, on a CPU in float32; the batch is
one pass of 4,096 tokens. Each way in a process of its own: a first update makes Adam's moments, then the peak of the resident
memory of the second one is read (`VmHWM`, set back before). `table` is what a plain trainer does: the logits of all positions, and
activations kept; `chunks` is the built-in job.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

from rollmux_env.report.tables import show

VOCABULARY, HIDDEN, LAYERS = 151_936, 512, 8
RESPONSES, PROMPT, RESPONSE = 8, 64, 448
WAYS = ("table", "chunks")
UPDATES = 20  # that are compared


def make_model(folder: Path) -> None:
    """Write the random model."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]


def measure(folder: Path, way: str, updates: int) -> dict[str, float | list[float]]:
    """Bytes and seconds of an update one way, in a process of its own; and the norm of the weights after each update."""
    from runtime.engines.interface import Response
    from runtime.jobs.spec import Algorithm
    from runtime.training.batch import make_batch
    from runtime.training.trainer import Trainer

    tokens = RESPONSES * (PROMPT + RESPONSE)
    settings = Algorithm(
        prompts_per_iteration=2, group_size=4, max_tokens=RESPONSE, minibatches=1, learning_rate=1e-5, micro_batch_tokens=tokens
    )
    trainer = Trainer(folder, settings, threads=2)
    model: Any = trainer._model  # noqa: SLF001 (a table of logits is no option of a trainer)
    if way == "table":
        del model.get_output_embeddings().forward
        model.gradient_checkpointing_disable()
    random = np.random.default_rng(0)
    prompts = random.integers(0, VOCABULARY, (2, PROMPT)).tolist()
    responses = [
        Response(k, tuple(random.integers(0, VOCABULARY, RESPONSE).tolist()), (-11.9,) * RESPONSE, True, 0)
        for k in range(RESPONSES)
    ]
    batch = make_batch([prompt for prompt in prompts for _ in range(4)], responses, random.random(RESPONSES).tolist(), 4)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainer.update(batch)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    began = perf_counter()
    metrics = [trainer.update(batch)]
    seconds = perf_counter() - began
    peak = resident("VmHWM") - before - 4 * parameters
    metrics += [trainer.update(batch) for _ in range(updates)]
    return {
        "parameters": parameters,
        "peak_bytes": peak,
        "seconds": seconds,
        "losses": [one["loss"] for one in metrics],
        "norms": [one["grad_norm"] for one in metrics],
    }


def resident(name: str) -> int:
    """A line of this process's status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--updates", type=int, default=0, help="further updates whose losses are compared")
    parser.add_argument("--way", choices=WAYS, help="measure one, and print JSON")
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(measure(asked.model, asked.way, asked.updates)))
        return
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        for way in WAYS:
            words = [sys.executable, __file__, "--way", way, "--model", folder, "--updates", str(asked.updates)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{way}: {done.stderr[-2000:]}")
            figures[way] = json.loads(done.stdout.splitlines()[-1])
    table = Table("log-probs", "parameters", "peak beyond weights, gradients, Adam", "seconds of an update")
    for way, one in figures.items():
        table.add_row(way, f"{one['parameters'] / 1e6:.0f} M", f"{one['peak_bytes'] / 1e9:.2f} GB", f"{one['seconds']:.1f}")
    show(table)
    table_way, chunks = (figures[way] for way in WAYS)
    print(f"{table_way['peak_bytes'] / chunks['peak_bytes']:.1f} times less in chunks")
    apart = max(abs(a - b) for a, b in zip(table_way["losses"], chunks["losses"], strict=True))
    norms = max(abs(a / b - 1) for a, b in zip(table_way["norms"], chunks["norms"], strict=True))
    print(
        f"losses of {len(chunks['losses'])} updates differ by {apart:.1e} at most, norms of gradients by {norms:.1e} of themselves"
    )


if __name__ == "__main__":
    main()
