"""Parts of the benchmarks for GPUs: models of random weights, a stopwatch, a budget of minutes, rows, and measuring processes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread, Timer
from time import monotonic, perf_counter
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {  # shapes of Qwen2.5; tiny is for a try without a GPU
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "heads": (2, 1), "tied": True},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "heads": (14, 2), "tied": True},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "heads": (12, 2), "tied": True},
    "3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "heads": (16, 2), "tied": True},
    "7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "heads": (28, 4), "tied": False},
}
VOCABULARY = {"tiny": 1000}
PROMPTS = [[100 + row, 200, 300, 400] for row in range(32)]
ROUNDS = 3  # number of warm switches of each kind, of which the median is shown
MINUTES = 8.0
MEASURE = "measure"  # first argument of a process that measures one model and has imported nothing before


def parser(text: str | None, shapes: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that the benchmarks share: the shapes, and the time.

    Args:
        text: Docstring of the module, whose first line becomes the description.
        shapes: Shapes that are measured on a GPU if none are named.
    """
    import torch

    options = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    usual = shapes if torch.cuda.is_available() else ["tiny"]
    options.add_argument("--shape", nargs="+", choices=SHAPES, default=usual, help=f"of the model; {' '.join(usual)} here")
    options.add_argument("--minutes", type=float, default=MINUTES, help=f"to be done in; {MINUTES:g} where it is not said")
    return options


def make_model(folder: Path, size: str) -> None:
    """Write a Hugging Face directory with random weights, in bfloat16 on a GPU and float32 on a CPU."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    shape, cuda = SHAPES[size], torch.cuda.is_available()
    heads, key_value_heads = shape["heads"]
    config = Qwen2Config(
        vocab_size=VOCABULARY.get(size, 151936),
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        tie_word_embeddings=shape["tied"],
        max_position_embeddings=4096,
        **{name: shape[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
    )
    torch.set_default_dtype(torch.bfloat16 if cuda else torch.float32)
    with torch.device("cuda" if cuda else "cpu"):
        model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)


class Laps:
    """Stopwatch that prints its laps at once, as lines of JSON for the parent process."""

    def __init__(self) -> None:
        self._began = perf_counter()

    def start(self) -> None:
        """Start a lap, so that the time since the last one is left out."""
        self._began = perf_counter()

    def lap(self, stage: str) -> float:
        """Print the time since the last lap or start, and return it, in seconds."""
        seconds = self.taken()
        say(stage, s=seconds)
        return seconds

    def taken(self) -> float:
        """End a lap, and return its time in seconds."""
        now = perf_counter()
        seconds, self._began = now - self._began, now
        return seconds


def say(stage: str, **figures: float) -> None:
    """Print figures about a stage for the parent process."""
    print(json.dumps({"stage": stage} | figures), flush=True)


def device_free() -> int:
    """Return the free memory of the GPU, in bytes, 0 without a GPU."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def bus() -> dict[str, float]:
    """Return the rate of a copy of 1 GiB of page-locked memory in each direction, in bytes per second. Empty without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return {}
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    rates = {}
    for name, (target, source) in {"to host": (host, device), "to device": (device, host)}.items():
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            began = perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(perf_counter() - began)
        rates[name] = len(host) / min(times)
    return rates


class GpuWatch:
    """Context that asks NVML every half second for each process's memory on the first GPU.

    Attributes:
        memory: Memory of each process that was seen for more than a few seconds, by its command and id. The first number is the
            smallest memory since it first had half of its largest one, which is what it keeps while it sleeps; the second number is
            the largest memory. Both are in bytes.
    """

    def __init__(self) -> None:
        self.memory: dict[str, tuple[int, int]] = {}
        self._readings: dict[int, list[int]] = {}
        self._names: dict[int, str] = {}
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for pid, readings in self._readings.items():
            if len(readings) > 10:
                since = next(at for at, nbytes in enumerate(readings) if nbytes >= max(readings) / 2)
                self.memory[f"{self._names[pid]} {pid}"] = min(readings[since:]), max(readings)

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:
            print(f"NVML cannot be asked: {error}", flush=True)
            return
        while not self._over.wait(0.5):
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                if process.pid not in self._names:
                    command = Path(f"/proc/{process.pid}/cmdline")
                    self._names[process.pid] = command.read_text().split("\0")[0] if command.exists() else "?"
                self._readings.setdefault(process.pid, []).append(process.usedGpuMemory or 0)


class PrintedTable:
    """Table whose rows are printed as they come.

    Args:
        *columns: Titles of the columns.
    """

    def __init__(self, *columns: str) -> None:
        self._widths = [max(len(column), 10) for column in columns]
        self.add(*columns)

    def add(self, *cells: str) -> None:
        """Print a row. Missing cells are empty."""
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, self._widths, strict=False)).rstrip(), flush=True)


def announce() -> bool:
    """Print which device is measured, and return whether it is a GPU."""
    import torch

    cuda = torch.cuda.is_available()
    no_gpu = "no CUDA device: a try on the CPU, whose figures say nothing of GPUs"
    print(torch.cuda.get_device_name() if cuda else no_gpu, flush=True)
    return cuda


COLUMNS = (f"{'stage':<27}", "s", "GB", f"{'rate':<16}", "beside")


def cells(figures: dict[str, Any], ways: dict[str, str], rates: dict[str, float]) -> tuple[str, ...]:
    """Return a row for `COLUMNS` with the figures from a measuring process.

    Args:
        figures: Figures of a stage.
        ways: Direction of the bytes, for stages that move bytes.
        rates: Rates of the bus, as `bus` returns them.
    """
    stage, seconds, moved = figures["stage"], figures.get("s"), figures.get("bytes")
    rate = beside = ""
    if "tokens_per_s" in figures:
        rate = f"{figures['tokens_per_s']:,.0f} tokens/s"
        beside = f"{figures['flops'] / 1e12:.1f} TFLOP/s" if "flops" in figures else ""
    elif seconds and moved:
        rate = f"{moved / seconds / 1e9:.1f} GB/s"
        beside = f"bus {rates[ways[stage]] / 1e9:.1f} GB/s" if rates and stage in ways else ""
    elif "forecast" in figures:
        beside = f"forecast {figures['forecast'] / 1e9:.2f} GB"
    taken = f"{seconds:.2f}" if seconds is not None else ""
    return f"{stage:<27}", taken, f"{moved / 1e9:.2f}" if moved else "", f"{rate:<16}", beside


class TimeBudget:
    """Time that is left of a benchmark's minutes."""

    def __init__(self, minutes: float) -> None:
        self._ends_s = monotonic() + 60 * minutes

    def left_s(self) -> float:
        """Return the time until the end, in seconds, 0 after it."""
        return max(0.0, self._ends_s - monotonic())


