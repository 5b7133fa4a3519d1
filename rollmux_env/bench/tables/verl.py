"""verl's fully asynchronous policy against its colocated trainer, on H20; a line that is printed several times is here once.

verl-project/verl, verl/experimental/fully_async_policy/README.md at commit 0351589fc034; parallelism, caps and mini-batches from
the scripts in its folder `shell`, at commit 709c8dfb87fd.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def _math(cap: int = 28) -> Batch:
    return Batch(512, 16, 16, PROMPT_TOKENS, Lognormal(1024 * cap, *MATH))


def _stream(batch: Batch, servers: int, fetched: int, staleness: float) -> Stream:
    return Stream(batch.prompts // fetched, staleness, min(SERVER_PROMPTS * servers, int(batch.prompts * (1 + staleness))))


_SYNC = ("step", "gen", "old_log_prob", "update")
_ASYNC = ("step", "gen", "update")


def _row(name: str, phases: tuple[str, ...], seconds: tuple[float, ...], job: RlJob) -> Row:
    return Row(name, GPU, dict(zip(phases, seconds, strict=True)), job)


def _dapo(name: str, gpus: int, fetched: int, staleness: float, seconds: tuple[float, ...]) -> Row:
    workers = Workers(GPU, gpus, 4)
    job = RlJob("7B", workers, workers, _math(), (), stream=_stream(_math(), workers.copies, fetched, staleness))
    return _row(f"7B-28k streamed, {gpus}:{gpus}, {name}", _ASYNC, seconds, job)


def _rows() -> Iterator[Row]:
    for gpus, seconds in _COLOCATED.items():
        both = Workers(GPU, gpus, 4)
        yield _row(f"7B-28k colocated, {gpus}", _SYNC, seconds, RlJob("7B", both, both, _math()))
    for (gpus, fetched, staleness), streamed_s in _STREAMED.items():
        yield _dapo(f"staleness {staleness:g}", gpus, fetched, staleness, streamed_s)
    for fetched, streamed_s in _FETCHED.items():
        yield _dapo(f"{fetched} at once", 64, fetched, 0.5, streamed_s)

    batch, both = Batch(512, 16, 4, PROMPT_TOKENS, Lognormal(8192, *MIXTURE)), Workers(GPU, 128, 4, eager=True)
    scored, mixture_s = ("old_log_prob", "ref"), (497.89, 348.05, 28.73, 20.86, 86.27)
    colocated = RlJob("30B-A3B", both, both, batch, scored)
    yield _row("30B-A3B-8k colocated, 128", ("step", "gen", *scored, "update"), mixture_s, colocated)
    rollout, stream = Workers(GPU, 96, 4, eager=True), _stream(batch, 24, 128, 0.5)
    streamed = RlJob("30B-A3B", rollout, Workers(GPU, 32, 4), batch, ("ref",), stream=stream)
    yield _row("30B-A3B-8k streamed, 96:32", ("step", "gen", "ref", "update"), (282.75, 22.06, 50.05, 206.63), streamed)

    batch, both, half = _math(cap=10), Workers(GPU, 16), Workers(GPU, 8)
    yield _row("7B-10k colocated, 16", _ASYNC, (484.623, 52.939, 430.263), RlJob("7B", both, both, batch, ()))
    streamed = RlJob("7B", half, half, batch, (), stream=_stream(batch, half.copies, 128, 0.5))
    yield _row("7B-10k streamed, 8:8", _ASYNC, (489.953, 52.622, 435.874), streamed)

    batch = Batch(64, 16, 4, PROMPT_TOKENS, Lognormal(16384, *TOOLS), TURNS, TOOL_S)
    both, half = Workers(GPU, 32, 4), Workers(GPU, 16, 4)
    yield _row("7B-16k tools colocated, 32", _SYNC, (375.47, 228.03, 35.19, 111.84), RlJob("7B", both, both, batch))
    streamed = RlJob("7B", half, half, batch, (), stream=_stream(batch, half.copies, 16, 1.0))
    yield _row("7B-16k tools streamed, 16:16", _ASYNC, (221.36, 40.59, 179.58), streamed)


TABLE = Table(
    "verl",
    "verl-project/verl, verl/experimental/fully_async_policy/README.md at 0351589fc034",
    (*_rows(),),
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
