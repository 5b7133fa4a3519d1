"""All that is to be measured on one GPU, what is worth most first, in parts of at most nine minutes that each leave their result.

python benchmarks/gpu_kit.py --out gpu [--minutes 30] [--part training jobs ...]

A part is a command; its output is shown as it comes, and kept in `NAME.txt` of the folder with the command, the hardware and the
versions above it. A part that fails, or lacks a package, says so and ends no other; one whose time is over ends with all that it
has started. Without a CUDA device the same parts go through a tiny model on the CPU, as a rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from threading import Timer
from time import monotonic

ROOT = Path(__file__).parents[1]
MOST_S = 520  # of a part
GRACE_S = 15  # that one whose time is over has to end what it has started
PACKAGES = ("torch", "transformers", "vllm", "ray", "numpy", "nvidia-ml-py")
DOCTOR = ("-m", "rollmux", "doctor")
PARTS: dict[str, tuple[str, ...]] = {
    "doctor": DOCTOR,
    "training": ("benchmarks/gpu_training.py", "--shape", "0.5b", "1.5b", "3b"),
    "switch": ("benchmarks/gpu_switch.py", "--shape", "0.5b", "1.5b"),
    "jobs": ("benchmarks/gpu_training.py", "--shape", "0.5b", "--jobs"),
    "host": ("benchmarks/gpu_training.py", "--shape", "0.5b", "1.5b", "--cpu-offload"),
    "tests": ("-m", "pytest", "-vv", "-m", "gpu", "-rs", "-W", "default", "-p", "no:cacheprovider", "tests/gpu"),
}
REHEARSAL: dict[str, tuple[str, ...]] = {
    "doctor": DOCTOR,
    "training": ("benchmarks/gpu_training.py",),
    "switch": ("benchmarks/gpu_switch.py", "--engine", "torch"),
    "jobs": ("benchmarks/gpu_training.py", "--jobs"),
    "host": ("benchmarks/gpu_training.py", "--cpu-offload"),
    "tests": ("-m", "pytest", "-vv", "-m", "not gpu", "-W", "default", "-p", "no:cacheprovider", "tests/gpu"),
}


def machine(cuda: bool) -> str:
    """Hardware and versions, a line each."""
    from runtime.gpus import find_gpus

    gpus = (
        [f"{gpu.name} with {gpu.memory_gb:.0f} GB, driver {gpu.driver}" for gpu in find_gpus()] if cuda else ["none: a rehearsal"]
    )
    lines = [f"GPU: {'; '.join(gpus)}", f"CPU: {os.cpu_count()} cores, Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
    return "\n".join(lines)


def run_part(words: tuple[str, ...], file: Path, above: str, seconds: float) -> str:
    """One part's output, into its file and on the screen; how it ended, in a few words."""
    command = f"python {' '.join(words)}"
    path = os.pathsep.join([str(ROOT), str(ROOT / "clients/python"), *sys.path[1:]])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}  # a row is there when it is printed
    began = monotonic()
    with file.open("w") as output:
        output.write(f"$ {command}\n{above}\n\n")
        with subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            ends = {signal.SIGTERM: seconds, signal.SIGKILL: seconds + GRACE_S}
            timers = [Timer(at_s, end_group, (process.pid, number)) for number, at_s in ends.items()]
            for timer in timers:
                timer.start()
            assert process.stdout
            try:
                for line in process.stdout:  # until all who have it are gone, what it has started too
                    for to in (sys.stdout, output):
                        to.write(line)
                        to.flush()
                process.wait()
            finally:
                end_group(process.pid, signal.SIGKILL)
        for timer in timers:
            timer.cancel()
        after_s, status = monotonic() - began, process.returncode
        end = "done" if status == 0 else "cut off" if after_s >= seconds else f"ended with status {status}"
        end += f" after {after_s:.0f} s"
        output.write(f"\n{end}\n")
    return end


def end_group(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group that are still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def main() -> None:
    import torch

    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--out", type=Path, required=True, help="folder for the results")
    options.add_argument("--minutes", type=float, default=30, help="for all parts; 30 where it is not said")
    options.add_argument("--part", nargs="+", choices=PARTS, default=[*PARTS], help="which; all where it is not said")
    asked = options.parse_args()
    cuda = torch.cuda.is_available()
    parts, above, ends_s = PARTS if cuda else REHEARSAL, machine(cuda), monotonic() + 60 * asked.minutes
    asked.out.mkdir(parents=True, exist_ok=True)
    print(above, flush=True)
    ends = {}
    for name in asked.part:
        left_s = min(MOST_S, ends_s - monotonic())
        print(f"\n== {name}: python {' '.join(parts[name])}", flush=True)
        ends[name] = run_part(parts[name], asked.out / f"{name}.txt", above, left_s) if left_s > 0 else "the minutes are over"
    print("\n" + "\n".join(f"{name}: {how}" for name, how in ends.items()), flush=True)


if __name__ == "__main__":
    main()
