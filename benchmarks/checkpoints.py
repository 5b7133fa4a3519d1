"""Time that checkpoints take from a job, relative to its iterations: written while the job waits, and written in the background.

    python benchmarks/checkpoints.py

One rank trains in this process: a random Qwen2 in float32 on a CPU. An iteration is a restore, an update and an offload without a
rollout, so that it is as short as possible. `before` is how checkpoints were written at first: after every iteration, hashed by
reading the files again, while the job waits. `beside` is how they are written now: in a thread, hashed at the same time, as often
as `usual_interval` determines from the time of one; the job waits only until writing has begun.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, sleep

import numpy as np
from rich.table import Table

from rollmux_env.report.tables import show
from runtime.checkpoints import Rest, begin_checkpoint
from runtime.grpo.messages import ShareSamples
from runtime.grpo.training_worker import TrainingWorker
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import JobSpec
from runtime.jobside.checkpointing import SHARE, usual_interval
from runtime.machine import Node
from runtime.residency.layout import WeightLayout
from runtime.residency.staging import pieces

PROMPT, GROUP = 64, 4


def job(hidden: int, layers: int, length: int) -> JobSpec:
    """Return the job whose training is measured."""
    algorithm = {"prompts_per_iteration": 2, "group_size": GROUP, "max_tokens": length, "minibatches": 1}
    model = {"name": "tiny", "hidden_size": hidden, "layers": layers}
    fields = {"id": "a", "slo": 2, "iterations": 1000, "task": "echo", "model": model, "algorithm": algorithm}
    return parse_jobs({"version": 1, "jobs": [fields]}, "benchmark", Path()).jobs[0]


def sampled(length: int, version: int) -> ShareSamples:
    """Return responses of random tokens."""
    from runtime.engines.interface import Response

    random = np.random.default_rng(version)
    prompts = tuple(tuple(random.integers(3, 259, PROMPT).tolist()) for _ in range(2) for _ in range(GROUP))
    responses = tuple(
        Response(k, tuple(random.integers(3, 259, length).tolist()), (-5.5,) * length, True, version) for k in range(2 * GROUP)
    )
    return ShareSamples(
        0, tuple(prompts[k - k % GROUP] for k in range(2 * GROUP)), responses, tuple(random.random(2 * GROUP).tolist())
    )


class Trained:
    """One rank of training.

    Args:
        spec: Specification of the job.
        threads: Number of threads.
    """

    def __init__(self, spec: JobSpec, threads: int) -> None:
        self._spec = spec
        self._worker = TrainingWorker(spec, 0, 1, Node("training-0", "training", "m", tuple(range(threads)), (), 8.0, "cores"))
        self._worker.open(None, None)
        self._worker.offload()
        self._number = 0

    def iterate(self) -> float:
        """Run an iteration, and return its time in seconds."""
        began = perf_counter()
        self._worker.restore(False, False)
        self._worker.update([sampled(self._spec.algorithm.max_tokens, self._number)])
        self._worker.offload()
        self._number += 1
        return perf_counter() - began

    def write_before(self, folder: Path) -> float:
        """Write a checkpoint in the first version's way, and return the time in seconds.

        Its bytes are written, flushed to the disk, and read again to be hashed.
        """
        began = perf_counter()
        path = folder / "rank-0.safetensors"
        with self._worker._trainer.shards() as (shards, _), path.open("w+b") as file:  # noqa: SLF001 (as it was done at first)
            layout = WeightLayout.of(shards)
            file.write(layout.header())
            for _, piece in pieces(shards, layout):
                file.write(piece.numpy().data)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            hashlib.file_digest(file, "sha256")
        return perf_counter() - began

    def begin(self, folder: Path) -> Callable[[], int]:
        """Begin a checkpoint, and return the function that finishes it."""

        def fill(place: Path) -> Rest:
            self._worker.begin_writing(str(place))
            return self._wait

        return begin_checkpoint(folder, self._number, fill)

    def _wait(self) -> dict[str, tuple[int, str]]:
        while (files := self._worker.written()) is None:  # a job polls in the same way, from another process
            sleep(0.01)
        return files


def main() -> None:
    """Measure both ways, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hidden", type=int, default=512, help="width of the model")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=192, help="of a response; there are eight")
    parser.add_argument("--count", type=int, default=6, help="checkpoints of each way")
    parser.add_argument("--out", type=Path, help="folder whose disk is written to")
    asked = parser.parse_args()
    trained = Trained(job(asked.hidden, asked.layers, asked.tokens), os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(dir=asked.out) as name:
        report(trained, asked.count, Path(name))


def report(trained: Trained, count: int, folder: Path) -> None:
    """Measure both ways of writing, and print the table."""
    trained.iterate()  # creates Adam's moments
    alone, before = [], []
    for _ in range(count):
        alone.append(trained.iterate())
        before.append(trained.write_before(folder))
    began = perf_counter()
    size = trained.begin(folder)()
    write_s, iteration_s = perf_counter() - began, median(alone)
    every = usual_interval(write_s, iteration_s)
    waits, beside, thread = list[float](), list[float](), Thread()
    for number in range(every * count):
        if number % every == 0:
            began = perf_counter()
            thread = Thread(target=trained.begin(folder))
            thread.start()
            waits.append(perf_counter() - began)
        beside.append(trained.iterate())
        if number % every == every - 1:
            thread.join()
    table = Table("checkpoints", "every", "the job waits", "is on the disk after", "of an iteration's time")
    share = median(before) / iteration_s
    table.add_row("before", "1", _seconds(before), f"{median(before):.2f} s", f"{100 * share:.0f} %")
    share = write_s / every / iteration_s
    table.add_row("beside", f"{every}", _seconds(waits), f"{write_s:.2f} s", f"{100 * share:.1f} %")
    show(table)
    print(f"{size / 1e6:.0f} MB; an iteration takes {_seconds(alone)}, {_seconds(beside)} with checkpoints beside it")
    print(f"of an iteration's time {100 * share:.1f} % at most is a checkpoint's; wanted: {100 * SHARE:.0f} %")


def _seconds(values: Sequence[float]) -> str:
    """Return the median with the smallest and the largest value, in seconds."""
    return f"{median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
