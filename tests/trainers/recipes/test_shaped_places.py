"""Policy search for jobs of several shapes: a small run writes a policy that places as the network that it tried."""

from pathlib import Path

import pytest

from policies.placement.learned import Learned
from policies.registry import make_runnable
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from trainers.recipes import shaped_places
from trainers.recipes.shaped_places import stream, train


@pytest.mark.parametrize("name, known_stays", [("admission-shapes", True), ("admission-unknown-shapes", False)])
def test_a_small_run_writes_a_policy(name: str, known_stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in {"JOBS": 12, "PAIRS": 1, "SEARCHED": 1, "EPOCHS": 2, "STREAMS": 2}.items():
        monkeypatch.setattr(shaped_places, constant, value)
    lines: list[str] = []
    train(tmp_path, 0, 0, [1000], lines.append, known_stays=known_stays)
    path = tmp_path / f"{name}.safetensors"
    policy = make_runnable(f"learned:{path}")
    assert isinstance(policy, Learned) and policy.config.known_stays is known_stays
    found = metrics(replay(stream(1000, fixed=False), policy))
    every = metrics(replay(stream(1000, fixed=False, every=True), policy))
    first = f"step 0, $/work-h {found.usd_per_work_hour:.3f}, with all {every.usd_per_work_hour:.3f}"
    assert lines == [first]
    train(tmp_path, 1, 0, [1000], lines.append, path, known_stays)
    assert lines == [first, first]
    assert found.slo_attainment == 1 and found.migrations == 0
