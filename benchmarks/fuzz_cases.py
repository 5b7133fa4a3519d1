"""Cases of the fuzzer: a folder with damaged files, and a command that reads them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import fuzz_mutate as damaged

from rollmux_env.reading import read_mapping
from trainers.config import read_config

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
POLICIES = ("solo", "rollmux", "colocated", "most-idle", "random", "gavel", "consolidate", "regroup", "optimal", "learned:default")
DISPATCH = ("round-robin", "fifo", "shortest-first", "round-robin,migrate=0.8", "learned:default")
OPTIONS = ("jobs=3", "stays=fixed", "slo=[1,2]", "max_group_size=2", "switches=true", "min_stay_h=1", "csv=x", "profile=mixed", "=")
KEYS = (
    "rollmux,quantile=",
    "rollmux,prune=",
    "consolidate,known_stays=",
    "consolidate,budget=",
    "regroup,every_s=",
    "regroup,observe=",
)
KEYS += (
    "optimal,node_limit=",
    "gavel,training_slowdown=",
    "random,seed=",
    "learned:default,moves=",
    "round-robin,migrate=",
    "solo,x=",
)
WORDS = ("validate", "plan", "bench", "explain", "trace", "workload", "schema", "compare", "status", "cancel", "logs", "journal")
WORDS += ("check", "audit", "a.yaml", "a", "-p", "--policy", "--job", "--out", "--seed", "--seeds", "--set", "--format", "json")
WORDS += (
    "0",
    "-1",
    "99999999999999999999",
    "nan",
    "",
    "\n",
    "é",
    "--help",
    "--",
    "-",
    "production",
    "--at",
    "--follow",
    "--dispatch",
)
READS = ("status --at", "compare", "journal replay", "journal audit", "journal check", "run --resume", "serve", "logs a --at")
TRAINING = (  # training whose checkpoint is damaged, halfway through
    'environment={"name": "placement", "workload": "mixed", "options": {"jobs": 12}, "moves": true, "reference": "rollmux"}',
    "steps=1536",
    "streams=4",
    "ppo.copies=4",
    "widths=[8]",
)


@cache
def halfway() -> bytes:
    """Return the checkpoint of a training that has done half of its steps, made in a new process."""
    words = [word for pair in TRAINING for word in ("--set", pair.replace("steps=1536", "steps=768"))]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rollmux", "train", "toy", *words, "--out", folder]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        return (Path(folder) / "seed-0" / "checkpoint.safetensors").read_bytes()


@dataclass(frozen=True)
class FuzzCase:
    """A command to run.

    Attributes:
        kind: Kind of the damaged input.
        command: Arguments of `rollmux`.
        starts: Whether it may start Ray, an engine or a training if its input turns out to be good. It is stopped at that point.
    """

    kind: str
    command: tuple[str, ...]
    starts: bool = False


def make_case(rng: random.Random, folder: Path) -> FuzzCase:
    """Write the files of a case into an empty folder, and return the case."""
    kind = rng.choices([*KINDS], [weight for _, weight in KINDS.values()])[0]
    return KINDS[kind][0](rng, folder)


def written(rng: random.Random, source: Path, folder: Path) -> str:
    """Write a damaged copy of a YAML or JSON file, and return its name."""
    kind = rng.randrange(10)
    path = folder / rng.choice(["a.yaml", "a.json"])
    if kind < 7:
        damaged.dumped(damaged.tree(read_mapping(source), rng), path)
    elif kind < 9:
        path = folder / "a.yaml"
        path.write_text(damaged.text(source.read_text(), rng), errors="surrogatepass")
    else:
        shutil.copy(source, path)
        damaged.file(path, rng)
    return path.name


def named(rng: random.Random, names: tuple[str, ...]) -> str:
    """Return a name of a policy or an option, sometimes damaged."""
    name = rng.choice(names)
    return name if rng.random() < 0.85 else damaged.text(name, rng).replace("\0", "")


def scenario(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage a scenario file."""
    source = rng.choice([ROOT / "examples" / f"{name}.yaml" for name in ("quickstart", "quickstart", "models")])
    name = written(rng, source, folder)
    commands: list[tuple[str, ...]] = [
        ("validate", name),
        ("plan", name, "--policy", named(rng, POLICIES)),
        ("explain", name, "--job", rng.choice(["code-7b", "math-7b", "a", ""])),
        ("bench", name, "-p", named(rng, POLICIES), "-p", "solo", *rng.choice([(), ("--format", "json"), ("--out", "out")])),
        ("bench", name, "--dispatch", named(rng, DISPATCH), *rng.choice([(), ("--max-phases", "5000"), ("--check",)])),
        ("bench", name, "--rollout-policy", named(rng, ("plain", "tail-batching", "adaptive-parallelism"))),
        ("trace", name, "--out", "pictures", *rng.choice([(), ("--from", "-1"), ("--hours", "1e300"), ("--group", "7")])),
    ]
    return FuzzCase("scenario", rng.choice(commands))


