"""Policies by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from policies.named import with_absolute_path
from policies.placement.algorithm1 import Algorithm1
from policies.registry import PLACEMENT, make_policy, make_runnable
from rollmux_env.bench.streams import workload
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(PLACEMENT))
def test_every_name_makes_a_contender(name: str) -> None:
    policy = make_policy(name)
    assert hasattr(policy, "decide") or hasattr(policy, "replay")


def test_options_are_read_as_json_values() -> None:
    policy = make_policy("rollmux,prune=false")
    assert isinstance(policy, Algorithm1) and policy.prune is False


def test_the_seed_goes_to_policies_that_take_one_and_an_option_wins() -> None:
    stream = workload("mixed", 0, jobs=20)

    def decisions(spec: str, seed: int) -> object:
        return replay(stream, make_runnable(spec, seed)).log

    assert decisions("random", 4) == decisions("random,seed=4", 9) != decisions("random", 5)


def test_a_policy_of_ones_own_is_found_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = list(sys.path)
    policy = make_runnable("first_fit:FirstFit,most_new_nodes=0")
    assert policy.most_new_nodes == 0  # type: ignore[attr-defined]
    assert sys.path[: len(before)] == before, "user paths are appended, never prepended"


@pytest.mark.parametrize(
    "spec", ["", ",", "rollmux,", "rollmux,prune=1,prune=2", ":", "a:", "1:2", "os:path", "rollmux,=1", "random,seed=-1"]
)
def test_malformed_names_are_refused_in_one_line(spec: str) -> None:
    with pytest.raises(InputError) as refused:
        make_policy(spec)
    assert "\n" not in str(refused.value)


def test_the_documented_policy_is_the_example() -> None:
    text = (ROOT / "docs" / "reference" / "policies.md").read_text()
    assert (ROOT / "examples" / "first_fit.py").read_text().rstrip() in text


def test_a_policy_file_has_an_absolute_path_where_a_spec_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_absolute_path("learned:a/b,moves=false") == f"learned:{tmp_path}/a/b,moves=false"
    assert with_absolute_path("search:learned:b") == f"search:learned:{tmp_path}/b"
    for spec in ("learned:default", "learned:random,seed=1", "rollmux,order=learned", "my_learned:Class", "learned:/a"):
        assert with_absolute_path(spec) == spec
