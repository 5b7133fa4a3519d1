from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rollmux_env.errors import InputError
from rollmux_env.timing.calibration import ROLLMUX
from rollmux_env.timing.hardware import GPUS, achieved, hardware
from rollmux_env.timing.models import SHAPES, ModelShape, model_shape
from rollmux_env.timing.weights import flat_s, rollout_memory_gb, sync_s, topology_aware_s, training_memory_gb
from rollmux_env.workloads.catalogue import PHASES_S
from tests.benchmarks import load_benchmark

timing = load_benchmark("timing")
ROWS: list[Any] = timing.figures()

PARAMETERS = {
    "0.5B": 0.494,
    "1.5B": 1.544,
    "3B": 3.086,
    "4B": 4.022,
    "7B": 7.616,
    "8B": 8.191,
    "14B": 14.77,
    "32B": 32.76,
    "70B": 70.55,
}


@pytest.mark.parametrize("size", SHAPES)
def test_shapes_have_the_parameters_that_their_makers_print(size: str) -> None:
    assert SHAPES[size].parameters / 1e9 == pytest.approx(PARAMETERS[size], rel=2e-3)


def test_all_published_phases_syncs_and_memory_are_there_once() -> None:
    found = ROWS
    assert len({row.name for row in found}) == len(found)
    assert sum(row.quantity in ("rollout", "training") and row.fitted for row in found) == 4 * len(PHASES_S)
    assert sum(row.quantity == "memory" for row in found) == 10
    assert sum(row.quantity == "sync" and row.fitted for row in found) == 12


def test_the_factors_are_those_that_the_fit_finds() -> None:
    found = timing.fit()
    fitted = (found.step_s, found.arithmetic, found.update_s, found.link)
    assert fitted == pytest.approx((ROLLMUX.step_s, ROLLMUX.arithmetic, ROLLMUX.update_s, ROLLMUX.link), rel=0.015)
    rows = timing.fitted_to()
    squares = [sum(math.log(row.predict(one) / row.published) ** 2 for row in rows) for one in (found, ROLLMUX)]
    assert squares[0] <= squares[1] <= 1.001 * squares[0]


def test_the_model_is_as_near_to_the_papers_as_docs_say() -> None:
    errors: dict[str, list[float]] = {}
    for row in ROWS:
        if row.fitted or row.quantity == "memory":
            errors.setdefault(row.quantity, []).append(abs(row.predict(ROLLMUX) / row.published - 1))
    limits = {"rollout": 0.2, "training": 0.1, "sync": 0.08, "memory": 0.08}
    assert {quantity: median(found) < limits[quantity] for quantity, found in errors.items()} == dict.fromkeys(limits, True)


def test_papers_that_differ_have_their_own_entries() -> None:
    assert (GPUS["H800"].tflops, GPUS["H800"].hbm_tb_s) == (989.5, 3.35)
    assert (GPUS["H800-areal-hex"].tflops, GPUS["H800-areal-hex"].hbm_tb_s) == (756.0, 2.0)


def test_shards_cross_faster_than_whole_copies() -> None:
    flat, aware = flat_s(15.2, 8, 8, 2.0), topology_aware_s(15.2, 8, 1, 2.0, 5.0)
    assert flat == pytest.approx(8 * aware)
    h20, h800 = achieved("H20", GPUS["H20"]), achieved("H800", GPUS["H800"])
    assert sync_s(15.2, h800, 8, h20, 8, 1) < sync_s(15.2, h800, 8, h20, 16, 2)


def test_memory_counts_replicas_and_shares_training_over_nodes() -> None:
    shape = SHAPES["7B"]
    assert rollout_memory_gb(shape, 8, 1) > rollout_memory_gb(shape, 8, 2) > rollout_memory_gb(shape, 8, 8)
    assert training_memory_gb(shape, 8, 1) > training_memory_gb(shape, 8, 2)


def config(**changes: object) -> dict[str, object]:
    seven = {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    }
    return {key: value for key, value in (seven | changes).items() if value is not None}


def test_a_config_gives_the_shape_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert model_shape(str(tmp_path)) == model_shape("config.json", tmp_path) == SHAPES["7B"]
    (tmp_path / "config.json").write_text(json.dumps(config(head_dim=64, tie_word_embeddings=True, num_key_value_heads=None)))
    assert model_shape(str(tmp_path)) == ModelShape(3584, 28, 28, 28, 64, 18944, 152064, True)


@pytest.mark.parametrize(
    "content, problem",
    [
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
        (json.dumps(config(vocab_size=None)), "vocab_size is missing"),
        (json.dumps(config(num_hidden_layers=0)), "layers: must be at least 1, not 0"),
        (json.dumps(config(hidden_size="wide")), "must be counts"),
        (json.dumps(config(num_experts=64)), "mixture of experts"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=problem):
        model_shape(str(tmp_path))


def test_names_that_are_nothing_are_refused_in_one_line(tmp_path: Path) -> None:
    for look in (model_shape, hardware):
        with pytest.raises(InputError, match="must be one of"):
            look("9B", tmp_path)


def test_a_hardware_file_comes_back_and_others_are_refused(tmp_path: Path) -> None:
    wanted = achieved("H20", GPUS["H20"])
    path = tmp_path / "node.json"
    path.write_text(wanted.to_json())
    assert hardware("node.json", tmp_path) == wanted
    data: dict[str, Any] = json.loads(wanted.to_json())
    bad: dict[str, Any]
    for bad in (
        {},
        data | {"version": 2},
        data | {"colour": 1},
        data | {"kv_gb_s": 0},
        data | {"step_s": -1},
        data | {"step_s": "1"},
    ):
        path.write_text(json.dumps(bad))
        with pytest.raises(InputError):
            hardware("node.json", tmp_path)
