"""Conversion of an allocator's plans into a job file for `rollmux run`, which says what of a plan a real run cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rollmux_env.allocation.allocation import Allocation
from rollmux_env.allocation.job import make_allocated_scenario
from rollmux_env.errors import InputError
from rollmux_env.files import yaml_text
from rollmux_env.keys.cluster import SIDES
from rollmux_env.scenario import Scenario
from rollmux_env.timing.stages import Replica

MODEL, TASK = "tiny", "count"  # placeholders that run anywhere
GROUP = 8  # responses to each prompt; fewer if this does not divide the responses
MAX_SEQUENCES = 4096  # of vLLM's `max_num_seqs` in job files


def run_file(name: str, folder: str | None, allocations: Sequence[Allocation]) -> str:
    """Return the text of a job file with one job, which executes the first of the plans; the others are its shapes.

    Nodes, staleness, the size of the engines and the batches are those of the plan. Model and task are placeholders where the plan
    does not know them. Comments at the head name them, and the parts of the plan that a real run cannot execute.

    Args:
        name: Identifier of the job.
        folder: Folder of the model, or None for the placeholder.
        allocations: One or more plans for the same work, with GPUs of one type on each side.

    Raises:
        InputError: A plan has GPUs of several types on one side, or an odd number of responses.
    """
    scenario = make_allocated_scenario(name, allocations)
    first, work = allocations[0], allocations[0].work
    replica = _engine(first)
    group = next((size for size in (GROUP, 4, 2) if work.responses % size == 0), None)
    if group is None:
        raise InputError(f"responses: must be even for a real run, which samples at least 2 for a prompt, not {work.responses}")
    job = scenario.jobs[0]
    lengths = {"max_prompt_tokens": work.prompt_tokens, "max_tokens": work.cap}
    options = {"max_num_seqs": min(max(1, replica.batch // len(replica.stages)), MAX_SEQUENCES)}
    values: dict[str, Any] = {
        "id": name,
        "iterations": job.iterations,
        "slo": job.slo,
        "staleness": work.staleness,
        "model": folder or MODEL,
        "task": TASK,
        "rollout": {
            "nodes": job.rollout.nodes,
            "tensor_parallel": replica.stages[0].gpus,
            "engine_options": options,
        },
        "training": {"nodes": job.training.nodes},
        "algorithm": {
            "prompts_per_iteration": work.responses // group,
            "group_size": group,
            "minibatches": work.updates,
            **(lengths if folder else {}),
        },
    }
    if shapes := list(_shapes(scenario)):
        values["shapes"] = shapes
    pools = {side: scenario.cluster.pools[side].model_dump(exclude_defaults=True) for side in SIDES}
    missing = "" if folder else f"the model ({MODEL}; with the folder of {name}, algorithm has {yaml_text(lengths).strip()}), "
    head = [
        "Job file for `rollmux run`, from a plan of `rollmux allocate`.",
        f"Placeholders: {missing}the task, iterations and slo.",
        *(f"A real run cannot do: {part}" for part in unexecuted(scenario, allocations)),
    ]
    return "".join(f"# {line}\n" for line in head) + yaml_text({"version": 1, "cluster": pools, "jobs": [values]})


def unexecuted(scenario: Scenario, allocations: Sequence[Allocation]) -> Iterator[str]:
    """Yield the parts of plans that a real run cannot execute, and what it does in their place."""
    first = allocations[0]
    training, replica, machine = first.training, _engine(first), first.budget.machine
    if len(replica.stages) > 1:
        yield f"{len(replica.stages)} pipeline stages of a rollout replica; its engines are as large as one stage"
    if len(first.replicas) > 1:
        yield f"{len(first.replicas)} kinds of rollout replicas side by side; all engines are of the most frequent kind"
    if len(training.stages) > 1 or training.stages[0].gpus > 1:
        parts = f"{len(training.stages)} pipeline stages of {training.stages[0].gpus} tensor-parallel GPUs"
        yield f"the training's {parts}; the built-in trainer has a rank on each GPU"
    for side, gpus in (("rollout", first.rollout_gpus), ("training", training.gpus)):
        if rest := sum(gpus.values()) % machine:
            yield f"{rest} of the {machine} GPUs of a {side} node; a run gives whole nodes"
    if left_out := len(scenario.jobs[0].shapes) - len(list(_shapes(scenario))):
        yield f"{left_out} of the shapes, which are on other types of GPUs; its pools are rollout and training"


def _engine(allocation: Allocation) -> Replica:
    """Return the most frequent kind of replica of a plan."""
    return max(allocation.replicas, key=lambda pair: pair[1])[0]


def _shapes(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the shapes of the job that are in the pools rollout and training."""
    (job,) = scenario.jobs
    for k in range(1, len(job.shapes) + 1):
        phases = dict(zip(SIDES, job.phases(k), strict=True))
        if all(phase.pool == side for side, phase in phases.items()):
            yield {side: {"nodes": phase.nodes} for side, phase in phases.items()}