class Child:
    """Process that measures and prints its figures. It is killed when the budget is used up.

    Args:
        script: Script to run.
        words: Arguments of the script, after `MEASURE`.
        budget: Time that is left.

    Attributes:
        problem: Reason why it ended early, in one line. Empty if it did not.
    """

    def __init__(self, script: str, words: Sequence[str], budget: TimeBudget) -> None:
        command = [sys.executable, script, MEASURE, *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._budget = budget
        self._timer = Timer(budget.left_s(), self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self.problem = ""

    def figures(self) -> Iterator[dict[str, Any]]:
        """Yield the figures that the process prints, until it prints `done`."""
        assert self._process.stdout
        for line in self._process.stdout:
            if not line.startswith('{"stage"'):  # other lines come from libraries
                continue
            figures: dict[str, Any] = json.loads(line)
            if figures["stage"] == "done":
                return
            yield figures
        self._process.wait()
        over = self._budget.left_s() == 0
        self.problem = "the minutes are over" if over else f"its process ended with status {self._process.returncode}; see above"

    def ask(self, what: str) -> float | None:
        """Ask the process to do something, and return the time that it took in seconds. None means that it has ended."""
        assert self._process.stdin
        try:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return next((float(figures["s"]) for figures in self.figures()), None)

    def close(self) -> None:
        """Wait for its end."""
        self._process.communicate()
        self._timer.cancel()


def make_model_apart(folder: Path, size: str, budget: TimeBudget) -> str:
    """Make a model in a new process, so that its device memory is free afterwards. Returns why it failed, or an empty text."""
    code = "import sys, pathlib, gpu_parts; gpu_parts.make_model(pathlib.Path(sys.argv[1]), sys.argv[2])"
    try:
        command = [sys.executable, "-c", code, str(folder), size]
        done = subprocess.run(command, cwd=Path(__file__).parent, timeout=budget.left_s())
    except subprocess.TimeoutExpired:
        return "the minutes are over"
    return "its weights could not be made; see above" if done.returncode else ""
