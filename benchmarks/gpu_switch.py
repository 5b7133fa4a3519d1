"""Cold and warm start of a rollout on a GPU, stage by stage, for Qwen2.5 shapes of 1.5B to 7B random parameters.

python benchmarks/gpu_switch.py

Each model in a process of its own: import, load, first tokens; then offload, restore, and restore with weights that were staged
meanwhile. The bandwidths stand beside that of one plain copy of page-locked memory, which is what the bus gives. At last two
engines of the smallest model, each in its process, take turns on one GPU. Without a CUDA device there is nothing to measure, and
it says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.table import Table

from rollmux_env.report.tables import show

SHAPES: dict[str, dict[str, Any]] = {
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "heads": (12, 2), "tied": True},
    "3B": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "heads": (16, 2), "tied": True},
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "heads": (28, 4), "tied": False},
}
KINDS = ("vllm", "torch")
PROMPTS = [[100 + row, 200, 300, 400] for row in range(32)]
ROUNDS = 3  # warm switches of each kind; the median is shown


def make_model(folder: Path, shape: dict[str, Any], vocabulary: int = 151936) -> None:
    """Write a Hugging Face directory with random weights, bfloat16."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads, key_value_heads = shape["heads"]
    config = Qwen2Config(
        vocab_size=vocabulary,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        tie_word_embeddings=shape["tied"],
        max_position_embeddings=4096,
        **{name: shape[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)


class Laps:
    """A stopwatch that names its laps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = perf_counter()

    def start(self) -> None:
        """Leave out what happened since the last lap."""
        self._began = perf_counter()

    def lap(self, name: str) -> None:
        """The time since the last lap or start."""
        now = perf_counter()
        self.seconds[name], self._began = now - self._began, now


def cold(kind: str, folder: Path) -> tuple[Any, dict[str, float]]:
    """An engine made in this process, and the seconds of each stage until its first tokens."""
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
    return engine, laps.seconds


def warm(engine: Any, folder: Path) -> dict[str, float]:
    """Median seconds of each stage of a warm switch, and bytes."""
    from runtime.engines.interface import Sampling
    from runtime.engines.model_files import read_model_files
    from runtime.residency.staging import Layout, WeightStage, pieces

    new = dict(read_model_files(folder).tensors())
    layout, stage, rounds = Layout.of(new), WeightStage(pinned=device_free() > 0), []
    stage.begin(layout, 1)
    for offset, piece in pieces(new, layout):
        stage.receive(1, offset, piece)
    for _ in range(ROUNDS):
        free, laps = device_free(), Laps()
        away = engine.offload()
        laps.lap("offload")
        freed = device_free() - free
        laps.start()
        engine.restore()
        laps.lap("restore")
        engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=1))
        laps.lap("first tokens, warm")
        engine.offload()
        laps.start()
        engine.restore(stage.weights(), stage.version)
        laps.lap("restore with staged weights")
        rounds.append(laps.seconds | {"weights": layout.nbytes, "freed": freed, "host": away.host})
    stage.close()
    return {name: sorted(one[name] for one in rounds)[ROUNDS // 2] for name in rounds[0]}


def device_free() -> int:
    """Free bytes of the GPU; 0 without one."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def bus() -> dict[str, float]:
    """Bytes per second of a copy of 1 GiB of page-locked memory, each way."""
    import torch

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


def child(kind: str, folder: Path) -> None:
    """Measure one engine and print it; then, line by line, what the parent asks for: `restore` or `offload`."""
    from runtime.engines.interface import Sampling

    engine, seconds = cold(kind, folder)
    seconds |= warm(engine, folder)
    engine.offload()
    print(json.dumps(seconds), flush=True)
    for line in sys.stdin:
        laps = Laps()
        if line.strip() == "restore":
            engine.restore()
            engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=1))
        else:
            engine.offload()
        laps.lap("s")
        print(json.dumps(laps.seconds), flush=True)
    engine.close()


class Child:
    """An engine in a process of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        command = [sys.executable, __file__, kind, str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds = self._read()

    def ask(self, what: str) -> float:
        """Seconds that it took to `restore` and sample, or to `offload`."""
        assert self._process.stdin
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._read()["s"]

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout
        for line in self._process.stdout:  # libraries may print too
            if line.startswith("{"):
                seconds: dict[str, float] = json.loads(line)
                return seconds
        raise SystemExit("an engine's process ended early; see above")


def switches(folder: Path) -> None:
    """Cold and warm start of every shape on every engine."""
    rates = bus()
    table = Table("model", "engine", "stage", "s", "GB", "GB/s", "bus GB/s")
    for size, shape in SHAPES.items():
        make_model_apart(folder / size, shape)
        for kind in KINDS:
            one = Child(kind, folder / size)
            one.close()
            for stage in ("import", "load", "first tokens, cold"):
                table.add_row(size, kind, stage, f"{one.seconds[stage]:.2f}", "", "", "")
            for stage, moved, way in (
                ("offload", "host", "to host"),
                ("restore", "host", "to device"),
                ("restore with staged weights", "weights", "to device"),
            ):
                seconds, size_bytes = one.seconds[stage], one.seconds[moved]
                rate = f"{size_bytes / seconds / 1e9:.1f}"
                table.add_row(size, kind, stage, f"{seconds:.2f}", f"{size_bytes / 1e9:.1f}", rate, f"{rates[way] / 1e9:.1f}")
            table.add_row(size, kind, "first tokens, warm", f"{one.seconds['first tokens, warm']:.2f}", "", "", "")
            table.add_row(size, kind, "device memory given back", "", f"{one.seconds['freed'] / 1e9:.1f}", "", "")
    show(table)


def turns(folder: Path) -> None:
    """Two engines of one model take turns on one GPU."""
    table = Table("engine", "turns", "restore and first tokens, median s", "offload, median s")
    for kind in KINDS:
        pair = [Child(kind, folder), Child(kind, folder)]
        taken: dict[str, list[float]] = {"restore": [], "offload": []}
        for turn in range(10):
            for what, seconds in taken.items():
                seconds.append(pair[turn % 2].ask(what))
        for one in pair:
            one.close()
        table.add_row(kind, "10", *(f"{sorted(seconds)[5]:.2f}" for seconds in taken.values()))
    show(table)


def make_model_apart(folder: Path, shape: dict[str, Any]) -> None:
    """`make_model` in a process of its own, which takes its device memory with it."""
    code = "import json, sys, pathlib, gpu_switch; gpu_switch.make_model(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, str(folder), json.dumps(shape)], check=True, cwd=Path(__file__).parent)


def main() -> None:
    import torch

    if len(sys.argv) == 3:
        child(sys.argv[1], Path(sys.argv[2]))
        return
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing to measure")
        return
    with tempfile.TemporaryDirectory() as folder:
        switches(Path(folder))
        turns(Path(folder) / next(iter(SHAPES)))


if __name__ == "__main__":
    main()
