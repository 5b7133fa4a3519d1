"""A decision of the placement environment in words, for language models.

The text has the job, the cluster, and each choice that may be made, by its number: its price, the period of its group, the slack
that is left, and the time until the group's last member leaves.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.demand import limits_of
from rollmux_env.envs.base import Observation
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.types import ADMIT, NEW_GROUP
from rollmux_env.kernel.features import PLACE_FEATURES
from rollmux_env.kernel.pools import provisioned_usd
from rollmux_env.kernel.tables import Floats, Records

_SLACK, _LONGEST = PLACE_FEATURES.index("slack"), PLACE_FEATURES.index("longest")
_SCALE_H = 24.0  # half of a feature that is a time

PLACED = "All jobs have been placed."


def allowed_choices(vector: PlacementVectorEnv, s: int) -> list[int]:
    """Return the numbers of the choices that may be made in a stream; empty at its end."""
    count = int(vector.streams.clock["choices"][s])
    allowed: list[int] = np.flatnonzero(vector.choices[s, :count]["allowed"]).tolist()
    return allowed


def decision_text(vector: PlacementVectorEnv, observation: Observation, s: int = 0) -> str:
    """Describe the current decision of a stream: a line about the job, one about the cluster, and one for each allowed choice.

    Args:
        vector: Environment without moves.
        observation: Latest observation of all streams.
        s: Number of the stream.
    """
    clock = vector.streams.clock[s]
    if clock["asks"] != ADMIT:
        return PLACED
    jobs = vector.streams.jobs[s]
    usd_per_hour = provisioned_usd(vector.streams.nodes[s], limits_of(vector.generator.cluster))
    running, groups = _count(clock["admitted"] - clock["departed"], "job"), _count(clock["n_groups"], "group")
    choices, rows = vector.choices[s], observation["candidates"][s]
    lines = [
        _job(jobs, clock, vector.known_stays),
        f"Running: {running} in {groups}, ${usd_per_hour:.2f}/h.",
        *(f"{k}: {_choice(choices[k], rows[k], vector.streams.groups[s])}" for k in allowed_choices(vector, s)),
    ]
    return "\n".join(lines)


def _job(jobs: Records, clock: Records, known_stays: bool) -> str:
    job = jobs[clock["admitted"]]
    phases = (
        f"rollout {job['rollout_s']:.0f} s on {_count(job['rollout_nodes'], 'node')}, "
        f"training {job['training_s']:.0f} s on {_count(job['training_nodes'], 'node')}"
    )
    stay_h = min(job["duration_s"], job["iterations"] * job["solo_s"]) / 3600
    stay = f", stays {stay_h:.1f} h" if known_stays else ""
    return f"Job {clock['admitted'] + 1} of {clock['n_jobs']}: {phases}, SLO {job['limit_s'] / job['solo_s']:.2f}{stay}."


def _choice(choice: Records, row: Floats, groups: Records) -> str:
    group = int(choice["group"][0])
    shape = f" in shape {choice['of_shape'][0]}" if choice["of_shape"][0] > 0 else ""
    if group == NEW_GROUP:
        place = f"new group{shape}"
    else:
        members = _count(groups[group]["n_members"], "job")
        place = f"group {groups[group]['id']}{shape}, {members}, {_count(choice['new_nodes'][0], 'new node')}"
    facts = f"+${choice['usd']:.2f}/h, period {choice['period_s']:.0f} s, slack {100 * row[_SLACK]:.0f}%"
    longest = float(row[_LONGEST])
    leaves = f", last leaves in {_SCALE_H * longest / (1 - longest):.1f} h" if longest > 0 else ""
    return f"{place}: {facts}{leaves}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
