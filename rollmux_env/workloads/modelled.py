"""Streams of the catalogue's jobs whose phases are predicted from models and lengths of responses, in place of stated durations."""

from __future__ import annotations

from typing import Any

from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.timing.lengths import PUBLISHED

THINKING_MEDIAN, THINKING_SIGMA = 4096.0, 1.2  # lengths of 4B and 8B jobs, assumed


def published_lengths(kind: str) -> str | None:
    """Return the name of the published lengths that a job type such as `14B-8k` has, or None if its lengths are assumed.

    Types whose lengths are not published have those of the 7B job with the same cap, except 4B and 8B.
    """
    size, _, cap = kind.partition("-")
    if kind in PUBLISHED:
        return kind
    return None if size in ("4B", "8B") else f"7B-{cap}"


def with_models(scenario: Scenario) -> Scenario:
    """Return a stream of the catalogue's jobs with phases predicted from their models.

    The lengths are those of docs/reference/timing.md.
    """
    fields = ("id", "arrival_s", "iterations", "duration_s", "slo")
    jobs = []
    for job in scenario.jobs:
        size, cap = job.id.split("-")[:2]
        tokens = 1024 * int(cap.removesuffix("k"))
        name = published_lengths(f"{size}-{cap}")
        lengths: dict[str, Any] = {"published": name} if name else {"median": THINKING_MEDIAN, "sigma": THINKING_SIGMA}
        jobs.append(
            {key: value for key in fields if (value := getattr(job, key)) is not None}
            | {"rollout": {"nodes": job.rollout.nodes}, "training": {"nodes": job.training.nodes}}
            | {"model": {"name": size, "tensor_parallel": 2 if size == "32B" else 1}}
            | {"lengths": {"cap": tokens, "batch": 256, "prompt_tokens": 1024, **lengths}}
        )
    return parse_scenario({"version": 1, "cluster": scenario.cluster.model_dump(), "jobs": jobs})
