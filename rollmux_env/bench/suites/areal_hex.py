"""`areal-hex`: GPUs of two types for one asynchronous job (AReaL-Hex, arXiv 2511.00796), beside the paper's figures."""

from __future__ import annotations

from rollmux_env.bench.allocations import CHEAPER, GAIN, AllocationCase, GapCase, columns
from rollmux_env.bench.suite import Suite
from rollmux_env.timing.allocation import Budget
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.work import Work

H800, H20 = "H800-areal-hex", "H20-areal-hex"
ALL_H800, ALL_H20 = "all H800", "all H20"
AGAINST = (ALL_H800, ALL_H20)
STALENESS = 4

# Model -> throughput over the best homogeneous split of the same budget: of H800, of H20.
GAINS = {"1.5B": (1.36, 2.80), "7B": (1.31, 2.76), "14B": (1.50, 2.29)}
CHEAPER_BY = 1.46  # 8 H800 + 24 H20, $86.64/h, against 24 H800, $126.72/h

_MIXED, _H800, _H20 = Budget({H800: 24, H20: 24}), Budget({H800: 32}), Budget({H20: 88})
_SMALL, _EQUAL = Budget({H800: 8, H20: 24}), Budget({H800: 24})
_GAP_BUDGETS = ((8, 8), (16, 8), (8, 16), (16, 16), (24, 8))

_CACHE = {False: "", True: ", cache read"}  # whether decoding pays for reading the KV cache, which the paper's model leaves out


def _work(size: str, staleness: int = STALENESS, responses: int = 8192, reads_cache: bool = True) -> Work:
    return Work(SHAPES[size], responses, staleness=staleness, reads_cache=reads_cache)


def _same_budget(size: str, reads_cache: bool = False) -> str:
    return f"{size}, same budget{_CACHE[reads_cache]}"


def _same_throughput(size: str, reads_cache: bool = False) -> str:
    return f"{size}, same throughput{_CACHE[reads_cache]}"


_BUDGETS = tuple(
    AllocationCase(
        _same_budget(size, reads_cache),
        _work(size, reads_cache=reads_cache),
        {
            "hex": ("hex", _MIXED),
            "exhaustive": ("exhaustive", _MIXED),
            "uniform": ("uniform", _MIXED),
            ALL_H800: ("exhaustive", _H800),
            ALL_H20: ("exhaustive", _H20),
        },
        AGAINST,
    )
    for reads_cache in _CACHE
    for size in GAINS
)
_THROUGHPUTS = tuple(
    AllocationCase(
        _same_throughput(size, reads_cache),
        _work(size, reads_cache=reads_cache),
        {"hex": ("hex", _SMALL), ALL_H800: ("exhaustive", _EQUAL)},
        (ALL_H800,),
    )
    for reads_cache in _CACHE
    for size in GAINS
)
_GAPS = tuple(
    GapCase(
        f"{first} H800 + {second} H20, staleness {staleness}",
        tuple(_work(size, staleness, responses) for size in GAINS for responses in (256, 8192)),
        Budget({H800: first, H20: second}),
    )
    for first, second in _GAP_BUDGETS
    for staleness in (0, STALENESS)
)
CASES: tuple[AllocationCase | GapCase, ...] = (*_BUDGETS, *_THROUGHPUTS, *_GAPS)

SUITE = Suite(
    name="areal-hex",
    title="GPUs of two types for one asynchronous job, by the paper's peaks and prices",
    source="AReaL-Hex, arXiv 2511.00796",
    cases=(),
    columns=columns(AGAINST),
    paper={
        **{
            (_same_budget(size), "hex", GAIN.format(name)): gain
            for size, gains in GAINS.items()
            for name, gain in zip(AGAINST, gains, strict=True)
        },
        **{(_same_throughput(size), "hex", CHEAPER.format(ALL_H800)): CHEAPER_BY for size in GAINS},
    },
    differences=(
        "same budget: 24 H800 + 24 H20 at $171.12/h against 32 H800 and 88 H20, whole machines that cost no more. Which numbers "
        "of GPUs the paper's figures are of is not known to us.",
        "same throughput: 8 H800 + 24 H20 at $86.64/h against 24 H800 at $126.72/h. The paper's 1.46x is the ratio of the prices, "
        "of no model in particular; ours has what throughput differs by, too.",
        "Batch and lengths are assumed: 8,192 responses of 8,192 tokens on average, at most 27,648, to prompts of 1,024, in four "
        "updates. The paper measured systems; ours are seconds of a model, at 70% of the peak arithmetic and 80% of the bandwidth.",
        "over all H20: a dollar buys 1.79 times the arithmetic in H800, and less bandwidth. So by peaks and prices a budget of H20 "
        "is at most 1.79 times slower than one of H800; the paper's figures have it 2.06, 2.11 and 1.53 times slower.",
        "cache read: the paper's model leaves out that decoding reads the KV cache. With it rollouts of this length weigh more, "
        "and H20 alone comes nearer, or gives more for its dollars than the mixture.",
        "planner CPU s: the paper's takes 15 to 120 s for 24 to 56 GPUs. Here all training plans are timed once, and the "
        "equivalent integer program of the rollout has few columns, as kinds of replicas that others replace are left out.",
        "iteration over exhaustive's: the largest of 1.5B, 7B and 14B, with 256 and 8,192 responses.",
    ),
    seeds=1,
)
