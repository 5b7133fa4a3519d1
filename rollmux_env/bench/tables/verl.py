"""verl's fully asynchronous policy against its colocated trainer, on H20; a line that is printed several times is here once.

verl-project/verl, verl/experimental/fully_async_policy/README.md at commit 0351589fc034; parallelism, caps and mini-batches from
the scripts in its folder `shell`, at commit 709c8dfb87fd.
"""

from __future__ import annotations

from rollmux_env.bench.tables.table import NotCovered, Row, Table
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.rl_job import Batch, RlJob, Workers
from rollmux_env.timing.streaming import Stream

GPU = "H20"
PROMPT_TOKENS = 200
MATH = (420.0, 1.05)  # median and sigma of a response: assumed
MIXTURE = (1000.0, 0.9)
TOOLS = (3500.0, 0.8)
TOOL_S = 6.0  # of a call and its queue: assumed
TURNS = 8  # of a response, on average, of 16 at most: assumed
SERVER_PROMPTS = 16  # that a rollout server decodes at once

# name: GPUs; step, gen, old_log_prob, update_actor
_COLOCATED = {32: (790.10, 357.41, 107.71, 269.80), 64: (365.28, 150.72, 70.26, 133.41), 128: (356.30, 177.85, 53.92, 113.81)}
# GPUs of each side, prompts fetched at once, staleness: step, gen, update_actor
_STREAMED = {
    (16, 128, 0.5): (294.77, 21.26, 313.81),
    (32, 128, 0.5): (189.26, 28.46, 156.98),
    (64, 128, 0.5): (150.63, 33.14, 113.16),
    (64, 128, 0.0): (231.34, 128.47, 98.77),
    (64, 128, 0.1): (171.30, 58.17, 109.12),
    (64, 128, 0.3): (146.11, 38.88, 103.22),
}
# The ablation of require_batches: prompts fetched at once: step, gen, update_actor
_FETCHED = {32: (203.47, 30.88, 181.08), 64: (158.72, 26.32, 128.08), 128: (124.64, 25.62, 95.06)}


def _math(updates: int = 16, cap: int = 28) -> Batch:
    return Batch(512, 16, updates, PROMPT_TOKENS, Lognormal(1024 * cap, *MATH))


def _stream(batch: Batch, servers: int, fetched: int, staleness: float) -> Stream:
    return Stream(batch.prompts // fetched, staleness, min(SERVER_PROMPTS * servers, int(batch.prompts * (1 + staleness))))


def _dapo(gpus: int, fetched: int, staleness: float) -> RlJob:
    workers = Workers(GPU, gpus, 4)
    return RlJob("7B", workers, workers, _math(), (), stream=_stream(_math(), workers.copies, fetched, staleness))


def _named(phases: tuple[str, ...], seconds: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(phases, seconds, strict=True))


_SYNC = ("step", "gen", "old_log_prob", "update")
_ASYNC = ("step", "gen", "update")


def _dapo_rows() -> list[Row]:
    rows = []
    for gpus, colocated_s in _COLOCATED.items():
        workers = Workers(GPU, gpus, 4)
        rows.append(Row(f"7B-28k colocated, {gpus}", GPU, _named(_SYNC, colocated_s), RlJob("7B", workers, workers, _math())))
    for (gpus, fetched, staleness), seconds in _STREAMED.items():
        name = f"7B-28k streamed, {gpus}:{gpus}, staleness {staleness:g}"
        rows.append(Row(name, GPU, _named(_ASYNC, seconds), _dapo(gpus, fetched, staleness)))
    for fetched, seconds in _FETCHED.items():
        name = f"7B-28k streamed, 64:64, {fetched} at once"
        rows.append(Row(name, GPU, _named(_ASYNC, seconds), _dapo(64, fetched, 0.5)))
    return rows


def _mixture_rows() -> list[Row]:
    batch = Batch(512, 16, 4, PROMPT_TOKENS, Lognormal(8192, *MIXTURE))
    both = Workers(GPU, 128, 4, eager=True)
    colocated = RlJob("30B-A3B", both, both, batch, ("old_log_prob", "ref"))
    seconds = _named(("step", "gen", "old_log_prob", "ref", "update"), (497.89, 348.05, 28.73, 20.86, 86.27))
    rollout = Workers(GPU, 96, 4, eager=True)
    streamed = RlJob("30B-A3B", rollout, Workers(GPU, 32, 4), batch, ("ref",), stream=_stream(batch, rollout.copies, 128, 0.5))
    return [
        Row("30B-A3B-8k colocated, 128", GPU, seconds, colocated),
        Row(
            "30B-A3B-8k streamed, 96:32",
            GPU,
            _named(("step", "gen", "ref", "update"), (282.75, 22.06, 50.05, 206.63)),
            streamed,
        ),
    ]


def _validated_rows() -> list[Row]:
    batch = _math(cap=10)
    both, half = Workers(GPU, 16), Workers(GPU, 8)
    return [
        Row("7B-10k colocated, 16", GPU, _named(_ASYNC, (484.623, 52.939, 430.263)), RlJob("7B", both, both, batch, ())),
        Row(
            "7B-10k streamed, 8:8",
            GPU,
            _named(_ASYNC, (489.953, 52.622, 435.874)),
            RlJob("7B", half, half, batch, (), stream=_stream(batch, half.copies, 128, 0.5)),
        ),
    ]


def _tool_rows() -> list[Row]:
    batch = Batch(64, 16, 4, PROMPT_TOKENS, Lognormal(16384, *TOOLS), TURNS, TOOL_S)
    both, half = Workers(GPU, 32, 4), Workers(GPU, 16, 4)
    streamed = RlJob("7B", half, half, batch, (), stream=_stream(batch, half.copies, 16, 1.0))
    return [
        Row("7B-16k tools colocated, 32", GPU, _named(_SYNC, (375.47, 228.03, 35.19, 111.84)), RlJob("7B", both, both, batch)),
        Row("7B-16k tools streamed, 16:16", GPU, _named(_ASYNC, (221.36, 40.59, 179.58)), streamed),
    ]


TABLE = Table(
    "verl",
    "verl-project/verl, verl/experimental/fully_async_policy/README.md at 0351589fc034",
    (*_dapo_rows(), *_mixture_rows(), *_validated_rows(), *_tool_rows()),
    (
        NotCovered(59, "total times of 50 to 400 steps", "sums of the steps above, with validations of unstated size"),
        NotCovered(2, "validation of 7B-10k", "the number of responses is not printed"),
        NotCovered(2, "old_log_prob of 7B-10k, printed as 0", "there is no such phase"),
        NotCovered(6, "syncs with and without the checkpoint engine", "the links of the machines are not printed"),
    ),
    (
        "response lengths are not published; one lognormal a job is assumed, chosen with the model on this table.",
        "128 at once has the total times of staleness 0.5, so it is its first 300 steps of 400: 17% faster, as lengths drift.",
        "the two lines of 7B-10k differ by 1% though one has half the GPUs of the other in each phase; both are taken as printed.",
    ),
)
