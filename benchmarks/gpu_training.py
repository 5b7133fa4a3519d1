"""Training on a GPU, stage by stage, for models of random weights: cold and warm start, tokens per second, peak of memory.

python benchmarks/gpu_training.py [--shape 0.5b 1.5b] [--minutes 8] [--cpu-offload]

Each model runs in a new process: import, load, first update; then offload, restore, and an update, as medians of three. An update
has 64 responses of 512 tokens each, including the prompt, in two passes of 16,384 tokens. Bandwidths are shown with that of one
plain copy of page-locked memory, which is what the bus can do. The peak of memory is shown with the forecast of `rollmux run`. With
`--cpu-offload`, updates with the state in host memory follow, with weights in page-locked and in pageable memory.
Rows are printed as they come. A line names what is missing or does not fit, and is left out. The benchmark ends when the minutes
are over. Without a CUDA device, a tiny model on the CPU shows that it works.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from math import log
from pathlib import Path
from typing import Any

from gpu_parts import (
    COLUMNS,
    MEASURE,
    ROUNDS,
    Child,
    Laps,
    PrintedTable,
    TimeBudget,
    announce,
    bus,
    cells,
    device_free,
    make_model_apart,
    parser,
    say,
)

GROUP, PROMPT, TOKENS = 8, 4, 508  # responses for a prompt; tokens of a prompt, and of a response
ALGORITHM = {
    "prompts_per_iteration": 8,
    "group_size": GROUP,
    "max_prompt_tokens": PROMPT,
    "max_tokens": TOKENS,
    "minibatches": 1,
    "micro_batch_tokens": 16_384,
    "learning_rate": 1e-6,
}
RESPONSES = 8 * GROUP
DEVICE_BYTES, HOST_BYTES = 16, 12  # of a parameter: weight, gradient and Adam's moments in float32; the same without the gradient
FLOPS = 6  # for a parameter and token in one forward and backward pass, not counting what is computed again
WAYS = {"offload": "to host", "restore": "to device"}


def measure(folder: Path, in_host_memory: bool) -> None:
    """Measure a cold start until the first update, and warm ones. This process must have done nothing before.

    Args:
        folder: Folder of the model.
        in_host_memory: Measure updates with the state in host memory instead.
    """
    laps = Laps()
    import transformers  # noqa: F401

    from runtime.jobs.grpo_spec import Algorithm
    from runtime.training.trainer import Trainer

    if not in_host_memory:
        laps.lap("import")
    trainer = Trainer(folder, Algorithm(**ALGORITHM), cpu_offload=in_host_memory)
    batch = make_responses(folder)
    if in_host_memory:
        offloaded_updates(trainer, batch)
    else:
        laps.lap("load")
        device_updates(trainer, batch, folder, laps)
    trainer.close()
    say("done")


def device_updates(trainer: Any, batch: Any, folder: Path, laps: Laps) -> None:
    """Measure updates on the device, and offload and restore between them."""
    import torch

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    laps.start()
    trainer.update(batch)
    laps.lap("first update, cold")
    rounds = []
    for _ in range(ROUNDS):
        free, again, one = device_free(), Laps(), dict[str, float]()
        away = trainer.offload()
        one["offload"] = again.taken()
        freed = device_free() - free
        again.start()
        trainer.restore()
        one["restore"] = again.taken()
        trainer.update(batch)
        one["update, warm"] = again.taken()
        rounds.append(one)
    for name in rounds[0]:
        seconds = sorted(one[name] for one in rounds)[ROUNDS // 2]
        more = {"bytes": away.host} if name in WAYS else rate_of(folder, seconds)
        say(name, s=seconds, **more)
    say("device memory given back", bytes=freed)
    if cuda:
        say("device memory at its peak", bytes=torch.cuda.max_memory_allocated(), forecast=forecast(folder))


def offloaded_updates(trainer: Any, batch: Any) -> None:
    """Measure updates with the state in host memory: first with page-locked weights, then with pageable ones."""
    trainer.update(batch)
    for name in ("update, weights page-locked", "update, weights pageable"):
        times = []
        for _ in range(ROUNDS):
            laps = Laps()
            trainer.update(batch)
            times.append(laps.taken())
        say(name, s=sorted(times)[ROUNDS // 2], tokens_per_s=RESPONSES * (PROMPT + TOKENS) / sorted(times)[ROUNDS // 2])
        trainer._locked.close()  # noqa: SLF001


def rate_of(folder: Path, seconds: float) -> dict[str, float]:
    """Return tokens and floating-point operations per second of an update that took some seconds."""
    from runtime.engines.model_files import read_model_files

    tokens = RESPONSES * (PROMPT + TOKENS)
    return {"tokens_per_s": tokens / seconds, "flops": FLOPS * tokens * read_model_files(folder).parameters / seconds}


def forecast(folder: Path) -> float:
    """Return the bytes that an update takes of a GPU at its peak, as predicted before anything is loaded."""
    from runtime.engines.model_files import read_model_files
    from runtime.jobs.grpo_spec import Algorithm
    from runtime.training.memory import size_of, training_peak

    size = size_of(read_model_files(folder), json.loads((folder / "config.json").read_text()))
    return training_peak(size, Algorithm(**ALGORITHM), 1, on_gpu=True).device


def make_responses(folder: Path) -> Any:
    """Return a batch of responses, of which half of each group are rewarded."""
    from runtime.engines.interface import Response
    from runtime.engines.model_files import read_model_files
    from runtime.training.batch import make_batch

    vocabulary = read_model_files(folder).vocabulary
    tokens, logprobs = tuple(range(TOKENS)), (-log(vocabulary),) * TOKENS
    responses = [Response(row, tokens, logprobs, True, 0) for row in range(RESPONSES)]
    prompts = [[100 + row // GROUP, 200, 300, 400] for row in range(RESPONSES)]
    return make_batch(prompts, responses, [row % 2 for row in range(RESPONSES)], GROUP)


def too_large(folder: Path) -> str:
    """Return why a model's training state does not fit into this machine, or an empty text if it does."""
    from runtime.engines.model_files import read_model_files

    parameters = read_model_files(folder).parameters
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for what, there, wanted in (("device", device_free(), DEVICE_BYTES), ("host", host, HOST_BYTES)):
        if there and parameters * wanted > 0.9 * there:
            return f"{parameters * wanted / 1e9:.0f} GB of {what} memory wanted, {there / 1e9:.0f} GB there"
    return ""