def job_file(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage a job file."""
    source = rng.choice([ROOT / "examples" / f"{name}.yaml" for name in ("two_jobs", "own_job", "long_tail")])
    if source.stem == "own_job":
        shutil.copy(ROOT / "examples" / "own_job.py", folder)
    name = written(rng, source, folder)
    (folder / "prompts.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    commands: list[tuple[str, ...]] = [
        ("run", name, *rng.choice([(), ("--dry-run",), ("--compare", "solo"), ("--out", "out")])),
        ("run", name, "--policy", named(rng, POLICIES), "--dispatch", named(rng, DISPATCH)),
        ("submit", name, "--at", "service"),
        ("serve", "service", "--cluster", name),
        ("profile", name, "--engine", "torch"),
    ]
    return FuzzCase("job file", rng.choice(commands), starts=True)


def prompts(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage the prompts of a job."""
    lines = "".join(json.dumps({"prompt": f"{k} + 1?", "answer": str(k + 1)}) + "\n" for k in range(20))
    (folder / "prompts.jsonl").write_text(damaged.text(lines, rng), errors="surrogatepass")
    if rng.random() < 0.4:
        damaged.file(folder / "prompts.jsonl", rng)
    task = {"name": "jsonl", "file": "prompts.jsonl"}
    damaged.dumped({"version": 1, "jobs": [{"id": "a", "iterations": 1, "slo": 2, "task": task}]}, folder / "a.json")
    return FuzzCase("prompts", ("run", "a.json"), starts=True)


def arrivals(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage a trace of arrivals."""
    rows = "".join(f"{k * 600},{600 + k},{'ab'[k % 2]}\n" for k in range(30))
    path = folder / "trace.csv"
    path.write_text(damaged.text(f"timestamp,duration,cluster\n{rows}", rng), errors="surrogatepass")
    if rng.random() < 0.3:
        damaged.file(path, rng)
    settings = [word for _ in range(rng.randrange(3)) for word in ("--set", setting(rng))]
    return FuzzCase("trace of arrivals", ("workload", "philly", "--set", "csv=trace.csv", *settings, "--out", "a.yaml"))


def authors(rng: random.Random, folder: Path) -> FuzzCase:
    """Write a trace of the paper's authors, with phase times and drift, and damage one of these files."""
    rows = [(10 * k, f"job{k}, 2025-07-30 15:{10 + k}:00, 1, {rng.choice(['7B_8k', '120.5, 40.25, 1.75'])}") for k in range(20)]
    rows += [(10 * k + 15, f"job{k}, 2025-07-30 16:{10 + k}:00, -1, 7B_8k") for k in range(20)]
    seconds = {"7B_8k": {"generate": 100.0, "train": 50.0}}
    files = {
        "trace": "".join(f"{row}\n" for _, row in sorted(rows)),
        "phase_times": json.dumps({"disagg": seconds, "colo": seconds}),
        "drift": json.dumps({"seed": 1, "jobs": {"job0": {"extent": 1.0, "rollout_steps": [100.0, 150.0]}}}),
    }
    chosen = ["trace", *rng.sample(["phase_times", "drift"], rng.randrange(3))]
    for name in chosen:
        (folder / name).write_text(files[name])
    broken = folder / rng.choice(chosen)
    if rng.random() < 0.7:
        broken.write_text(damaged.text(files[broken.name], rng), errors="surrogatepass")
    else:
        damaged.file(broken, rng)
    words = [word for name in chosen for word in ("--set", f"{name}={name}")]
    more = [word for _ in range(rng.randrange(2)) for word in ("--set", setting(rng))]
    return FuzzCase("trace of the authors", ("workload", "authors", *words, *more, "--out", "a.yaml"))


def setting(rng: random.Random) -> str:
    """Return a setting of a workload with a good, wrong or damaged value."""
    key, _, value = rng.choice(OPTIONS).partition("=")
    kind = rng.randrange(3)
    return f"{key}={(value, json.dumps(rng.choice(damaged.VALUES)), damaged.text(value, rng))[kind]}".replace("\0", "")[:1000]


def settings(rng: random.Random, folder: Path) -> FuzzCase:
    """Make a workload with settings that may be wrong."""
    words = [word for _ in range(rng.choice([1, 1, 2, 4])) for word in ("--set", setting(rng))]
    few = ("--set", "jobs=5") if not any(word.startswith("jobs=") for word in words) and rng.random() < 0.9 else ()
    name = rng.choice(["production", "mixed", "micro-temporal", "rollout-heavy", "nothing"])
    return FuzzCase(
        "--set of workloads", ("workload", name, *words, *few, "--out", rng.choice(["a.yaml", "a.json", "no/a.json", "."]))
    )


def arguments(rng: random.Random, folder: Path) -> FuzzCase:
    """Run commands with random arguments."""
    shutil.copy(ROOT / "examples" / "quickstart.yaml", folder / "a.yaml")
    words = [rng.choice(WORDS[:14]), *rng.choices(WORDS, k=rng.randrange(6))]
    return FuzzCase("arguments", tuple(named(rng, (word,)) for word in words) if rng.random() < 0.3 else tuple(words))


def policy_name(rng: random.Random, folder: Path) -> FuzzCase:
    """Run a benchmark with a damaged name of a policy, or with wrong values in it."""
    shutil.copy(ROOT / "examples" / "quickstart.yaml", folder / "a.yaml")
    value = rng.choice(
        [json.dumps(rng.choice(damaged.VALUES))[:500], *["0", "1", "2", "60", "0.5", "-1", "true", "false", "nan", "1e300"]]
    )
    known = rng.choice(KEYS)
    if known == "regroup,every_s=" and value in ("1", "2"):
        value = "60"  # a search in each second of a working day is legal, and takes minutes
    name = known + value if rng.random() < 0.5 else damaged.text(rng.choice([known, *POLICIES]), rng)
    option = rng.choice(["-p", "-p", "-p", "--dispatch", "--rollout-policy"])
    return FuzzCase("policy string", ("bench", "a.yaml", option, name.replace("\0", "")))


def training(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage a training configuration."""
    source = rng.choice(sorted((ROOT / "trainers" / "presets").glob("*.yaml")))
    name = written(rng, source, folder)
    changed = damaged.tree({"steps": 10, "ppo.copies": 4, "environment.options": {"jobs": 3}, "widths": [4]}, rng)
    pairs = changed if isinstance(changed, dict) else {}
    words = [word for key, value in pairs.items() for word in ("--set", f"{key}={json.dumps(value)}"[:1000])]
    return FuzzCase("training configuration", ("train", name, *(words if rng.random() < 0.4 else ()), "--out", "out"), starts=True)


def checkpoint(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage the checkpoint of a training, or of a run whose journal is checked."""
    if rng.random() < 0.5:
        run = folder / "run"
        shutil.copytree(FIXTURES / "finished-run", run)
        damaged.file(rng.choice([path for path in run.glob("checkpoints/*/*/*") if path.is_file()]), rng)
        return FuzzCase("checkpoint", ("journal", "check", "run"))
    place = folder / "out" / "seed-0"
    place.mkdir(parents=True)
    (place / "checkpoint.safetensors").write_bytes(halfway())
    config = read_config("toy", TRAINING)
    damaged.dumped(config.model_dump(mode="json"), folder / "a.json")
    (folder / "out" / "config.json").write_text(config.model_dump_json())
    if rng.random() < 0.2:
        damaged.file(folder / "out" / "config.json", rng)
    damaged.file(place / "checkpoint.safetensors", rng)
    return FuzzCase("checkpoint", ("train", "a.json", "--resume", "--out", "out"), starts=True)


def run_folder(rng: random.Random, folder: Path) -> Path:
    """Copy the folder of a run or service into a case, and return it."""
    shutil.copytree(FIXTURES / rng.choice(["finished-run", "interrupted-run", "service"]), folder / "run")
    (folder / "run" / "logs" / "a").mkdir(parents=True)
    (folder / "run" / "logs" / "a" / "controller.log").write_text("iteration 1 of 4\n")
    return folder / "run"


def reading(rng: random.Random, kind: str) -> FuzzCase:
    """Return a case that reads the folder of a run."""
    words = rng.choice(READS).split()
    return FuzzCase(kind, (*words, "run"), starts=words[0] in ("run", "serve"))


def journal_bytes(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage the bytes of a journal."""
    damaged.file(run_folder(rng, folder) / "journal.sqlite", rng)
    return reading(rng, "journal, bytes")


def journal_rows(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage facts of a journal."""
    damaged.rows(run_folder(rng, folder) / "journal.sqlite", rng)
    return reading(rng, "journal, rows")


def service_file(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage the file that says where a service is."""
    path = run_folder(rng, folder) / "service.json"
    where = {"address": "127.0.0.1:1", "actor": "x", "namespace": "n", "token": "t", "ray": "/tmp", "device": 1, "inode": 2}
    damaged.dumped(damaged.tree(where, rng), path)
    if rng.random() < 0.5:
        damaged.file(path, rng)
    command = rng.choice(["status --at", "cancel a --at", "logs a --follow --at", "serve", "submit two_jobs.yaml --at"])
    shutil.copy(ROOT / "examples" / "two_jobs.yaml", folder)
    return FuzzCase("service.json", (*command.split(), "run"), starts=command.startswith("serve"))


def note(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage the note about a run's Ray, which the next command reads before it ends processes and removes folders."""
    run = run_folder(rng, folder)
    (folder / "theirs").mkdir()
    (folder / "theirs" / "kept").write_text("not ours")
    status = (folder / "theirs").stat()
    note: Any = {"path": str(folder / "theirs"), "device": status.st_dev, "inode": status.st_ino}
    damaged.dumped(note if rng.random() < 0.3 else damaged.tree(note, rng), run / "ray")
    if rng.random() < 0.5:
        damaged.file(run / "ray", rng)
    return FuzzCase("note of a Ray", ("run", "--resume", "run", *rng.choice([(), ("--compare", "solo")])), starts=True)


def weights(rng: random.Random, folder: Path) -> FuzzCase:
    """Damage a policy file, or files with a model's shape or response lengths that a scenario names."""
    if rng.random() < 0.5:
        shutil.copy(FIXTURES / "policy.safetensors", folder)
        damaged.file(folder / "policy.safetensors", rng)
        shutil.copy(ROOT / "examples" / "quickstart.yaml", folder / "a.yaml")
        option = rng.choice(["-p", "-p", "--dispatch"])
        return FuzzCase("weights", ("bench", "a.yaml", option, f"learned:{folder / 'policy.safetensors'}"))
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100}
    data = read_mapping(ROOT / "examples" / "models.yaml")
    data["jobs"][0] |= {
        "model": "config.json",
        "lengths": {"cap": 8192, "batch": 256, "prompt_tokens": 1024, "file": "lengths.txt"},
    }
    damaged.dumped(damaged.tree(config, rng), folder / "config.json")
    (folder / "lengths.txt").write_text(damaged.text("100\n2000\n300\n" * 9, rng), errors="surrogatepass")
    if rng.random() < 0.3:
        damaged.file(folder / rng.choice(["config.json", "lengths.txt"]), rng)
    damaged.dumped(data, folder / "a.json")
    return FuzzCase("weights", ("plan", "a.json"))


Maker = Callable[[random.Random, Path], FuzzCase]
KINDS: dict[str, tuple[Maker, int]] = {
    "scenario": (scenario, 20),
    "job file": (job_file, 15),
    "prompts": (prompts, 4),
    "trace of arrivals": (arrivals, 6),
    "trace of the authors": (authors, 6),
    "--set of workloads": (settings, 8),
    "policy string": (policy_name, 8),
    "arguments": (arguments, 6),
    "training configuration": (training, 6),
    "checkpoint": (checkpoint, 6),
    "journal, bytes": (journal_bytes, 10),
    "journal, rows": (journal_rows, 20),
    "service.json": (service_file, 6),
    "note of a Ray": (note, 5),
    "weights": (weights, 8),
}
