"""Streams of the catalogue's jobs whose phases are predicted from models and lengths of responses, in place of stated durations."""

from __future__ import annotations

from typing import Any

from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.timing.lengths import PUBLISHED

THINKING_MEDIAN, THINKING_SIGMA = 4096.0, 1.2  # lengths of 4B and 8B jobs, assumed


def with_models(scenario: Scenario) -> Scenario:
    """Return a stream of the catalogue's jobs with phases predicted from their models.

    The lengths are those of docs/reference/timing.md.
    """
    fields = ("id", "arrival_s", "iterations", "duration_s", "slo")
    jobs = []
    for job in scenario.jobs:
        size, cap = job.id.split("-")[:2]
        tokens = 1024 * int(cap.removesuffix("k"))
        kind = f"{size}-{cap}"
        if size in ("4B", "8B"):
            lengths: dict[str, Any] = {"median": THINKING_MEDIAN, "sigma": THINKING_SIGMA}
        else:
            lengths = {"published": kind if kind in PUBLISHED else f"7B-{cap}"}
        jobs.append(
            {key: value for key in fields if (value := getattr(job, key)) is not None}
            | {"rollout": {"nodes": job.rollout.nodes}, "training": {"nodes": job.training.nodes}}
            | {"model": {"name": size, "tensor_parallel": 2 if size == "32B" else 1}}
            | {"lengths": {"cap": tokens, "batch": 256, "prompt_tokens": 1024, **lengths}}
        )
    return parse_scenario({"version": 1, "cluster": scenario.cluster.model_dump(), "jobs": jobs})