def report(rows: PrintedTable, size: str, words: list[str], budget: TimeBudget, rates: dict[str, float]) -> None:
    """Measure the training of one model in a new process, and add its rows."""
    child = Child(__file__, words, budget)
    for figures in child.figures():
        rows.add(size, *cells(figures, WAYS, rates))
    child.close()
    if child.problem:
        print(f"{size}: cut off: {child.problem}", flush=True)


def main() -> None:
    """Measure all models, or one of them in the process that was started for it."""
    if sys.argv[1:2] == [MEASURE]:
        measure(Path(sys.argv[2]), sys.argv[3:] == ["host"])
        return
    arguments = parser(__doc__, ["0.5b", "1.5b", "3b", "7b"])
    arguments.add_argument("--cpu-offload", action="store_true", help="updates with the state in host memory too")
    asked = arguments.parse_args()
    budget = TimeBudget(asked.minutes)
    announce()
    rates = bus()
    rows = PrintedTable("model", *COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in asked.shape:
            if why := make_model_apart(folder / size, size, budget) or too_large(folder / size):
                print(f"{size}: left out: {why}", flush=True)
                continue
            report(rows, size, [str(folder / size)], budget, rates)
            if asked.cpu_offload:
                report(rows, size, [str(folder / size), "host"], budget, rates)


if __name__ == "__main__":
    main()
