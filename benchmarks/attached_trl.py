"""Two TRL runs of two users on one rollout node and one training node, together and each alone: throughput per node-hour.

python benchmarks/attached_trl.py --repeats 3

Every run is a `rollmux exec` of examples/trl_job.yaml, attached to a new `rollmux serve --no-ray`. The value of an iteration is the
node-seconds that it takes when its job runs alone. The throughput of both together is counted while both are present, without their
first iterations. The bound follows from the medians of the phases: a period cannot be shorter than a job's own iteration or than
the phases on a node. Needs peft.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from rollmux_env.report.tables import make_table, show
from runtime.journal.audit import audit
from runtime.journal.record import RunRecord
from runtime.journal.write import JOURNAL, read_facts, read_run

ROOT = Path(__file__).parents[1]
JOBS = {"plain": [], "lora": ["--lora"]}
WARM = 2  # number of first iterations that are not counted
PATHS = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python"), os.environ.get("PYTHONPATH", "")))
ENVIRONMENT = os.environ | {"PYTHONPATH": PATHS, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


class SoloMedians(NamedTuple):
    """Medians of a job that runs alone, in seconds.

    Attributes:
        iteration_s: Duration of an iteration.
        rollout_s: Duration of a rollout.
        training_s: Duration of a training.
    """

    iteration_s: float
    rollout_s: float
    training_s: float


def run(names: tuple[str, ...], folder: Path) -> RunRecord:
    """Run jobs in a new service, and return the record of the run."""
    command = [sys.executable, "-m", "rollmux"]
    service = subprocess.Popen([*command, "serve", str(folder), "--no-ray"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None and "listening" in service.stdout.readline()
        token = json.loads((folder / "service.json").read_text())
        environment = ENVIRONMENT | {"ROLLMUX_URL": token["url"], "ROLLMUX_TOKEN": token["token"]}
        processes = []
        for name in names:
            script = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "trl_job.py"), "--out", str(folder / f"{name}-out")]
            words = [*command, "exec", str(ROOT / "examples" / "trl_job.yaml"), "--job", name, "--", *script, *JOBS[name]]
            log = (folder / f"{name}.log").open("w")
            processes.append(subprocess.Popen(words, env=environment, cwd=folder, stdout=log, stderr=log))
        for name, process in zip(names, processes, strict=True):
            if process.wait():
                sys.exit(f"{name}: {(folder / f'{name}.log').read_text()[-2000:]}")
    finally:
        service.terminate()
        service.communicate()
    assert audit(read_facts(folder / JOURNAL)).problems == ()
    return read_run(folder)


def alone(record: RunRecord, name: str) -> SoloMedians:
    """Return the medians of a job that ran alone."""
    ends = [done.end_s for done in record.iterations if done.job_id == name]
    phases = {
        phase: statistics.median(
            part.end_s - part.start_s for part in record.phases if part.phase == phase and part.iteration >= WARM and not part.extra
        )
        for phase in ("rollout", "training")
    }
    return SoloMedians((ends[-1] - ends[WARM]) / (len(ends) - 1 - WARM), phases["rollout"], phases["training"])


def gain(record: RunRecord, solo: dict[str, SoloMedians]) -> float:
    """Return the throughput per node-hour of the jobs together relative to each alone, while both are present."""
    ends = {name: [done.end_s for done in record.iterations if done.job_id == name] for name in solo}
    begin_s, end_s = max(mine[WARM] for mine in ends.values()), min(mine[-1] for mine in ends.values())
    work_s = 0.0
    for name, mine in ends.items():
        for before_s, after_s in pairwise(mine):  # an iteration counts by its fraction within the time
            within_s = max(0.0, min(after_s, end_s) - max(before_s, begin_s))
            work_s += solo[name].iteration_s * within_s / (after_s - before_s)
    return work_s / (end_s - begin_s)


def main() -> None:
    """Run the jobs alone and together, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3, help="so many times all of it")
    repeats = parser.parse_args().repeats
    gains, bounds = [], []
    table = make_table("repeat", "job", "iteration s", "rollout s", "training s", left=2)
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory() as temporary:
            solo = {}
            for name in JOBS:
                (folder := Path(temporary) / name).mkdir()
                solo[name] = alone(run((name,), folder), name)
                table.add_row(str(repeat), name, *(f"{seconds:.2f}" for seconds in solo[name]))
            (folder := Path(temporary) / "together").mkdir()
            gains.append(gain(run(tuple(JOBS), folder), solo))
        one, other = solo.values()
        period_s = max(
            one.rollout_s + one.training_s,
            other.rollout_s + other.training_s,
            one.rollout_s + other.rollout_s,
            one.training_s + other.training_s,
        )
        bounds.append((one.iteration_s + other.iteration_s) / period_s)
    show(table)
    for what, values in (("throughput per node-hour together, against alone", gains), ("bound", bounds)):
        print(f"{what}: {statistics.median(values):.2f}x, of {', '.join(f'{value:.2f}' for value in sorted(values))}")


if __name__ == "__main__":
    main()
