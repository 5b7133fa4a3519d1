"""One door for every text that a user hands over: what is no UTF-8 is named, with what to do about it."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.fabric.flows import read_flows
from rollmux_env.files import json_lines, read_json, read_text, text_lines
from rollmux_env.reading import read_mapping
from rollmux_env.scenario import load_scenario
from rollmux_env.timing.lengths import read_lengths
from rollmux_env.timing.trajectories import read_step_s, read_trajectories
from rollmux_env.workloads import WorkloadOptions, make_workload

TEXT = '{"a": 1}\n'
OTHERS = {
    "is packed by gzip": gzip.compress(TEXT.encode()),
    "is packed by bzip2": bz2.compress(TEXT.encode()),
    "is packed by xz": lzma.compress(TEXT.encode()),
    "is UTF-16, not UTF-8": TEXT.encode("utf-16"),
    "is UTF-32, not UTF-8": TEXT.encode("utf-32"),
    r"line 2: is not a text file \(UTF-8\): it holds the byte 0xe9": TEXT.encode() + "é".encode("latin-1"),
}
DOORS: dict[str, Callable[[Path], object]] = {
    "text": read_text,
    "mapping": read_mapping,
    "JSON": read_json,
    "JSONL": lambda path: list(json_lines(path)),
    "scenario": load_scenario,
    "lengths": read_lengths,
    "flows": lambda path: read_flows(path, 8),
    "trajectories": read_trajectories,
    "steps": read_step_s,
    "philly": lambda path: make_workload("philly", WorkloadOptions(csv=path)),
    "authors": lambda path: make_workload("authors", WorkloadOptions(trace=path)),
    "assumptions": lambda path: make_workload("production", WorkloadOptions(assumptions=str(path))),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_names_what_is_no_utf_8(tmp_path: Path, door: str) -> None:
    path = tmp_path / "given.yaml"
    for said, data in OTHERS.items():
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"^{path}: {said}"):
            DOORS[door](path)


def test_a_mark_of_utf_8_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(TEXT.encode("utf-8-sig"))
    assert read_text(path) == TEXT and read_json(path) == {"a": 1} == read_mapping(path)
    assert list(text_lines(path)) == [TEXT] and list(json_lines(path)) == [(1, {"a": 1})]
