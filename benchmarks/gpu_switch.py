"""Cold and warm start of a rollout on a GPU, stage by stage, for Qwen2.5 shapes of random parameters.

python benchmarks/gpu_switch.py [--shape 0.5b 1.5b] [--engine torch vllm] [--minutes 8]

Each model runs in a new process: import, load, first tokens; then offload, restore, and restore with weights that were staged
meanwhile, also after the old weights were dropped (vLLM's sleep level 2), as medians of three; and 128 responses of 256 tokens,
each with a seed and, with vLLM, also without seeds. Bandwidths are shown with that of one plain copy of page-locked memory, which
is what the bus can do. Then two engines of the model, each in its process, take turns. Rows are printed as they come. A line names
what is missing or does not fit, and is left out. The benchmark ends when the minutes are over. Without a CUDA device, a tiny model
on the CPU shows that it works.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_parts import (
    COLUMNS,
    MEASURE,
    PROMPTS,
    ROUNDS,
    Child,
    Laps,
    PrintedTable,
    TimeBudget,
    announce,
    bus,
    cells,
    device_free,
    make_model_apart,
    parser,
    say,
)

KINDS = ("torch", "vllm")
TURNS = 10
SAMPLED = 128, 256  # number of responses, and tokens of each
WAYS = {
    "offload": "to host",
    "restore": "to device",
    "restore with staged weights": "to device",
    "restore of dropped weights": "to device",
}


def measure(kind: str, folder: Path) -> None:
    """Measure one engine. Then carry out each line of the standard input: `restore` or `offload`."""
    from runtime.engines.interface import Sampling

    engine, first = cold(kind, folder), Sampling(temperature=0, max_tokens=1)
    warm(engine, folder)
    engine.offload()
    say("done")
    for line in sys.stdin:
        laps = Laps()
        if line.strip() == "restore":
            engine.restore()
            engine.generate(PROMPTS, first)
        else:
            engine.offload()
        laps.lap("turn")
    engine.close()


def cold(kind: str, folder: Path) -> Any:
    """Return an engine that is made in this process, which must have done nothing before, and measure the stages."""
    laps = Laps()
    from runtime.engines import make_engine
    from runtime.engines.interface import Sampling

    if kind == "vllm":
        import vllm  # noqa: F401
    else:
        import transformers  # noqa: F401
    laps.lap("import")
    engine = make_engine(kind, folder, max_length=2048, seed=0, threads=1, tensor_parallel=1)  # type: ignore[arg-type]
    laps.lap("load")
    engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=1))
    laps.lap("first tokens, cold")
    return engine


def warm(engine: Any, folder: Path) -> None:
    """Measure the stages of warm switches."""
    from runtime.engines.interface import Sampling
    from runtime.engines.model_files import read_model_files
    from runtime.residency.staging import WeightLayout, WeightStage, pieces

    new = dict(read_model_files(folder).tensors())
    layout, stage, rounds = WeightLayout.of(new), WeightStage(pinned=device_free() > 0), []
    stage.begin(layout, 1)
    for offset, piece in pieces(new, layout):
        stage.receive(1, offset, piece)
    for _ in range(ROUNDS):
        free, laps, one = device_free(), Laps(), dict[str, float]()
        away = engine.offload()
        one["offload"] = laps.taken()
        freed = device_free() - free
        laps.start()
        engine.restore()
        one["restore"] = laps.taken()
        engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=1))
        one["first tokens, warm"] = laps.taken()
        engine.offload()
        laps.start()
        engine.restore(stage.weights(), stage.version)
        one["restore with staged weights"] = laps.taken()
        engine.offload(drop=True)
        one["offload, weights dropped"] = laps.taken()
        engine.restore(stage.weights(), stage.version)
        one["restore of dropped weights"] = laps.taken()
        rounds.append(one)
    stage.close()
    moved = dict.fromkeys(WAYS, layout.nbytes) | {"offload": away.host, "restore": away.host}
    for name in rounds[0]:
        say(name, s=sorted(one[name] for one in rounds)[ROUNDS // 2], bytes=moved.get(name, 0))
    say("device memory given back", bytes=freed)
    for seeded in (True, False) if hasattr(engine, "_seeded") else (True,):
        engine._seeded = seeded  # noqa: SLF001
        sample(engine, "sampling" if seeded else "sampling without seeds")


def sample(engine: Any, name: str) -> None:
    """Measure the tokens per second of a batch, after one that is not counted."""
    from runtime.engines.interface import Sampling

    count, tokens = SAMPLED
    prompts, times = [PROMPTS[row % len(PROMPTS)] for row in range(count)], []
    for _ in range(1 + ROUNDS):
        laps = Laps()
        engine.generate(prompts, Sampling(max_tokens=tokens, ignore_end=True))
        times.append(laps.taken())
    seconds = sorted(times[1:])[ROUNDS // 2]
    say(name, s=seconds, tokens_per_s=count * tokens / seconds)


def main() -> None:
    """Measure all models and engines, or one of them in the process that was started for it."""
    if sys.argv[1:2] == [MEASURE]:
        measure(sys.argv[2], Path(sys.argv[3]))
        return
    arguments = parser(__doc__, ["0.5b", "1.5b", "7b"])
    arguments.add_argument("--engine", nargs="+", choices=KINDS, default=KINDS, help="both where it is not said")
    asked = arguments.parse_args()
    budget, kinds = TimeBudget(asked.minutes), usable(asked.engine)
    rates = bus()
    rows = PrintedTable("model", "engine", *COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        for size in asked.shape:
            folder = Path(name) / size
            if why := make_model_apart(folder, size, budget):
                print(f"{size}: left out: {why}", flush=True)
                continue
            for kind in kinds:
                switches(rows, size, kind, folder, budget, rates)


def usable(kinds: list[str]) -> list[str]:
    """Return the engines that can be used here, and print a line about the others."""
    from runtime.engines import vllm_problem

    cuda = announce()
    problem = vllm_problem(cuda) if "vllm" in kinds else None
    if problem:
        print(f"vllm: left out: {problem}", flush=True)
    return [kind for kind in kinds if kind != "vllm" or not problem]


def switches(rows: PrintedTable, size: str, kind: str, folder: Path, budget: TimeBudget, rates: dict[str, float]) -> None:
    """Measure one engine's cold and warm starts, then two engines in turns, and add the rows."""
    pair = [Child(__file__, (kind, str(folder)), budget)]
    for figures in pair[0].figures():
        rows.add(size, kind, *cells(figures, WAYS, rates))
    problem = pair[0].problem
    if not problem:
        pair.append(Child(__file__, (kind, str(folder)), budget))
        for _ in pair[1].figures():
            pass
        problem = pair[1].problem or take_turns(rows, size, kind, pair)
    for one in pair:
        one.close()
    if problem:
        print(f"{size} {kind}: cut off: {problem}", flush=True)


def take_turns(rows: PrintedTable, size: str, kind: str, pair: list[Child]) -> str:
    """Let two engines use one device in turns. Returns why they could not, or an empty text."""
    taken: dict[str, list[float]] = {"restore": [], "offload": []}
    for turn in range(TURNS):
        for what, all_seconds in taken.items():
            seconds = pair[turn % 2].ask(what)
            if seconds is None:
                return "one of two engines in turns has ended"
            all_seconds.append(seconds)
    for what, all_seconds in taken.items():
        rows.add(size, kind, f"{f'{what} of two in turns':<27}", f"{sorted(all_seconds)[TURNS // 2]:.2f}")
    return ""


if __name__ == "__main__":
    main()
