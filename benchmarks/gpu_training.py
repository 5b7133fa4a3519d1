"""Cold and warm start of training on a GPU, stage by stage, for the random models of gpu_switch.py; and two co-executed jobs.

python benchmarks/gpu_training.py [--shape 0.5b 1.5b] [--minutes 8] [--jobs]

Each model in a process of its own: import, load, first update; then offload, restore, and an update, medians of three. The
bandwidths stand beside that of one plain copy of page-locked memory, which is what the bus gives. With `--jobs`,
`rollmux run --compare solo` then runs two jobs that train the first model; their prompts mean nothing to it, so only the times do.
Rows are printed as they come; what is missing or does not fit is said in a line, and left out; when the minutes are over, it ends.
Without a CUDA device a tiny model on the CPU shows that it runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from math import log
from pathlib import Path
from typing import Any

from gpu_parts import MEASURE, PROMPTS, ROUNDS, Budget, Child, Laps, Rows, bus, device_free, make_model_apart, parser, say

GROUP = 8  # of PROMPTS
TOKENS = 64  # of a response
ALGORITHM = {
    "prompts_per_iteration": len(PROMPTS) // GROUP,
    "group_size": GROUP,
    "max_tokens": TOKENS,
    "minibatches": 1,
    "micro_batch_tokens": 2048,
    "learning_rate": 1e-6,
}
ITERATIONS = 5  # of each of the two jobs
DEVICE_BYTES, HOST_BYTES = 16, 12  # a parameter: weight, gradient and Adam's moments in float32; without the gradient
WAYS = {"offload": "to host", "restore": "to device"}


def measure(folder: Path) -> None:
    """A cold start until the first update, and warm ones; in a process that did nothing before."""
    laps = Laps()
    import torch
    import transformers  # noqa: F401

    from runtime.jobs.grpo_spec import Algorithm
    from runtime.training.trainer import Trainer

    laps.lap("import")
    trainer = Trainer(folder, Algorithm(**ALGORITHM))
    laps.lap("load")
    batch = make_responses(folder)
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
        say(name, s=sorted(one[name] for one in rounds)[ROUNDS // 2], bytes=away.host if name in WAYS else 0)
    say("device memory given back", bytes=freed)
    if torch.cuda.is_available():
        say("device memory at its peak", bytes=torch.cuda.max_memory_allocated())
    trainer.close()
    say("done")


def make_responses(folder: Path) -> Any:
    """A batch of responses, half of each group rewarded."""
    from runtime.engines.interface import Response
    from runtime.engines.model_files import read_model_files
    from runtime.training.batch import make_batch

    vocabulary = read_model_files(folder).vocabulary
    tokens, logprobs = tuple(range(TOKENS)), (-log(vocabulary),) * TOKENS
    responses = [Response(row, tokens, logprobs, True, 0) for row in range(len(PROMPTS))]
    groups = [PROMPTS[row - row % GROUP] for row in range(len(PROMPTS))]
    return make_batch(groups, responses, [row % 2 for row in range(len(PROMPTS))], GROUP)


def too_large(folder: Path) -> str:
    """Why a model's training state fits not into this machine; empty where it does."""
    from runtime.engines.model_files import read_model_files

    parameters = read_model_files(folder).parameters
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for what, there, wanted in (("device", device_free(), DEVICE_BYTES), ("host", host, HOST_BYTES)):
        if there and parameters * wanted > 0.9 * there:
            return f"{parameters * wanted / 1e9:.0f} GB of {what} memory wanted, {there / 1e9:.0f} GB there"
    return ""


def switches(rows: Rows, size: str, folder: Path, budget: Budget, rates: dict[str, float]) -> None:
    """Cold and warm start of the training of one model."""
    child = Child(__file__, (str(folder),), budget)
    for figures in child.figures():
        stage, seconds, moved = figures["stage"], figures.get("s"), figures.get("bytes")
        rate = f"{moved / seconds / 1e9:.1f}" if seconds and moved else ""
        there = f"{rates[WAYS[stage]] / 1e9:.1f}" if rate and rates else ""
        gigabytes = f"{moved / 1e9:.2f}" if moved else ""
        rows.add(size, f"{stage:<25}", f"{seconds:.2f}" if seconds is not None else "", gigabytes, rate, there)
    child.close()
    if child.problem:
        print(f"{size}: cut off: {child.problem}", flush=True)


def make_job_file(folder: Path, model: Path) -> Path:
    """Two jobs that train a model of random weights, which is given a tokenizer."""
    from runtime.jobs.grpo_spec import ModelSpec
    from runtime.jobs.models import model_directory

    for file in model_directory(ModelSpec(), 0).glob("tokenizer*"):
        shutil.copyfile(file, model / file.name)
    defaults = {"iterations": ITERATIONS, "slo": 3, "model": str(model), "algorithm": ALGORITHM, "task": "echo"}
    path = folder / "two_jobs.json"
    path.write_text(json.dumps({"version": 1, "defaults": defaults, "jobs": [{"id": "a"}, {"id": "b", "seed": 1}]}))
    return path


def run_two_jobs(folder: Path, model: Path, budget: Budget) -> str:
    """Both jobs through the runtime, together and each alone; its summary is printed. Why it was not, or nothing."""
    if find_spec("ray") is None:
        return "Ray is not installed"
    code = "import sys, rollmux; sys.argv[0] = 'rollmux'; rollmux.main()"
    command = [
        sys.executable,
        "-c",
        code,
        "run",
        str(make_job_file(folder, model)),
        "--compare",
        "solo",
        "--out",
        str(folder / "run"),
    ]
    process = subprocess.Popen(command)
    try:
        status = process.wait(budget.left_s())
    except subprocess.TimeoutExpired:
        process.terminate()  # it stops its jobs
        process.wait()
        return "the minutes are over"
    return f"rollmux run ended with status {status}; see above" if status else ""


def main() -> None:
    if sys.argv[1:2] == [MEASURE]:
        measure(Path(sys.argv[2]))
        return
    import torch

    arguments = parser(__doc__, ["0.5b", "1.5b", "3b", "7b"])
    arguments.add_argument("--jobs", action="store_true", help="run two jobs of the first model too")
    asked = arguments.parse_args()
    budget, cuda = Budget(asked.minutes), torch.cuda.is_available()
    print(
        torch.cuda.get_device_name() if cuda else "no CUDA device: a try on the CPU, whose figures say nothing of GPUs", flush=True
    )
    rates = bus()
    rows = Rows("model", f"{'stage':<25}", "s", "GB", "GB/s", "bus GB/s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in asked.shape:
            if why := make_model_apart(folder / size, size, budget) or too_large(folder / size):
                print(f"{size}: left out: {why}", flush=True)
                continue
            switches(rows, size, folder / size, budget, rates)
        if asked.jobs and (why := run_two_jobs(folder, folder / asked.shape[0], budget)):
            print(f"two jobs: {why}", flush=True)


if __name__ == "__main__":
    main()
