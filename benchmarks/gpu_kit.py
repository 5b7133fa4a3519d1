"""Jobs, tests and switches on one GPU in ten minutes: parts in the order of their worth, each of which leaves its result.

python benchmarks/gpu_kit.py --out gpu [--minutes 10] [--part jobs tests ...] [--tiny]

A part is a command. Its output is shown as it comes and kept in `NAME.txt` of the folder. At its end, `NAME.json` contains the
command, the hardware, versions, its time, how it ended, and its figures. A part that fails does not end the others. Each part has a
share of the minutes. Minutes that it does not use go to the parts after it. A part whose time is over is ended together with
everything it has started. `--tiny` rehearses the same parts with tiny models on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MINUTES = 10.0
GRACE_S = 20.0  # time that an interrupted part has to stop its processes and print what it has found, in seconds
PACKAGES = ("torch", "transformers", "vllm", "ray", "numpy", "nvidia-ml-py")
JOBS, TESTS = "benchmarks/gpu_jobs.py", ("-m", "pytest", "-vv", "-rs", "-W", "default", "-p", "no:cacheprovider", "tests/gpu", "-m")


class KitPart(NamedTuple):
    """A part of the kit.

    Attributes:
        words: Arguments of Python on a GPU. `WORK` means the folder for models and runs, `FIGURES` for the file for figures.
        tiny: Arguments of Python in a rehearsal.
        share: Share of the minutes.
    """

    words: tuple[str, ...]
    tiny: tuple[str, ...]
    share: float


def _jobs(*words: str, shape: str, share: float) -> KitPart:
    command = (JOBS, *words, "--work", "WORK", "--figures", "FIGURES", "--shape")
    return KitPart((*command, shape), (*command, "tiny"), share)


PARTS = {
    "jobs": _jobs("run", shape="0.5b", share=0.4),
    "tests": KitPart((*TESTS, "gpu"), (*TESTS, "not gpu"), 0.25),
    "forced": _jobs("run", "--leave", shape="0.5b", share=0.15),
    "http": _jobs("attached", shape="1.5b", share=0.2),
}


def machine() -> dict[str, Any]:
    """Return the hardware and the versions."""
    from runtime.gpus import find_gpus

    gpus = [f"{gpu.name} with {gpu.memory_gb:.0f} GB, driver {gpu.driver}" for gpu in find_gpus()]
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {"gpus": gpus, "cores": os.cpu_count(), "versions": versions}


def run_part(words: Sequence[str], file: Path, seconds: float) -> tuple[str, float]:
    """Run a part, with its output in a file and on the screen.

    Args:
        words: Arguments of Python.
        file: File for the output.
        seconds: Time after which the part is ended, in seconds.

    Returns:
        How it ended, and the time that it took in seconds.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path[1:]), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    began = monotonic()
    with file.open("w") as output:
        with subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            ends = {signal.SIGINT: seconds, signal.SIGKILL: seconds + GRACE_S}
            timers = [Timer(at_s, end_group, (process.pid, number)) for number, at_s in ends.items()]
            for timer in timers:
                timer.start()
            assert process.stdout
            try:
                for line in process.stdout:  # ends when all processes that have the pipe are gone, including children
                    for to in (sys.stdout, output):
                        to.write(line)
                        to.flush()
                process.wait()
            finally:
                end_group(process.pid, signal.SIGKILL)
        for timer in timers:
            timer.cancel()
    after_s = monotonic() - began
    if after_s >= seconds:
        return "cut off", after_s
    return f"ended with status {process.returncode}" if process.returncode else "done", after_s


def end_group(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group that are still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def carry_out(name: str, words: Sequence[str], out: Path, work: Path, limit_s: float) -> dict[str, Any]:
    """Run a part, and leave its result in the folder.

    Args:
        name: Name of the part.
        words: Arguments of Python, as in `KitPart.words`.
        out: Folder for results.
        work: Folder for models and runs.
        limit_s: Time that the part has, in seconds.

    Returns:
        The result.
    """
    from rollmux_env.files import write_whole

    figures, file = work / f"{name}-figures.json", out / f"{name}.txt"
    named = {"WORK": str(work), "FIGURES": str(figures)}
    command = [named.get(word, word) for word in words]
    print(f"\n== {name}, {limit_s:.0f} s at most: python {' '.join(command)}", flush=True)
    end, seconds = run_part(command, file, limit_s)
    lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    result = {
        "part": name,
        "command": f"python {' '.join(command)}",
        "end": end,
        "seconds": round(seconds, 1),
        "limit_s": round(limit_s, 1),
        **machine(),
        "last_line": lines[-1] if lines else "",
        "figures": json.loads(figures.read_text()) if figures.exists() else None,
    }
    write_whole(out / f"{name}.json", json.dumps(result, indent=1))
    return result


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a table of all parts."""
    print(f"\n{'part':<8}{'end':<24}{'s':>6}{'of':>6}  last line")
    for one in results:
        print(f"{one['part']:<8}{one['end']:<24}{one['seconds']:>6.0f}{one['limit_s']:>6.0f}  {one['last_line'][:160]}")


def main() -> None:
    """Run the parts, and print the table."""
    import torch

    sys.path[1:1] = [str(ROOT), str(ROOT / "clients/python")]  # the kit may be unpacked without being installed
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--out", type=Path, required=True, help="folder for the results")
    options.add_argument("--minutes", type=float, default=MINUTES, help=f"for all parts; {MINUTES:g} if it is not said")
    options.add_argument("--part", nargs="+", choices=PARTS, default=[*PARTS], help="which; all if it is not said")
    options.add_argument("--tiny", action="store_true", help="rehearse with tiny models on a CPU")
    asked = options.parse_args()
    if torch.cuda.is_available() == asked.tiny:
        options.error("there is a GPU: without --tiny" if asked.tiny else "there is no GPU: --tiny rehearses without one")
    asked.out.mkdir(parents=True, exist_ok=True)
    ends_s, results = monotonic() + 60 * asked.minutes, []
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as work:
        os.environ["ROLLMUX_CACHE"] = f"{work}/cache"  # parts share what was profiled and compiled
        for k, name in enumerate(asked.part):
            part, shares = PARTS[name], [PARTS[other].share for other in asked.part[k:]]
            limit_s = (ends_s - monotonic()) * part.share / sum(shares)
            results.append(carry_out(name, part.tiny if asked.tiny else part.words, asked.out, Path(work), limit_s))
    show(results)


if __name__ == "__main__":
    main()
