"""Cold and warm start of training on a GPU, stage by stage, for the random models of gpu_switch.py; and two co-executed jobs.

python benchmarks/gpu_training.py

Each model in a process of its own: import, load, first update; then offload, restore, and an update. The bandwidths stand beside
that of one plain copy of page-locked memory, which is what the bus gives. At last `rollmux run --compare solo` runs two jobs that
train the smallest model; their prompts mean nothing to it, so only the times do. Without a CUDA device there is nothing to
measure, and it says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from math import log
from pathlib import Path
from typing import Any

from gpu_switch import PROMPTS, ROUNDS, SHAPES, Laps, bus, device_free, make_model_apart
from rich.table import Table

from rollmux_env.report.tables import show

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


def measure(folder: Path) -> dict[str, float]:
    """Seconds of a cold start until the first update, medians of a warm one, and bytes; in a process that did nothing before."""
    laps = Laps()
    import transformers  # noqa: F401

    from runtime.jobs.spec import Algorithm
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
        free, again = device_free(), Laps()
        away = trainer.offload()
        again.lap("offload")
        freed = device_free() - free
        again.start()
        trainer.restore()
        again.lap("restore")
        trainer.update(batch)
        again.lap("update, warm")
        rounds.append(again.seconds | {"freed": freed, "host": away.host})
    trainer.close()
    return laps.seconds | {name: sorted(one[name] for one in rounds)[ROUNDS // 2] for name in rounds[0]}


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
        if parameters * wanted > 0.9 * there:
            return f"not run: {parameters * wanted / 1e9:.0f} GB of {what} memory wanted, {there / 1e9:.0f} GB there"
    return ""


def switches(folder: Path) -> None:
    """Cold and warm start of the training of every shape."""
    rates = bus()
    table = Table("model", "stage", "s", "GB", "GB/s", "bus GB/s")
    for size, shape in SHAPES.items():
        make_model_apart(folder / size, shape)
        if why := too_large(folder / size):
            table.add_row(size, why)
            continue
        figures = measure_apart(folder / size)
        for stage in ("import", "load", "first update, cold"):
            table.add_row(size, stage, f"{figures[stage]:.2f}")
        for stage, way in (("offload", "to host"), ("restore", "to device")):
            rate = f"{figures['host'] / figures[stage] / 1e9:.1f}"
            table.add_row(size, stage, f"{figures[stage]:.2f}", f"{figures['host'] / 1e9:.1f}", rate, f"{rates[way] / 1e9:.1f}")
        table.add_row(size, "update, warm", f"{figures['update, warm']:.2f}")
        table.add_row(size, "device memory given back", "", f"{figures['freed'] / 1e9:.1f}")
    show(table)


def measure_apart(folder: Path) -> dict[str, float]:
    """`measure` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit("the trainer's process ended early; see above")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])  # libraries may print too
    return figures


def make_job_file(folder: Path, model: Path) -> Path:
    """Two jobs that train a model of random weights, which is given a tokenizer."""
    from runtime.jobs.models import model_directory
    from runtime.jobs.spec import ModelSpec

    for file in model_directory(ModelSpec(), 0).glob("tokenizer*"):
        shutil.copyfile(file, model / file.name)
    defaults = {"iterations": ITERATIONS, "slo": 3, "model": str(model), "algorithm": ALGORITHM, "task": "echo"}
    path = folder / "two_jobs.json"
    path.write_text(json.dumps({"version": 1, "defaults": defaults, "jobs": [{"id": "a"}, {"id": "b", "seed": 1}]}))
    return path


def run_two_jobs(folder: Path, model: Path) -> None:
    """Both jobs through the runtime, together and each alone; its summary is printed."""
    rollmux = Path(sys.executable).with_name("rollmux")
    done = subprocess.run([rollmux, "run", make_job_file(folder, model), "--compare", "solo"])
    if done.returncode:
        raise SystemExit(f"rollmux run ended with status {done.returncode}; see above")


def main() -> None:
    import torch

    if len(sys.argv) == 2:
        print(json.dumps(measure(Path(sys.argv[1]))))
        return
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing to measure")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        switches(folder)
        if torch.cuda.device_count() < 2:
            print("one CUDA device: a rollout and a training node need one each, so the two co-executed jobs are not run")
        else:
            run_two_jobs(folder, folder / next(iter(SHAPES)))


if __name__ == "__main__":
    main()
