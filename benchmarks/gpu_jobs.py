"""Two jobs that share one GPU: by `rollmux run`, or by two commands that attach to a service.

python benchmarks/gpu_jobs.py run --work FOLDER [--shape 0.5b] [--leave] [--figures FILE]
python benchmarks/gpu_jobs.py attached --work FOLDER [--shape 1.5b] [--figures FILE]

`run` trains two models of random weights with `rollmux run` and the torch engine, and compares them with each job alone. With
`--leave`, nothing stays on the GPU between phases, and nothing is compared. `attached` starts a service without Ray and
`examples/http_grpo.py` twice. Such models cannot solve their prompts: only times and memory are measured. NVML is asked twice a
second for the GPU memory of each process. Models are made once in the work folder. The shape `tiny` is for a rehearsal on the CPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import sleep
from typing import Any

from gpu_parts import SHAPES, GpuWatch, PrintedTable, TimeBudget, make_model_apart

from rollmux_env.files import write_whole
from runtime.engines.model_files import read_model_files
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory
from runtime.journal.write import read_run
from runtime.service.address import find

ROLLMUX = (sys.executable, "-m", "rollmux")
EXAMPLE = Path(__file__).parents[1] / "examples" / "http_grpo.py"
ALGORITHM = {"prompts_per_iteration": 16, "group_size": 8, "max_prompt_tokens": 64, "max_tokens": 128, "micro_batch_tokens": 16_384}
SMALL = {"prompts_per_iteration": 4, "group_size": 4, "max_prompt_tokens": 64, "max_tokens": 16}
ITERATIONS = {"run": 5, "attached": 4}  # number of iterations of each of the two jobs
ADAM = 3  # copies of the weights that an attached job offloads: the weights and two moments
MINUTES = 9.0  # time limit for everything; the kit may end it before


def model_in(work: Path, shape: str) -> Path:
    """Return the folder of a model of random weights with a tokenizer of bytes. It is made if it does not exist."""
    folder = work / f"model-{shape}"
    if not folder.exists():
        new = work / f"model-{shape}.new"
        if problem := make_model_apart(new, shape, TimeBudget(MINUTES)):
            raise SystemExit(problem)
        for file in model_directory(ModelSpec(), 0).glob("tokenizer*"):
            shutil.copyfile(file, new / file.name)
        new.rename(folder)
    return folder


def run_jobs(work: Path, shape: str, leave: bool) -> dict[str, Any]:
    """Run two jobs with `rollmux run`, and return its results."""
    tiny = shape == "tiny"
    defaults = {
        "iterations": ITERATIONS["run"],
        "slo": 100 if tiny else 3,
        "model": str(model_in(work, shape)),
        "task": "echo",
        "algorithm": {**(SMALL if tiny else ALGORITHM), "minibatches": 1, "learning_rate": 1e-6},
        "rollout": {"engine": "torch"},
    }
    cluster = {"one_device": True, "training": {"gpus_per_node": 1, "usd_per_gpu_hour": 1.0}}
    file, out = work / "two_jobs.json", work / ("run-leave" if leave else "run")
    file.write_text(
        json.dumps({"version": 1, "cluster": cluster, "defaults": defaults, "jobs": [{"id": "a"}, {"id": "b", "seed": 1}]})
    )
    with watching():
        words = ["--leave"] if leave else ["--compare", "solo"]
        status = subprocess.run([*ROLLMUX, "run", str(file), "--out", str(out), *words]).returncode
    if not (out / "results.json").exists():
        raise SystemExit(f"rollmux run ended with status {status}")
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    switches = [f"{phase} {switch_of(one)}" for phase, one in results["switches"]["a"].items()]
    print(f"cold and warm switches of job a: {'; '.join(switches)}", flush=True)
    named = ("outcome", "seconds", "jobs", "pools", "throughput", "switches", "permit_ms", "syncs")
    return {"status": status, **{name: results[name] for name in named}}


def switch_of(figures: dict[str, float | None]) -> str:
    """Return the text about a cold and a warm switch and how often the state stayed, with ? for what was not observed."""
    cold_s, warm_s, stays = ("?" if (value := figures[name]) is None else f"{value:.2f}" for name in ("cold_s", "warm_s", "stays"))
    return f"{cold_s} and {warm_s} s, stays {stays}"


def run_attached(work: Path, shape: str) -> dict[str, Any]:
    """Let two programs take turns through a service without Ray, and return figures from its journal."""
    model, iterations, service = model_in(work, shape), ITERATIONS["attached"], work / "service"
    host_gb = 2 + ADAM * 2 * read_model_files(model).parameters / 1e9
    phase = {"worst_case_s": 120, "host_memory_gb": round(host_gb, 1)}
    defaults = {"attach": True, "iterations": iterations, "slo": 100, "rollout": phase, "training": phase}
    file = work / "attached.json"
    file.write_text(json.dumps({"version": 1, "defaults": defaults, "jobs": [{"id": "first"}, {"id": "second"}]}))
    with watching(), serving(service):
        commands = []
        for name in ("first", "second"):
            script = [sys.executable, str(EXAMPLE), "--model", str(model), "--iterations", str(iterations)]
            words = [*ROLLMUX, "exec", str(file), "--job", name, "--at", str(service), "--", *script, "--out", str(work / name)]
            commands.append(subprocess.Popen(words))
        status = max(command.wait() for command in commands)
    record = read_run(service)
    if not record.phases:
        raise SystemExit("no job has had a turn")
    nodes = {node for part in record.phases for node in part.nodes}
    turns = [sorted((part.start_s, part.end_s) for part in record.phases if node in part.nodes) for node in nodes]
    figures = {
        "status": status,
        "iterations": {name: sum(done.job_id == name for done in record.iterations) for name in ("first", "second")},
        "turns": sum(map(len, turns)),
        "overlapping_turns": sum(before[1] > after[0] for own in turns for before, after in pairwise(own)),
        "turn_s": {
            name: median(part.end_s - part.start_s for part in record.phases if part.phase == name)
            for name in {part.phase for part in record.phases}
        },
        "kept_gb": max(part.device_gb for part in record.phases),
    }
    print(
        f"{figures['turns']} turns, {figures['overlapping_turns']} overlapping; a job that waits keeps {figures['kept_gb']:.2f} GB "
        "of the GPU",
        flush=True,
    )
    return figures


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """Run a service without Ray in a folder during the block."""
    with subprocess.Popen([*ROLLMUX, "serve", str(folder), "--no-ray"]) as service:
        try:
            while find(folder) is None:
                if service.poll() is not None:
                    raise SystemExit("the service has ended; see above")
                sleep(0.2)
            yield
        finally:
            service.terminate()


@contextmanager
def watching() -> Iterator[None]:
    """Ask NVML for each process's memory on the GPU during the block, and print it at the end."""
    with GpuWatch() as watch:
        yield
    if watch.memory:
        rows = PrintedTable(f"{'process':<34}", "least GB", "most GB", "on the GPU, as NVML says")
        for name, (least, most) in watch.memory.items():
            rows.add(f"{name[:34]:<34}", f"{least / 1e9:.2f}", f"{most / 1e9:.2f}")


def main() -> None:
    """Run the jobs, and write the figures if asked to."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("kind", choices=ITERATIONS)
    options.add_argument("--work", type=Path, required=True, help="folder for models and runs")
    options.add_argument("--shape", choices=SHAPES, default="0.5b", help="of the models; 0.5b if it is not said")
    options.add_argument("--leave", action="store_true", help="let nothing stay on the GPU between phases")
    options.add_argument("--figures", type=Path, help="file for the figures, JSON")
    asked = options.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, lambda *_: None)  # child processes get the signal too, and end; then the figures are written
    attached = asked.kind == "attached"
    figures = run_attached(asked.work, asked.shape) if attached else run_jobs(asked.work, asked.shape, asked.leave)
    if asked.figures:
        write_whole(asked.figures, json.dumps(figures))
    sys.exit(figures["status"])


if __name__ == "__main__":
    main()
