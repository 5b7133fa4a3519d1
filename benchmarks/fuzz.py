"""Fuzzer that gives damaged files, journals and arguments to all commands: a command must work, or print one line on the problem.

    python benchmarks/fuzz.py --cases 2000 --seed 0

A case is a folder with damaged files and a command that reads them, drawn from the seed and its number. It runs in a process that
is forked from this one, in which everything is already imported. A fraction of `EXECUTED` of the cases are started as a user starts
them. Commands are stopped where they would start Ray, an engine or a training. For each case the fuzzer asserts:

- There is no traceback, and no signal ends it. Status 2 comes with exactly one line, and status 0 without any message of a problem.
- No file is half-written, no input is changed, and nothing is left in the temporary folder.
- It takes at most `MOST_CPU_S` of CPU time, and ends without being killed. Its memory stays below `MOST_GB`.

Failed cases are printed with their number. `--only NUMBER` runs one of them and keeps its folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz_cases import KINDS, FuzzCase, make_case
from rich.table import Table

MOST_GB, MOST_CPU_S, MOST_WALL_S = 4.0, 30, 300  # the last one is large, since the machine may be busy
EXECUTED = 0.04  # fraction of the cases that start nothing
WARM = ("rollmux_env.bench.harness", "rollmux_env.report.pictures", "rollmux_env.report.plots", "policies.registry", "highspy")
WARM += ("runtime.commands.running", "runtime.service.head", "runtime.journal.audit", "runtime.compare", "runtime.profile")
WARM += ("trainers.runs", "trainers.config", "transformers", "runtime.engines.model_files")
STARTS = ("runtime.commands.running.ray_session", "runtime.service.head.head", "runtime.engines.make_engine")
STARTS += ("trainers.train.TensorBoard", "trainers.runs.find_references")
_STARTS = "it would start"
PROGRESS = ("replaying", "reading ", "read ")  # beginnings of lines about progress, and about how a file was read
_OWN = ("-wal", "-shm", ".lock")  # endings of files that SQLite and locks leave


@dataclass(frozen=True)
class CaseEnd:
    """End of a case.

    Attributes:
        status: Exit status, or the negative number of the signal that ended it.
        out: Standard output.
        err: Standard error.
        cpu_s: CPU time, in seconds.
        gb: Largest memory, in GB.
    """

    status: int
    out: str
    err: str
    cpu_s: float
    gb: float


def main() -> None:
    """Run the cases, print a table, and exit with status 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this one, and keep its folder")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rollmux-fuzz-"))
    try:
        warm(home)
        numbers = range(asked.cases) if asked.only is None else [asked.only]
        failures = run_all(numbers, asked.seed, home)
    finally:
        if asked.only is None:
            shutil.rmtree(home)
        else:
            print(f"its folder: {home / str(asked.only)}")
    sys.exit(1 if failures else 0)


