"""Policy files: what is written is read, and everything else is a clear error that runs no code."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.placement.policy_file import PolicyConfig, read_policy, write_policy
from policies.placement.scorer import random_weights, score
from rollmux_env.errors import InputError


def config(**changes: Any) -> PolicyConfig:
    given: dict[str, Any] = {
        "job_features": ("a", "b"),
        "candidate_features": ("c", "d", "e"),
        "cluster_features": ("f",),
        "widths": (4, 3),
    }
    return PolicyConfig(**{**given, **changes})


WEIGHTS = random_weights(2, 3, 1, (4, 3), seed=0)


def written(tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    write_policy(path, config(moves=True, provenance={"command": "rollmux train x", "seed": 3}), WEIGHTS)
    return path


def with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file with its header changed."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return path


def problem(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        read_policy(path, **options)
    text = str(error.value)
    assert text.startswith(str(path)) and "\n" not in text
    return text


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found, weights = read_policy(written(tmp_path))
    assert found == config(moves=True, provenance={"command": "rollmux train x", "seed": 3})
    assert weights.keys() == WEIGHTS.keys()
    assert all(np.array_equal(weights[name], WEIGHTS[name]) for name in weights)


def test_the_same_policy_is_the_same_bytes(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    write_policy(path, *read_policy(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("keep", [0, 7, 8, 40, 0.5, 0.999])
def test_a_file_that_was_cut_off(tmp_path: Path, keep: float) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    problem(path)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    assert "No such file" in problem(path)
    assert problem(tmp_path).endswith("is a folder, not a policy file")
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "best.safetensors").touch()
    assert problem(tmp_path).endswith("/seed-0/best.safetensors")
    assert problem(tmp_path / "seed-0").endswith("/seed-0/best.safetensors")
    path.write_bytes(pickle.dumps({"weights": 1}))
    assert "is not a policy file" in problem(path)
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    assert "is not a policy file" in problem(path)
    path.write_bytes(struct.pack("<Q", 200_000) + b"[" * 200_000)
    assert "is not a policy file" in problem(path)
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    assert "no policy file of rollmux" in problem(path)


def test_a_config_that_does_not_fit(tmp_path: Path) -> None:
    def changed(**changes: Any) -> str:
        def change(header: dict[str, Any]) -> None:
            header["__metadata__"]["rollmux"] = json.dumps({**config().model_dump(), **changes})

        return problem(with_header(written(tmp_path), change))

    assert "row.0.weight: must be F32 (4, 4), not F32 (4, 3)" in changed(candidate_features=["c", "d", "e", "g"])
    assert "context.2.weight: is missing" in changed(widths=[4, 3, 3])
    assert "rollmux.version" in changed(version=2)
    assert "rollmux.code: is not a key of this file format" in changed(code="import os")
    assert "is the checkpoint of a training; best.safetensors beside it" in changed(progress={}, config={})
    assert "rollmux.widths" in changed(widths=[])
    assert "asks for more than" in changed(widths=[4096] * 16)
    assert "is a policy for dispatch, not for placement" in changed(decides="dispatch")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    def changed(change: Callable[[dict[str, Any]], object]) -> str:
        return problem(with_header(written(tmp_path), change))

    assert "must be F32" in changed(lambda header: header["enter.bias"].update(dtype="F64"))
    assert "must be F32" in changed(lambda header: header.update({"enter.bias": 7}))
    assert "evil: is not a weight of this network" in changed(lambda header: header.update(evil=header["enter.bias"]))
    assert "is damaged" in changed(lambda header: header["enter.bias"].update(data_offsets=[0, 10**9]))
    assert "is damaged" in changed(lambda header: header["score.bias"].update(data_offsets=header["value.bias"]["data_offsets"]))


def test_what_cannot_be_used_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    with pytest.raises(InputError, match=r"score\.bias: holds numbers that are not finite"):
        write_policy(path, config(), {**WEIGHTS, "score.bias": np.array([np.nan], dtype=np.float32)})
    with pytest.raises(InputError, match=r"score\.bias: is missing"):
        write_policy(path, config(), {name: array for name, array in WEIGHTS.items() if name != "score.bias"})
    assert not path.exists()


def test_equal_rows_score_the_same_in_any_order() -> None:
    rng = np.random.default_rng(0)
    job, rows, cluster = (rng.normal(size=shape).astype(np.float32) for shape in ((2,), (6, 3), (1,)))
    order = rng.permutation(6)
    scores = score(WEIGHTS, job, rows, cluster)
    assert scores.shape == (6,)
    np.testing.assert_allclose(score(WEIGHTS, job, rows[order], cluster), scores[order], rtol=1e-5)
