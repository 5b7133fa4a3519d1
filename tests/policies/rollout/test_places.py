"""Every rollout policy works where the table says, and is refused by name and reason elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from policies.placement.policy_file import PolicyConfig, write_policy
from policies.placement.scorer import random_weights
from policies.rollout import ROLLOUT, make_rollout
from policies.rollout.places import REFUSED, SIZED, Place, check_sizes, make_at
from rollmux_env.envs.rollout.observation import feature_names
from rollmux_env.errors import InputError
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import setting_of
from rollmux_env.scenario import load_scenario
from rollmux_env.timing.filling import fill_in

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rollout_policies.md"
NAMES = (*ROLLOUT, "learned:default")
CLUSTER = {
    name: {"gpu": gpu, "gpus_per_node": 8, "usd_per_gpu_hour": 2.0, "node_memory_gb": 1500}
    for name, gpu in (("rollout", "H20"), ("training", "H800"))
}


@pytest.mark.parametrize("place", get_args(Place))
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_made_or_refused_by_name_and_reason(name: str, place: Place) -> None:
    if (name, place) not in REFUSED:
        make_at(name, place)
        return
    with pytest.raises(InputError, match=f"^rollout policy '{name}': .*{re.escape(REFUSED[name, place])}") as error:
        make_at(name, place)
    assert "\n" not in str(error.value)


def test_the_page_has_the_same_table() -> None:
    rows = {
        cells[0].strip(" `"): cells[1:]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) == 1 + len(get_args(Place))
    }
    assert set(rows) == {*NAMES, "tail-batching+NAME"}
    for name in NAMES:
        for place, cell in zip(get_args(Place), rows[name], strict=True):
            assert cell.strip().startswith("no") == ((name, place) in REFUSED), (name, place)


def test_nothing_moves_between_engines_in_a_round_of_tail_batching() -> None:
    with pytest.raises(InputError, match="the responses of a round stay with their engines"):
        make_at("tail-batching+adaptive-parallelism", "run")


def model(sizes: list[int]) -> dict[str, object]:
    lengths = {"batch": 64, "cap": 8192, "median": 600, "sigma": 1.2}
    job = {"id": "a", "arrival_s": 0, "iterations": 2, "slo": 3, "lengths": lengths}
    return {"version": 1, "cluster": CLUSTER, "jobs": [job | {"model": {"name": "14B", "tensor_parallel": 1, "sizes": sizes}}]}


def test_a_job_with_several_sizes_is_replayed_with_them(tmp_path: Path) -> None:
    import json

    (tmp_path / "file.json").write_text(json.dumps(model([2, 8])))
    scenario = load_scenario(tmp_path / "file.json")
    setting = setting_of(scenario.jobs[0])
    assert setting is not None and [size for size, _ in setting.timings] == [1, 2, 8]
    assert (setting.gpus, setting.parallel) == (8, 1)
    for name in SIZED:
        check_sizes(name, [scenario])
    job = JobRollouts(setting, make_at("adaptive-parallelism", "replay"), 0)
    plain = JobRollouts(setting, make_at("plain", "replay"), 0)
    assert [job.next().seconds for _ in range(3)][1:] < [plain.next().seconds for _ in range(3)][1:]
    alone = {**model([]), "jobs": [{**model([])["jobs"][0], "model": "14B"}]}  # type: ignore[index]
    (tmp_path / "file.json").write_text(json.dumps(alone))
    one = load_scenario(tmp_path / "file.json")
    assert one.jobs[0].rollout.host_memory_gb < scenario.jobs[0].rollout.host_memory_gb  # the engines of all sizes are there
    with pytest.raises(InputError, match="parallelism-planner chooses the size of the replicas, and no job has several"):
        check_sizes("tail-batching+parallelism-planner", [one])


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ([3], r"jobs\[0\].model.sizes: must divide the 8 GPUs"),
        ([16], r"jobs\[0\].model.sizes: must divide the 8 GPUs"),
        ([1], r"jobs\[0\].model.sizes: must be different"),
        ([2, 2], r"jobs\[0\].model.sizes: must be different"),
    ],
)
def test_sizes_that_cannot_be_are_said_in_a_line(sizes: list[int], problem: str) -> None:
    with pytest.raises(InputError, match=f"^{problem}") as error:
        fill_in(model(sizes), Path())
    assert "\n" not in str(error.value)


def test_a_policy_file_is_read_again_where_it_has_changed(tmp_path: Path) -> None:
    names = feature_names(False)
    job, row, state = map(len, names)
    config = PolicyConfig.of(names, (4,), {}, decides="rollout")
    path, policies = tmp_path / "mine.safetensors", []
    for seed in (0, 1, 0):
        write_policy(path, config, random_weights(job, row, state, (4,), seed))
        policies.append(make_rollout(f"learned:{path}"))
    first, second, again = policies
    assert first != second and (first, hash(first)) == (again, hash(again))
    assert not np.array_equal(first.weights["enter.weight"], second.weights["enter.weight"])  # type: ignore[attr-defined]