def warm(home: Path) -> None:
    """Import everything and compile the kernel before the first fork."""
    os.environ |= {"ROLLMUX_CACHE": str(home / "cache"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    for name in ("ROLLMUX_SERVICE", "RAY_ADDRESS"):
        os.environ.pop(name, None)
    for name in WARM:
        importlib.import_module(name)
    from policies.dispatch import DISPATCH, make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.harness import Task, run_task
    from rollmux_env.workloads import WorkloadOptions, make_workload
    from trainers.problems.catalogue import make_problem

    stream = make_workload("mixed", WorkloadOptions(jobs=6))
    for name in ("rollmux", "consolidate", "regroup", "optimal", "gavel", "learned:default"):
        run_task(make_policy, Task(name, 0, stream))
    for name in DISPATCH:
        run_task(make_policy, Task("rollmux", 0, stream, make_dispatch(name)))
    for name in ("placement", "dispatch", "rollout"):  # else each training would say that it compiles, and is stopped before it has
        env = make_problem({"name": name}, name).environment(1)
        _, info = env.reset(seed=0)
        env.step(info["action_mask"].argmax(axis=1))


def run_all(numbers: Any, seed: int, home: Path) -> int:
    """Run cases one after the other, and return how many failed."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    worst_s, worst_gb, failures, executed = 0.0, 0.0, 0, 0
    began = time.monotonic()
    for number in numbers:
        rng = random.Random(f"{seed}/{number}")
        folder = home / str(number)
        (folder / "tmp").mkdir(parents=True)
        (folder / "here").mkdir()
        case = make_case(rng, folder / "here")
        before = contents(folder / "here")
        is_executed = not case.starts and rng.random() < EXECUTED
        executed += is_executed
        ended = run(case, folder, is_executed)
        problems = judge(ended, before, folder)
        worst_s, worst_gb = max(worst_s, ended.cpu_s), max(worst_gb, ended.gb)
        counts[case.kind]["FAILED" if problems else outcome(ended)] += 1
        if problems:
            failures += 1
            words = " ".join(repr(word) if len(word) < 80 else repr(word[:70]) + "..." for word in case.command)
            print(f"case {number}: rollmux {words}", *problems, sep="\n    ", flush=True)
            if len(numbers) == 1:
                print(ended.err[-4000:])
        if len(numbers) > 1:
            shutil.rmtree(folder)
    show(counts)
    print(f"{len(numbers)} cases in {(time.monotonic() - began) / 60:.0f} minutes, {executed} of them as programs of their own")
    print(f"most computing of a case {worst_s:.1f} s, most memory {worst_gb:.2f} GB; {failures} failed")
    return failures


def run(case: FuzzCase, folder: Path, is_executed: bool) -> CaseEnd:
    """Run a case in a forked process, and wait for its end."""
    for name in ("out", "err"):
        (folder / name).touch()
    child = os.fork()
    if child == 0:
        become(case, folder, is_executed)
    until_s = time.monotonic() + MOST_WALL_S
    while not (ended := os.wait4(child, os.WNOHANG))[0]:
        if time.monotonic() > until_s:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)
    _, status, usage = ended
    out, err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    return CaseEnd(os.waitstatus_to_exitcode(status), out, err, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def become(case: FuzzCase, folder: Path, is_executed: bool) -> None:
    """Run the command of a case in this forked process. It does not return."""
    status = 99
    try:
        os.setpgid(0, 0)
        os.chdir(folder / "here")
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
        for number, name, how in ((0, os.devnull, os.O_RDONLY), (1, "../out", os.O_WRONLY), (2, "../err", os.O_WRONLY)):
            os.dup2(os.open(name, how), number)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + int(MOST_GB * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S + 1,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        words = ["rollmux", *case.command]
        if is_executed:
            os.execv(sys.executable, [sys.executable, "-m", *(word.replace("\0", "") for word in words)])
        sys.stdout, sys.stderr = (os.fdopen(number, "w", errors="backslashreplace", closefd=False) for number in (1, 2))
        sys.argv = words
        for place in STARTS:
            module, _, name = place.rpartition(".")
            setattr(importlib.import_module(module), name, would_start)
        import rollmux

        try:
            rollmux.main()
        except SystemExit as left:
            status = int(left.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def would_start(*_: Any, **__: Any) -> Any:
    """Replace functions that start Ray, an engine or a training."""
    from rollmux_env.errors import InputError

    raise InputError(_STARTS)


def judge(ended: CaseEnd, before: dict[str, str], folder: Path) -> list[str]:
    """Return the problems with the end of a case."""
    problems = []
    lines = [line for line in ended.err.splitlines() if not line.startswith(PROGRESS)]
    if "Traceback" in ended.err + ended.out or ended.status not in (0, 1, 2):
        problems.append(f"status {ended.status}: {lines[-1] if lines else 'nothing said'}")
    elif ended.status == 2 and (len(lines) != 1 or not lines[0].startswith("rollmux: ") or len(lines[0]) > 5000):
        problems.append(f"status 2 with {len(lines)} lines: {ended.err[:300]!r}")
    elif ended.status != 2 and lines:
        problems.append(f"status {ended.status}, and yet: {ended.err[:300]!r}")
    if ended.cpu_s > MOST_CPU_S:
        problems.append(f"took {ended.cpu_s:.0f} s of computing")
    if ended.gb > MOST_GB:
        problems.append(f"took {ended.gb:.1f} GB of memory")
    after = contents(folder / "here")
    changed = [name for name, digest in before.items() if after.get(name) != digest and not name.endswith(_OWN)]
    new = [name for name in after if name not in before and not name.endswith(_OWN)]
    if ended.status == 2 and _STARTS not in ended.err and new:
        problems.append(f"wrote {', '.join(new[:3])}, and was refused")
    problems += [f"half-written: {name}" for name in new if ".rollmux-" in name or not whole(folder / "here" / name)]
    problems += [f"changed {name}" for name in changed if not (name.endswith("/ray") and name not in after)]  # a note that was read
    problems += [f"left {path.name} behind" for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    return problems


def contents(folder: Path) -> dict[str, str]:
    """Return digests of the regular files in a folder, by name. Large files have their size instead."""
    digests = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            digests[str(path.relative_to(folder))] = str(size) if size > 1 << 28 else hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def whole(path: Path) -> bool:
    """Return whether a file that a command wrote can be read."""
    if path.suffix != ".json":
        return path.stat().st_size > 0
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def outcome(ended: CaseEnd) -> str:
    """Return the name under which an end is counted."""
    if _STARTS in ended.err:
        return "would start"
    return {0: "done", 1: "differences", 2: "refused"}[ended.status]


def show(counts: dict[str, Counter[str]]) -> None:
    """Print counts by outcome."""
    from rollmux_env.report.tables import show as print_table

    columns = ("done", "differences", "refused", "would start", "FAILED")
    table = Table("input", *columns)
    for kind, counter in counts.items():
        table.add_row(kind, *(str(counter[column]) for column in columns))
    table.add_row("all", *(str(sum(counter[column] for counter in counts.values())) for column in columns))
    print_table(table)


if __name__ == "__main__":
    main()
