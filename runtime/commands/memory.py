"""What `rollmux run` says of the memory that jobs will take, before it starts any: tables, and a line where it will not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.report.tables import heading, make_table
from runtime.execution.forecast import Forecast, Limits, check_memory, forecasts, limits
from runtime.execution.pools import gpu_memory_gb
from runtime.jobs.spec import JobSpec
from runtime.machine import Node, Pool

_NOTE = (
    "predicted for responses as long as they may be, beside what a process and CUDA take for themselves; "
    "KV cache: of one response; vLLM takes a fixed share of the device"
)


def foresee(specs: Sequence[JobSpec], nodes: Sequence[Node], here: bool, say: Callable[[str], None]) -> RenderableType | None:
    """What jobs will take; None where none is of the built-in kind.

    Args:
        here: the nodes are on this machine, whose GPUs can be asked. say: is told where memory may not do.

    Raises:
        InputError: it cannot, whatever is trained on; one line.
    """
    expected = forecasts(specs, nodes)
    if not expected:
        return None
    there = limits(nodes, gpu_memory_gb(nodes, here))
    check_memory(expected, there, say)
    return memory_tables(expected, there)


def memory_tables(expected: Sequence[Forecast], there: dict[Pool, Limits]) -> RenderableType:
    """What jobs will take, GB: a table for each pool."""
    kinds = ("state", "gathered", "activations", "they are", "log-probs", "peak", "of", "waiting", "loading", "of a node")
    training = make_table("job", "parameters", "ranks", "tokens", "in", *kinds)
    rollouts = make_table("job", "engines", "in", "weights", "KV cache", "device", "of", "asleep", "staged", "of a node")
    for one in expected:
        peak, sampling = one.training, one.sampling
        training.add_row(
            one.spec.id,
            f"{one.size.parameters / 1e6:,.1f} M",
            str(one.ranks),
            f"{peak.tokens:,}",
            _number(one.on_gpu["training"]),
            *_gb(peak.state, peak.gathered, peak.activations),
            "recomputed" if peak.recomputed else "kept",
            *_gb(peak.logprobs, peak.device),
            _limit(there["training"].device_gb),
            *_gb(one.on_node["training"] * max(peak.waiting, peak.host), peak.loading),
            _limit(there["training"].node_gb),
        )
        rollouts.add_row(
            one.spec.id,
            str(one.engines * one.spec.rollout.nodes),
            _number(one.on_gpu["rollout"]),
            *_gb(sampling.weights, sampling.cache, sampling.device),
            _limit(there["rollout"].device_gb),
            *_gb(one.engines * sampling.asleep, one.engines * sampling.staged),
            _limit(there["rollout"].node_gb),
        )
    titles = (
        "Memory of training: a rank at the peak of an update, and host memory, GB",
        "Memory of rollouts: an engine at least, GB",
    )
    return Group(heading(titles[0]), training, heading(titles[1]), rollouts, Text(_NOTE, style="dim"))


def _number(on_gpu: bool) -> str:
    return "bf16" if on_gpu else "float32"


def _gb(*sizes: int) -> list[str]:
    return [f"{size / 1e9:.2f}" for size in sizes]


def _limit(there_gb: float | None) -> str:
    return "" if there_gb is None else f"{there_gb:.1f}"
